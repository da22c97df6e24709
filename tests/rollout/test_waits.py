"""When a session waited for what: all of it is kept if a batch asks for it, and it is one timeline."""

from collections.abc import Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest
from growing import SEEDED, TASK, Policy, lines_so_far
from scripted import ScriptedEngine, failing_kernels, rollout_of
from timelines import check_nesting, check_session

from repl_rl.config import BranchConfig, BudgetConfig
from repl_rl.engine import Vocabulary
from repl_rl.kernel import KernelPool
from repl_rl.rollout import Rollout, RolloutBatch
from repl_rl.trainer.timeline import session_slices
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory

TYPED = [" # Six times seven.\n", " for i in range(2):\n", "     i\n", "\n", " 1 / 0\n", " submit_final_answer(42)\n"]


async def rolled_out(rollout: Rollout, batch: RolloutBatch) -> list[Trajectory]:
    trajectories = {}
    async with aclosing(rollout.as_completed(batch)) as completed:
        async for index, trajectory in completed:
            trajectories[index] = trajectory
    return [trajectories[index] for index in sorted(trajectories)]


def check_waits(trajectory: Trajectory) -> None:
    """They come one after another, are what the times of the session are made of, and nest with its lines."""
    waits = trajectory.waits
    assert all(wait.began_us <= wait.ended_us for wait in waits)
    assert all(earlier.ended_us <= later.began_us for earlier, later in pairwise(waits))
    for name in ("engine", "kernel", "queue"):
        of_kind = [wait.ended_us - wait.began_us for wait in waits if wait.wait == name]
        assert sum(of_kind) == pytest.approx(1e6 * getattr(trajectory, f"{name}_s"), abs=2 * len(waits))
    slices = list(session_slices(trajectory, "a session"))
    check_nesting(slices)
    check_session(slices, trajectory)


def kinds(trajectory: Trajectory) -> list[str]:
    return [f"{wait.wait} {wait.what}".strip() for wait in trajectory.waits]


async def test_each_line_waits_once_for_the_engine_and_for_the_kernel_if_something_runs(
    pool: KernelPool, vocabulary: Vocabulary
) -> None:
    rollout = rollout_of(ScriptedEngine(vocabulary, TYPED), pool, at_once=2)
    tasks = [Task(str(number), "What is 6 * 7?", "42") for number in range(4)]
    trajectories = await rolled_out(rollout, RolloutBatch(tasks, keeps_waits=True))
    for trajectory in trajectories:
        check_waits(trajectory)
        kinds_of_lines = [line.kind for line in trajectory.lines]
        assert kinds_of_lines == ["comment", "open", "open", "statement", "exception", "answer"]
        assert kinds(trajectory) == [
            *("queue turn", "queue slot", "queue kernel"),
            *("engine", "engine", "engine", "engine", "kernel", "engine", "kernel", "engine", "kernel"),
        ]
    assert len({trajectory.waits[0].began_us for trajectory in trajectories}) == 1, "they were asked for together"


async def test_nothing_is_kept_unless_it_is_asked_for(pool: KernelPool, vocabulary: Vocabulary) -> None:
    rollout = rollout_of(ScriptedEngine(vocabulary, TYPED), pool)
    [trajectory] = await rolled_out(rollout, RolloutBatch([Task("t", "What is 6 * 7?", "42")]))
    assert trajectory.waits == ()
    assert "waits" not in trajectory.to_dict()
    assert trajectory.engine_s > 0


async def test_a_line_that_was_cut_off_was_sampled_and_did_not_run(pool: KernelPool, vocabulary: Vocabulary) -> None:
    rollout = rollout_of(ScriptedEngine(vocabulary, [" 1\n", f" {'2' * 40}"]), pool, budget={"line_tokens": 20})
    [trajectory] = await rolled_out(rollout, RolloutBatch([Task("t", "?", "42")], keeps_waits=True))
    assert [line.kind for line in trajectory.lines] == [LineKind.EXPRESSION, LineKind.OVERLONG]
    check_waits(trajectory)
    assert [event["name"] for event in session_slices(trajectory, "t") if event["cat"] == "run"] == ["run"]


@pytest.mark.parametrize(
    ("broken", "stop"),
    [((1, 0), StopReason.ANSWER), ((1, 2), StopReason.ABORTED), ((9, 0), StopReason.ABORTED)],
)
async def test_a_session_whose_kernel_breaks_has_all_its_lines(
    vocabulary: Vocabulary, broken: tuple[int, int], stop: StopReason
) -> None:
    """Replaced before anything ran; lost after that; and given up after three."""
    rollout = rollout_of(ScriptedEngine(vocabulary, TYPED), failing_kernels(*broken))
    [trajectory] = await rolled_out(rollout, RolloutBatch([Task("t", "What is 6 * 7?", "42")], keeps_waits=True))
    assert trajectory.stop_reason is stop
    check_waits(trajectory)


@pytest.mark.more
@pytest.mark.parametrize("by", ["fork", "replay"])
async def test_branches_wait_for_their_roots_and_roots_for_forks(vocabulary: Vocabulary, by: Any) -> None:
    def line(text: str, number: int) -> str:
        return f" {number}\n" if lines_so_far(text) < 4 else " submit_final_answer(1)\n"

    policy = Policy(vocabulary, line)
    config = BranchConfig(roots=2, forks=1, branches=2, within=2, by=by)
    async with KernelPool(8, sandbox="bwrap") as pool:
        given: dict[str, Any] = {"vocabulary": vocabulary, "budget": BudgetConfig(lines=6, tokens=2000)}
        rollout = rollout_of(policy, pool, at_once=8, **given)
        trajectories = await rolled_out(rollout, RolloutBatch([TASK] * 4, SEEDED, config, keeps_waits=True))
    for trajectory in trajectories:
        check_waits(trajectory)
    assert [trajectory.branch and trajectory.branch.by for trajectory in trajectories] == [None, None, by, by]
    roots, branches = trajectories[:2], trajectories[2:]
    assert all(("kernel fork" in kinds(root)) == (by == "fork") for root in roots)
    assert all("queue root" in kinds(branch) for branch in branches)
    # the lines that a branch runs again are its root's, and no lines of its own
    assert all(("kernel" in before_the_first_line(kinds(branch))) == (by == "replay") for branch in branches)


def before_the_first_line(kinds: Sequence[str]) -> Sequence[str]:
    return kinds[: kinds.index("engine")]


@pytest.mark.more
async def test_compaction_asks_the_kernel_between_lines(pool: KernelPool, vocabulary: Vocabulary) -> None:
    typed = [" total = 0\n", *(f" total += {n}\n" for n in range(40))]
    budget = {"compact_at": 0.9, "lines": 30, "tokens": 5000, "line_tokens": 60, "repeats": None}
    rollout = rollout_of(ScriptedEngine(vocabulary, typed), pool, context_tokens=200, budget=budget)
    [trajectory] = await rolled_out(rollout, RolloutBatch([Task("t", "Add.", "780")], keeps_waits=True))
    assert trajectory.compactions
    assert len(trajectory.lines) == 30
    check_waits(trajectory)
