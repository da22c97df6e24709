"""Going on from recorded sessions: real forks of real interpreters, and a policy whose values are known."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from growing import Policy
from scripted import ScriptedEngine, rollout_of

from repl_rl.config import BudgetConfig
from repl_rl.engine import Vocabulary
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool
from repl_rl.rollout.continued import Continuations, continued, first_difference, gone_on
from repl_rl.trajectory import Branch, Compaction, StopReason, Task, Trajectory, read_jsonl, write_jsonl

pytestmark = pytest.mark.more

TASK = Task("t", "What?", "3")
COUNTING = (
    " x = 1\n",
    " # x is to be 3\n",
    " for i in range(2):\n",
    "     x += 1\n",
    " \n",
    " submit_final_answer(x)\n",
)
SUBMITS: Callable[[str, int], str] = lambda text, number: " submit_final_answer(x)\n"  # noqa: E731
BUDGET = BudgetConfig(lines=8, tokens=400, repeats=None)


async def typed(vocabulary: Vocabulary, pool: KernelPool, lines: Sequence[str], **given: Any) -> Trajectory:
    rollout = rollout_of(ScriptedEngine(vocabulary, lines), pool, vocabulary=vocabulary, budget=BUDGET, **given)
    [session] = await rollout.many([TASK])
    return session


async def go_on(
    vocabulary: Vocabulary,
    pool: KernelPool,
    recorded: Trajectory,
    n: int = 2,
    line: Callable[[str, int], str] = SUBMITS,
    **given: Any,
) -> Continuations:
    policy = Policy(vocabulary, line)
    given = {"budget": BUDGET, "context_tokens": 4096} | given
    rollout = rollout_of(policy, pool, vocabulary=vocabulary, **given)
    return await continued(rollout, TASK, recorded, n)


async def test_values_are_those_of_the_state_before_each_line(
    vocabulary: Vocabulary, pool: KernelPool, tmp_path: Any
) -> None:
    """Submitting `x` is right where it is 3: after the loop. From the prompt there is no `x`, and inside of the block
    nothing can begin."""
    session = await typed(vocabulary, pool, COUNTING)
    write_jsonl(tmp_path / "rollouts.jsonl", [session])
    [recorded] = read_jsonl(tmp_path / "rollouts.jsonl")
    went_on = await go_on(vocabulary, pool, recorded)
    assert went_on.differs_at is None
    assert went_on.values(TASK) == (0.0, 0.0, 0.0, None, None, 1.0, 1.0)
    assert [len(sessions) for sessions in went_on.after] == [2, 2, 2, 0, 0, 2]
    for known, sessions in enumerate(went_on.after):
        for each in sessions:
            assert each.prompt_ids == recorded.prompt_ids
            assert [line.text for line in each.lines[:known]] == [line.text for line in recorded.lines[:known]]
            assert each.lines[known].text == " submit_final_answer(x)\n"
    assert {each.stop_reason for each in went_on.after[0]} == {StopReason.MAX_LINES}


async def test_a_value_is_a_mean_of_grades(vocabulary: Vocabulary, pool: KernelPool) -> None:
    recorded = await typed(vocabulary, pool, [" x = 1\n", " submit_final_answer(3)\n"])
    grades = iter([1.0, 0.0, 0.5, 1.0] * 2 + [0.25])
    went_on = await go_on(vocabulary, pool, recorded, n=4, line=lambda text, number: " submit_final_answer(7)\n")
    assert went_on.values(TASK, lambda task, answer: next(grades)) == (0.625, 0.625, 0.25)


async def test_nothing_goes_on_from_a_line_that_does_something_else(vocabulary: Vocabulary, pool: KernelPool) -> None:
    lines = [" x = 3\n", " import time; time.perf_counter_ns()\n", " x\n", " submit_final_answer(x)\n"]
    recorded = await typed(vocabulary, pool, lines)
    went_on = await go_on(vocabulary, pool, recorded)
    assert went_on.differs_at == 1
    assert went_on.values(TASK) == (0.0, 1.0, None, None, 1.0)


async def test_a_hidden_difference_is_one_too(vocabulary: Vocabulary, pool: KernelPool) -> None:
    """The line shows nothing, and only the state says that it did something else. What could not begin after it begins
    at the prompt."""
    lines = [" import time; x = time.perf_counter_ns()\n", " y = 1\n", " submit_final_answer(3)\n"]
    went_on = await go_on(vocabulary, pool, await typed(vocabulary, pool, lines))
    assert went_on.differs_at == 0
    assert [bool(sessions) for sessions in went_on.after] == [True, False, False]


@pytest.mark.parametrize("lines", [(" x = 3\n",), (" x = 3\n", ""), (" x = 3\n", " # " + "a" * 300 + "\n")])
async def test_sessions_that_ended_without_an_answer_are_gone_on_from(
    vocabulary: Vocabulary, pool: KernelPool, lines: tuple[str, ...]
) -> None:
    """By a budget, by the end of text, and by a line that was too long."""
    budget = BudgetConfig(lines=len(lines), tokens=400, line_tokens=64, repeats=None)
    engine = ScriptedEngine(vocabulary, lines)
    [recorded] = await rollout_of(engine, pool, vocabulary=vocabulary, budget=budget).many([TASK])
    went_on = await go_on(vocabulary, pool, recorded)
    assert went_on.differs_at is None
    assert went_on.values(TASK) == ((0.0,) if len(lines) == 1 else (0.0, 1.0)) + (0.0,)


async def test_what_cannot_be_gone_on_from_is_said(vocabulary: Vocabulary, pool: KernelPool) -> None:
    recorded = await typed(vocabulary, pool, COUNTING)
    start = recorded.lines[2].start
    for session, n, said in [
        (recorded, 0, "n 0: go on at least once"),
        (replace(recorded, compactions=(Compaction(start, "p", (1,)),)), 2, "was compacted"),
        (replace(recorded, branch=Branch(0, 2, 0.5)), 2, "is a branch of another one; give whole_session"),
        (replace(recorded, prompt_ids=recorded.prompt_ids[1:]), 2, "here it is another one, of"),
        (
            replace(recorded, lines=(), completion_ids=(), sampled_mask=(), logprobs=()),
            2,
            "has no line to go on from",
        ),
    ]:
        with pytest.raises(ConfigError, match=said):
            await go_on(vocabulary, pool, session, n)
    with pytest.raises(ConfigError, match="compact_at"):
        await go_on(vocabulary, pool, recorded, budget=BUDGET.model_copy(update={"compact_at": 0.5}))


async def test_sessions_begin_with_the_recorded_lines_and_go_on_as_they_like(
    vocabulary: Vocabulary, pool: KernelPool
) -> None:
    """Inside of the block as well: the policy ends it, and the loop has run."""
    recorded = await typed(vocabulary, pool, COUNTING)
    policy = Policy(vocabulary, lambda text, number: " \n" if text.endswith("x += 1\n...") else SUBMITS(text, number))
    rollout = rollout_of(policy, pool, vocabulary=vocabulary, budget=BUDGET, context_tokens=4096)
    for line, answer in ((2, ("1",)), (4, ("3",))):
        begun = recorded.at(line)
        assert (begun.stop_reason, begun.answer, len(begun.lines)) == (StopReason.UNFINISHED, None, line)
        for session in await gone_on(rollout, TASK, begun, n=2):
            assert session.answer == answer
            assert session.completion_ids[: len(begun.completion_ids)] == begun.completion_ids
            assert session.logprobs[: len(begun.logprobs)] == begun.logprobs
            assert first_difference(begun, session) is None
            branch = session.as_branch(line, 0, 1 / 3)
            assert branch.branch == Branch(0, line, 1 / 3, "replay")
            assert branch.prompt == recorded.prompt + "".join(each.text + each.output for each in begun.lines)
            whole = branch.whole(recorded)
            assert (whole.prompt, whole.completion_ids) == (session.prompt, session.completion_ids)
            assert whole.lines == recorded.lines[:line] + session.lines[line:]
    with pytest.raises(ConfigError, match="n 0: go on at least once"):
        await gone_on(rollout, TASK, recorded.at(1), n=0)
    with pytest.raises(ConfigError, match="here it is another one, of"):
        await gone_on(rollout, TASK, replace(recorded, prompt_ids=recorded.prompt_ids[1:]).at(1), n=1)
    with pytest.raises(ConfigError, match="is a branch of another one"):
        await gone_on(rollout, TASK, recorded.as_branch(1, 0, 0.5).at(1), n=1)


async def test_lines_that_do_something_else_are_typed_all_the_same_and_named(
    vocabulary: Vocabulary, pool: KernelPool
) -> None:
    lines = [" x = 3\n", " import time; time.perf_counter_ns()\n", " x\n", " submit_final_answer(7)\n"]
    recorded = await typed(vocabulary, pool, lines)
    rollout = rollout_of(Policy(vocabulary, SUBMITS), pool, vocabulary=vocabulary, budget=BUDGET, context_tokens=4096)
    [session] = await gone_on(rollout, TASK, recorded.at(3), n=1)
    assert first_difference(recorded.at(3), session) == 1
    assert [each.text for each in session.lines[:3]] == lines[:3]
    assert session.answer == ("3",)
