"""Recorded sessions typed again: in other vocabularies, behind other prompts, and what makes a session another one."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from scripted import FakeEngine, ScriptedEngine, rollout_of
from vocabularies import KINDS, nano, qwen

from repl_rl.config import BudgetConfig, DialectConfig, SamplingConfig
from repl_rl.engine import Finish, SampledLine, Vocabulary
from repl_rl.kernel import KernelPool
from repl_rl.rollout.retyping import is_of_vocabulary, retyped, what_differs
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory

TASK = Task("t", "What is the sum of 1, 2 and 3?", "6")
TYPED = (
    "# Counting, with é and 中.\n"
    "total = 0\n"
    "for n in range(1, 4):\n"
    "    total += n\n"
    "\n"
    "total\n"
    "print('a\\n\\nb')\n"
    "submit_final_answer(total)\n"
)
"""Without the space after a prompt: a token may hold it beside a newline, and then it was typed before the prompt."""
LINES = TYPED.splitlines(keepends=True)
BUDGET = BudgetConfig(lines=16, tokens=2000, repeats=None)


class TypedAtOnce(FakeEngine):
    """Types the tokens of a whole text, cut where a token ends a turn, so that tokens may hold what comes after it."""

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        self.vocabulary = vocabulary
        self._ids = list(vocabulary.encode_output(text))

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        stop = next(place for place, token in enumerate(self._ids) if token in self.vocabulary.stop_ids)
        line = tuple(self._ids[: stop + 1])
        del self._ids[: stop + 1]
        return SampledLine(line, (-0.5,) * len(line), Finish.NEWLINE)


def setup_of(vocabulary: Vocabulary, dialect: str = "python", **given: Any) -> RolloutSetup:
    given = {"context_tokens": 4096, "budget": BUDGET} | given
    return RolloutSetup(vocabulary, DialectConfig(name=dialect), **given)


async def recorded_by(engine: Any, pool: KernelPool, **given: Any) -> Trajectory:
    given = {"context_tokens": 4096, "budget": BUDGET} | given
    [session] = await rollout_of(engine, pool, vocabulary=engine.vocabulary, **given).many([TASK])
    return replace(session, outcome_reward=1.0, reference="6", grade_reason="equal")


ESSENTIAL = (("nano", "qwen"), ("qwen", "nano"))


@pytest.mark.parametrize(
    ("source", "target"),
    [pytest.param(*pair, marks=() if pair in ESSENTIAL else pytest.mark.more) for pair in product(KINDS, KINDS)],
)
async def test_a_session_is_the_same_in_every_vocabulary(pool: KernelPool, source: str, target: str) -> None:
    """Whether or not newlines fuse with what is around them, there or here."""
    recorded = await recorded_by(TypedAtOnce(KINDS[source](), TYPED), pool)
    vocabulary = KINDS[target]()
    session = await retyped(pool, setup_of(vocabulary), TASK, recorded)
    assert what_differs(recorded, session) is None
    assert (session.answer, session.stop_reason) == (("6",), StopReason.ANSWER)
    assert (session.outcome_reward, session.reference, session.grade_reason) == (1.0, "6", "equal")
    typed = b"".join(vocabulary.bytes_of(session.completion_ids[line.start : line.end]) for line in session.lines)
    assert typed.decode() == TYPED
    assert session.prompt_ids == vocabulary.encode_prompt(session.prompt)


async def test_ids_of_the_same_vocabulary_stay_as_they_were_sampled(pool: KernelPool) -> None:
    """Even where the tokenizer would have written the text with others."""
    vocabulary = nano()
    in_bytes = [token for byte in TYPED.encode() for token in vocabulary.encode_output(chr(byte)) if byte < 128]
    engine = TypedAtOnce(vocabulary, "")
    engine._ids = in_bytes
    recorded = await recorded_by(engine, pool)
    assert len(recorded.completion_ids) > len(vocabulary.encode_output(TYPED))
    assert is_of_vocabulary(recorded, vocabulary)
    session = await retyped(pool, setup_of(vocabulary), TASK, recorded)
    assert session.completion_ids == recorded.completion_ids
    assert session.sampled_mask == recorded.sampled_mask


async def test_the_prompt_is_that_of_the_setup(pool: KernelPool) -> None:
    """Sessions that were sampled with a longer prompt teach a model to do without it."""
    recorded = await recorded_by(TypedAtOnce(qwen(), TYPED), pool)
    recorded = replace(recorded, prompt="Read this first. " + recorded.prompt, prompt_ids=(1, 2, *recorded.prompt_ids))
    session = await retyped(pool, setup_of(qwen()), TASK, recorded)
    assert session.prompt == recorded.prompt.removeprefix("Read this first. ")
    assert session.completion_ids == recorded.completion_ids


@pytest.mark.parametrize("target", ["nano", "qwen"])
async def test_a_session_that_a_budget_ended_has_no_further_line(pool: KernelPool, target: str) -> None:
    """Here it may go on for longer, and nothing was typed that could be learned from."""
    engine = ScriptedEngine(qwen(), LINES)
    recorded = await recorded_by(engine, pool, budget=BudgetConfig(lines=3, tokens=400, repeats=None))
    assert recorded.stop_reason is StopReason.MAX_LINES
    session = await retyped(pool, setup_of(KINDS[target]()), TASK, recorded)
    assert [line.text for line in session.lines] == LINES[:3]
    assert session.stop_reason is StopReason.MAX_LINES
    assert not session.is_void
    assert what_differs(recorded, session) is None


async def test_a_line_that_was_cut_short_is_not_typed(pool: KernelPool) -> None:
    engine = ScriptedEngine(qwen(), LINES)
    recorded = await recorded_by(engine, pool, budget=BudgetConfig(lines=16, tokens=20, repeats=None))
    assert recorded.lines[-1].kind is LineKind.OVERLONG
    for vocabulary in (nano(), qwen()):
        session = await retyped(pool, setup_of(vocabulary), TASK, recorded)
        assert [line.text for line in session.lines] == [line.text for line in recorded.lines[:-1]]


async def test_a_smaller_budget_ends_it_earlier(pool: KernelPool) -> None:
    recorded = await recorded_by(TypedAtOnce(qwen(), TYPED), pool)
    small = BudgetConfig(lines=3, tokens=400, repeats=None)
    session = await retyped(pool, setup_of(nano(), budget=small), TASK, recorded)
    assert session.stop_reason is StopReason.MAX_LINES
    assert what_differs(recorded, session) == "statements that ran: 1, not 5"


async def test_the_end_of_the_text_is_typed_where_it_was(pool: KernelPool) -> None:
    engine = ScriptedEngine(qwen(), [" x = 1\n", " x"])
    recorded = await recorded_by(engine, pool)
    assert recorded.stop_reason is StopReason.EOS
    vocabulary = nano()
    session = await retyped(pool, setup_of(vocabulary), TASK, recorded)
    assert session.stop_reason is StopReason.EOS
    assert session.completion_ids[-1] in vocabulary.eos_ids
    assert what_differs(recorded, session) is None


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([" import time\n", " time.time_ns()\n"], "'time.time_ns()' showed"),
        ([" import os\n", " submit_final_answer(os.urandom(8))\n"], "the answer is"),
    ],
)
async def test_what_comes_out_otherwise_is_told(pool: KernelPool, lines: list[str], told: str) -> None:
    engine = ScriptedEngine(qwen(), lines)
    recorded = await recorded_by(engine, pool, budget=BudgetConfig(lines=2, tokens=400, repeats=None))
    session = await retyped(pool, setup_of(qwen()), TASK, recorded)
    sentence = what_differs(recorded, session)
    assert sentence is not None
    assert sentence.startswith(told)
