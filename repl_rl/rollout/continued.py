"""Going on from a recorded session: what would have come of it, had the policy typed something else from here on?

    async with open_rollout("qwen-coder-0.5b") as rollout:
        sessions = await gone_on(rollout, task, recorded.at(5), n=8)    # eight sessions that share the first five lines
        went_on = await continued_from_each_line(rollout, task, recorded, n=8)
        went_on.values(task)      # the share of right answers before each line, and what the session came to

`gone_on` runs the recorded lines again in each session. `continued_from_each_line` runs them once, as the root of a
tree (`repl_rl.rollout.tree`), which forks after each of them. What goes on from there is sampled as all sessions are,
so the mean of its grades is a Monte Carlo estimate of V(s): the value of the state that the session was in, with the
policy that `rollout` samples from. The difference of two values is what a line has changed. (Sutton and Barto 2018,
Reinforcement Learning, chapter 5; Kazemnejad et al. 2024, VinePPO, who take such differences as advantages.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from repl_rl.config import BranchConfig, SamplingConfig
from repl_rl.engine import Engine, Finish, SampledLine, Slot, slot_of
from repl_rl.errors import ConfigError, KernelError
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.scoring import graded_by
from repl_rl.rollout.setup import Grader
from repl_rl.rollout.tree import ForkRule, Root
from repl_rl.tasks import grade
from repl_rl.trajectory import Line, LineKind, Task, Trajectory, whole_session


@dataclass(frozen=True, slots=True)
class Continuations:
    """What came of going on from a recorded session of L lines."""

    recorded: Trajectory
    after: tuple[tuple[Trajectory, ...], ...]
    """L of them: `after[k]` are whole sessions that share the first k lines with the recorded one, and are their own
    from there on; `after[0]` begin at the prompt. Empty where none can begin: after a line that leaves a block open,
    and after lines that did something else than when they were recorded."""
    differs_at: int | None
    """The first line that did something else when it ran again; None if there is none."""

    def values(self, task: Task, grader: Grader = grade) -> tuple[float | None, ...]:
        """L + 1 numbers: the mean grade of the sessions that went on after k lines, and last that of the recorded one.

        None where no session went on, or all of those that did were lost. Raises RewardError if the grader fails.
        """
        values: list[float | None] = []
        for sessions in self.after:
            grades = [_grade_of(task, session, grader) for session in sessions if not session.is_void]
            values.append(fmean(grades) if grades else None)
        values.append(_grade_of(task, self.recorded, grader))
        return tuple(values)


async def gone_on(
    rollout: Rollout, task: Task, begun: Trajectory, n: int, sampling: SamplingConfig | None = None
) -> list[Trajectory]:
    """`n` whole sessions that begin with the lines of `begun`, which run again in each; the policy types the rest.

    `rollout` has the dialect, budgets and environment that the session was recorded with. A line may come out otherwise
    than recorded, such as one that asks for the time: `first_difference` says which, and the lines after it are typed
    all the same. `sampling` is that of the rollout, unless it is given.

    Raises ConfigError for a session that can't be gone on from: one that is the branch of another one, or that has
    another prompt than the task has here. Raises what `Rollout.many` raises.
    """
    require_no_branch(begun)
    if n < 1:
        raise ConfigError(f"n {n}: go on at least once")
    engine = BeginsAsRecorded(rollout.engine, begun, rollout.setup.vocabulary.eos_ids)
    retyping = Rollout(engine, rollout.kernels, rollout.setup)
    return await retyping.many([task] * n, sampling)


async def continued_from_each_line(
    rollout: Rollout, task: Task, recorded: Trajectory, n: int, sampling: SamplingConfig | None = None
) -> Continuations:
    """Let the policy go on `n` times after each line of a whole recorded session, and from the prompt.

    `rollout` has the dialect, budgets and environment that the session was recorded with. `sampling` is that of the
    rollout, unless it is given; with seeds (`SamplingConfig.seeded`), equal ones go on alike.

    Raises ConfigError for a session that can't be gone on from: one that was compacted, that is the branch of another
    one, that has no line, or that has another prompt than the task has here. Raises KernelError if the recorded lines
    can't run, and what `Rollout.many` raises.
    """
    _require_whole(recorded, n)
    ends = [line for line in recorded.lines[:-1] if line.kind is not LineKind.OPEN]
    forks = len(ends) + 1  # one is left over: its branches begin at the prompt
    branch = BranchConfig(roots=1, forks=forks, branches=n + 1, at=f"{__name__}:AfterEachLine", skip=())
    engine = RecordedThenSampled(rollout.engine, recorded, rollout.setup.vocabulary.eos_ids)
    retyping = Rollout(engine, rollout.kernels, rollout.setup)
    tree = await retyping.many([task] * branch.group_size, sampling, branch)
    again = tree[0]
    if again.is_void:
        raise KernelError(f"the lines of a session of task {task.id!r} could not run again: {again.error}")
    differs_at = first_difference(recorded, again)
    after: list[list[Trajectory]] = [[] for _ in recorded.lines]
    for session in tree[1:]:
        assert session.branch is not None
        shared_lines = session.branch.line
        if shared_lines < len(after) and (differs_at is None or shared_lines <= differs_at):
            after[shared_lines].append(replace(whole_session(session, tree), branch=None))
    return Continuations(recorded, tuple(map(tuple, after)), differs_at)


continued = continued_from_each_line
"""Its former name."""


class AfterEachLine(ForkRule):
    """Forks after each line after which that is possible, and leaves the last fork to branches from the prompt."""

    def is_due(self, root: Root) -> bool:
        return root.forks_left > 1


class RecordedThenSampled:
    """An engine whose first slot types a recorded session. All others are those of the engine that it stands before."""

    def __init__(self, engine: Engine, recorded: Trajectory, eos_ids: Collection[int]) -> None:
        self._engine = engine
        self._recorded = recorded
        self._eos_ids = eos_ids
        self._is_begun = False

    @property
    def version(self) -> int:
        return self._engine.version

    def slot(self, tokens: int, is_subcall: bool = False) -> AbstractAsyncContextManager[Slot]:
        if not self._is_begun:  # a root asks before its branches do, which wait for it
            self._is_begun = True
            return self._typing()
        return slot_of(self._engine, tokens, is_subcall)

    def close(self) -> None:
        """There is nothing of its own to release."""

    @asynccontextmanager
    async def _typing(self) -> AsyncIterator[Slot]:
        yield _RecordedSlot(self._recorded, self._eos_ids)


class BeginsAsRecorded:
    """An engine all of whose slots begin with the lines of a recorded session, whatever comes of them, and then are
    those of the engine that it stands before."""

    def __init__(self, engine: Engine, begun: Trajectory, eos_ids: Collection[int]) -> None:
        self._engine = engine
        self._begun = begun
        self._eos_ids = eos_ids

    @property
    def version(self) -> int:
        return self._engine.version

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[Slot]:
        async with slot_of(self._engine, tokens, is_subcall) as slot:
            yield slot if is_subcall else _BegunSlot(self._begun, self._eos_ids, slot)

    def close(self) -> None:
        """There is nothing of its own to release."""


class _RecordedSlot:
    """Types the recorded lines, as long as what came before each is what was recorded, and then ends the session."""

    def __init__(self, recorded: Trajectory, eos_ids: Collection[int]) -> None:
        self._recorded = recorded
        self._eos_ids = eos_ids
        self._typed_lines = 0

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        """Raises ConfigError if the session begins with another prompt than the recorded one."""
        recorded = self._recorded
        if not self._typed_lines:
            _require_prompt(recorded, ids)
        end = SampledLine((min(self._eos_ids),), (0.0,), Finish.EOS)
        if self._typed_lines == len(recorded.lines):
            return end
        line = recorded.lines[self._typed_lines]
        if tuple(ids) != recorded.prompt_ids + recorded.completion_ids[: line.start]:
            return end
        self._typed_lines += 1
        return as_sampled(recorded, line, self._eos_ids)


class _BegunSlot:
    """Types the recorded lines, and then whatever `slot` does."""

    def __init__(self, begun: Trajectory, eos_ids: Collection[int], slot: Slot) -> None:
        self._begun = begun
        self._eos_ids = eos_ids
        self._slot = slot
        self._typed_lines = 0

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        """Raises ConfigError if the session begins with another prompt than the recorded one."""
        if not self._typed_lines:
            _require_prompt(self._begun, ids)
        if self._typed_lines == len(self._begun.lines):
            return await self._slot.sample_line(ids, max_tokens, sampling)
        line = self._begun.lines[self._typed_lines]
        self._typed_lines += 1
        return as_sampled(self._begun, line, self._eos_ids)


def _require_prompt(recorded: Trajectory, ids: Sequence[int]) -> None:
    if tuple(ids) != recorded.prompt_ids:
        raise ConfigError(
            f"task {recorded.task_id!r}: the recorded session began with a prompt of {len(recorded.prompt_ids)} "
            f"tokens, and here it is another one, of {len(ids)}; take the config and the model that it was "
            "recorded with"
        )


def as_sampled(recorded: Trajectory, line: Line, eos_ids: Collection[int]) -> SampledLine:
    """A recorded line as an engine had sampled it."""
    line_ids = recorded.completion_ids[line.start : line.end]
    finish = Finish.EOS if line_ids[-1] in eos_ids else Finish.NEWLINE
    if line.kind is LineKind.OVERLONG:
        finish = Finish.LENGTH
    return SampledLine(line_ids, recorded.logprobs[line.start : line.end], finish)


def _require_whole(recorded: Trajectory, n: int) -> None:
    session = f"task {recorded.task_id!r}: the recorded session"
    if n < 1:
        raise ConfigError(f"n {n}: go on at least once")
    if not recorded.lines:
        raise ConfigError(f"{session} has no line to go on from")
    if recorded.compactions:
        raise ConfigError(f"{session} was compacted, so that no session begins with its prompt and lines")
    require_no_branch(recorded)


def require_no_branch(recorded: Trajectory) -> None:
    """Raises ConfigError for the branch of another session, whose first lines it lacks."""
    if recorded.branch is not None and recorded.branch.line:
        raise ConfigError(
            f"task {recorded.task_id!r}: the recorded session is a branch of another one; give "
            "whole_session(branch, group)"
        )


def first_difference(recorded: Trajectory, again: Trajectory) -> int | None:
    """The first line of `recorded` that is missing in another session, or did something else there."""
    for number, line in enumerate(recorded.lines):
        if number >= len(again.lines):
            return number
        is_last = number == len(recorded.lines) - 1
        if _effects(line, is_last) != _effects(again.lines[number], is_last):
            return number
    return None


def _effects(line: Line, is_last: bool) -> object:
    """What a line did. What is shown after the last line of a session does not enter it."""
    cells = [(cell.source, cell.output) for cell in line.cells]
    output = "" if is_last else line.output
    return line.kind, line.error_name, cells, line.fingerprint, output


def _grade_of(task: Task, session: Trajectory, grader: Grader) -> float:
    if session.environment_reward is not None:
        return session.environment_reward
    return graded_by(grader, task, session).grade
