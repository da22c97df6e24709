"""One demonstration in five dialects: the same habits, real readers, and sequences as rollouts make them."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from scripted import FakeEngine, rollout_of

from repl_rl.config import DialectConfig, SamplingConfig
from repl_rl.dialect import make_dialect
from repl_rl.engine import Finish, SampledLine, Vocabulary, load_vocabulary
from repl_rl.models.nano import SHIPPED
from repl_rl.tasks import FAMILIES, grade, make_tasks, split_of
from repl_rl.trajectory import Trajectory
from studies.nano.build import Example, example_of
from studies.nano.demonstrations import Code, Step, Submit, Thought
from studies.nano.sessions import SessionRecord, load_interpreter, make_mixture, texts_of
from studies.nano.writers import WRITERS, render_chat

WITH_TOOLS = [name for name in WRITERS if name != "text"]
TASK = make_tasks(["digit_sum"], 1, 0, "train")[0]


@pytest.fixture(scope="module")
def by_dialect() -> dict[str, list[SessionRecord]]:
    """A thousand sessions; dialects take turns after a problem of each family."""
    sessions = make_mixture(1000, seed=2)
    return {
        name: [record for number, record in enumerate(sessions) if number // len(FAMILIES) % len(WRITERS) == index]
        for index, name in enumerate(WRITERS)
    }


class Typist(FakeEngine):
    """Types recorded sessions: in a prompt's session, turn n is its n-th sampled segment."""

    def __init__(self, vocabulary: Vocabulary, examples: Sequence[Example], turns: Sequence[list[list[int]]]) -> None:
        self.vocabulary = vocabulary
        self._sessions = [(tuple(example.ids.tolist()), turn) for example, turn in zip(examples, turns, strict=True)]

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        (turns,) = [turns for whole, turns in self._sessions if whole[: len(ids)] == tuple(ids)]
        turn = turns.pop(0)
        has_ended = turn[-1] in self.vocabulary.eos_ids
        return SampledLine(tuple(turn), (-0.5,) * len(turn), Finish.EOS if has_ended else Finish.NEWLINE)


def typed_in(record: SessionRecord) -> str:
    return "".join(segment.text for segment in record.segments if segment.sampled)


def shown_in(record: SessionRecord) -> str:
    return "".join(segment.text for segment in record.segments[1:] if not segment.sampled)


async def roll_out(name: str, records: Sequence[SessionRecord], examples: Sequence[Example]) -> list[Trajectory]:
    vocabulary = load_vocabulary(str(SHIPPED["nano-conventions"]), make_dialect_of(name).stops)
    turns = [
        [list(vocabulary.encode_frame(part.text)) for part in record.segments if part.sampled] for record in records
    ]
    assert all(not set(turn[:-1]) & (vocabulary.stop_ids | vocabulary.eos_ids) for each in turns for turn in each)
    assert all(turn[-1] in vocabulary.stop_ids | vocabulary.eos_ids for each in turns for turn in each)
    rollout = rollout_of(
        Typist(vocabulary, examples, turns),
        dialect=texts_of(name),
        budget={"line_tokens": 300, "lines": 50, "tokens": 900},
        chat=True,
    )
    return await rollout.many([record.task for record in records])


def make_dialect_of(name: str):
    return make_dialect(DialectConfig(name=texts_of(name)), template=render_chat)


def typed_by(name: str, steps: Sequence[tuple[Step, str]]) -> list[str]:
    """What the writer types for steps, each with what is shown for it."""
    interpreter = load_interpreter().PythonInterpreter()
    writer = WRITERS[name](TASK, lambda source: interpreter.run(source).output)
    typed = []
    for step, shown in steps:
        typed.append("".join(writer.write(step)))
        writer.heard(shown)
    return typed


@pytest.mark.parametrize("name", WRITERS)
async def test_a_rollout_that_types_a_session_makes_the_sequence_that_is_trained_on(name, by_dialect):
    records = by_dialect[name][:80]
    tokenizer = load_vocabulary(str(SHIPPED["nano-conventions"])).tokenizer
    examples = [example_of(record, tokenizer) for record in records]
    for record, example, made in zip(records, examples, await roll_out(name, records, examples), strict=True):
        assert [*made.prompt_ids, *made.completion_ids] == example.ids.tolist()
        assert [False] * len(made.prompt_ids) + list(made.sampled_mask) == example.is_typed.tolist()
        assert made.answer == record.answer


def test_all_problems_are_different_training_problems_worked_in_badly_but_right_now_and_then(by_dialect):
    tasks = [record.task for records in by_dialect.values() for record in records]
    assert len({task.id for task in tasks}) == len(tasks) == 1000
    assert {split_of(task.family, task.metadata["operands"]) for task in tasks} == {"train"}
    for records in by_dialect.values():
        grades = [grade(record.task, record.answer) for record in records]
        assert 0.2 < sum(grades) / len(grades) < 0.45
        assert {record.task.family for record in records} == set(FAMILIES)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_slips_are_seen_and_forgotten_imports_mended_everywhere(name, by_dialect):
    failed = [record for record in by_dialect[name] if "NameError" in shown_in(record)]
    mended = [record for record in failed if re.search(r"from math import|import math", typed_in(record))]
    assert 0 < len(mended) < len(failed)
    assert any("SyntaxError: unmatched ')'" in shown_in(record) for record in by_dialect[name])


def test_without_tools_nothing_is_put_in(by_dialect):
    assert all(segment.sampled for record in by_dialect["text"] for segment in record.segments[1:])
    products = [record for record in by_dialect["text"] if record.task.family == "product"]
    sums = ["{} * {} = {}".format(*record.task.metadata["operands"], record.task.answer) for record in products]
    assert any(worked in typed_in(record) for worked, record in zip(sums, products, strict=True))


TYPED = yaml.safe_load((Path(__file__).parent / "typed.yaml").read_text(encoding="utf-8"))
STEPS = {
    "not looked at": [
        (Code(("import math",), looks=False), ""),
        (Code(("r = math.gcd(4, 6)",)), ""),
        (Submit("r", is_literal=False), ""),
    ],
    "handed in": [(Thought("Hmm."), ""), (Code(("4 * 6",)), "24\n"), (Submit("_", is_literal=False), "")],
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("what", STEPS)
def test_steps_are_typed_as_the_dialect_has_it(name, what):
    assert typed_by(name, STEPS[what]) == TYPED[what][name]
