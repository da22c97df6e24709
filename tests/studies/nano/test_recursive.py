"""nano-rlm: what it is shown, and the checkpoint as it ships: it answers what it asks, and seldom asks rightly."""

from collections import Counter

import pytest

from repl_rl.config import load_config
from repl_rl.engine.vocabulary import load_vocabulary
from repl_rl.kernel import KernelPool, Limits
from repl_rl.models.nano import SHIPPED
from repl_rl.rollout.scripted import type_session
from repl_rl.rollout.service import open_service
from repl_rl.tasks import grade, make_tasks
from repl_rl.tasks.documents import is_complaint, remarks
from studies.nano.recursive import QUESTIONS, answer_to
from studies.nano.sessions import SessionRecord, make_recursive


@pytest.fixture(scope="module")
def sessions() -> list[SessionRecord]:
    records = make_recursive(400, seed=3)
    assert len(records) == 400
    return [record for record in records if record.answer is not None]


def test_sessions_are_of_each_length_and_about_a_quarter_is_right(sessions: list[SessionRecord]) -> None:
    count = Counter(record.task.family for record in sessions)
    assert count == {"count-1k": 200, "count-10k": 60, "count-100k": 20}
    right = sum(grade(record.task, record.answer) for record in sessions)
    assert 0.15 < right / len(sessions) < 0.35


@pytest.mark.parametrize("number", range(3))
def test_what_counts_as_a_complaint_is_what_the_problem_counts(number: int) -> None:
    made, complaints = remarks(number, 10_000)
    assert sum(map(is_complaint, made)) == complaints
    assert [answer_to(f"{remark} {QUESTIONS[0]}") for remark in made].count("yes") == complaints
    assert [answer_to(f"{remark} {QUESTIONS[1]}") for remark in made].count("no") == complaints


@pytest.mark.more
async def test_what_nano_rlm_is_shown_reads_as_a_rollout(sessions: list[SessionRecord]) -> None:
    record = next(each for each in sessions if any("llm_query" in segment.text for segment in each.segments[1:]))
    typed = "".join(segment.text for segment in record.segments if segment.sampled)
    async with KernelPool(1, Limits(line_s=60.0)) as pool:
        made = await type_session(record.task, typed, environment="rlm", answer=answer_to, kernels=pool)
    shown = made.prompt + "".join(line.text + line.output for line in made.lines)
    assert shown.removesuffix(">>>") == "".join(segment.text for segment in record.segments).removesuffix(">>>")
    assert made.answer == record.answer


def test_a_long_context_is_out_of_its_prompts_reach() -> None:
    made, _ = remarks(0, 100_000)
    tokens = len(load_vocabulary(str(SHIPPED["nano-rlm"])).encode_prompt("\n".join(made)))
    assert tokens > 10 * load_config("rlm").engine.context_tokens


@pytest.mark.slow
def test_the_checkpoint_has_the_habits_that_it_was_shown() -> None:
    config = load_config("rlm")
    tasks = make_tasks("count-1k", 64, seed=1, split="heldout")
    with open_service(config) as service:
        made = service.generate(tasks, config.sampling.seeded("habits"))
    assert 8 <= sum(grade(task, each.answer) for task, each in zip(tasks, made, strict=True)) <= 30
    asked = [call for each in made for line in each.lines for call in line.subcalls]
    assert len(asked) > 500
    assert sum(call.text == answer_to(call.prompt) for call in asked) / len(asked) > 0.99
