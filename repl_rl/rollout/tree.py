"""Trees: which sessions of a batch are forked, where, and how a session begins at a fork.

A group of `BranchConfig.group_size` tasks holds its roots first. Root r has the indices `roots + r * n` to
`roots + (r + 1) * n - 1` for its n branches. A session with one of these indices waits until the root forks into it or
has ended.

    roots = 2, forks = 1, branches = 3:     0  1 | 2 3 | 4 5        0 forks into 2 and 3, 1 into 4 and 5

A `ForkRule` says where. Whether a root forks should depend on what has been typed before, and on a random number, never
on what comes after: then the line that it types next is one more sample of the same state, beside those of its
branches. A rule that looks at outcomes gives that up.

A fork of the interpreter is exact, or it is refused (`KernelPool.fork`). Then the branch runs its root's lines again in
a fresh session, and compares whatever they show, and what the names are bound to. If there is a difference, because the
lines asked for the time, say, no branch begins there, and the session begins at the prompt.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import ClassVar

from repl_rl.config import BranchConfig, SamplingConfig, SeededSampling
from repl_rl.errors import ConfigError, ForkRefusedError, KernelDiedError
from repl_rl.rollout.guest import Guest, GuestSession
from repl_rl.rollout.scoring import graded_by
from repl_rl.rollout.session import Fork, ReplayDiffersError, Request, Session, Start
from repl_rl.rollout.setup import Grader
from repl_rl.rollout.state import Prompt, Spent, Wait
from repl_rl.tasks import grade
from repl_rl.trajectory import Branch, Line, LineKind, Task, Trajectory
from repl_rl.utils.import_path import imported
from repl_rl.utils.user_code import Seam, boundary

_log = logging.getLogger(__name__)


class Root(Guest):
    """One session that may be forked, as it goes along."""

    def __init__(self, config: BranchConfig, index: int, most_lines: int, random: Random) -> None:
        """`index` is its own in its group. It types `most_lines` lines at most."""
        self.config = config
        self.index = index
        self.most_lines = most_lines
        self.random = random
        """What it draws depends on the batch's seed, if there is one."""
        self.surprises: list[float] = []
        """The mean of -log p over the tokens of each turn, in nats."""
        self.rule: ForkRule | None = None
        loop = asyncio.get_running_loop()
        self.starts: list[asyncio.Future[Start | None]] = [
            loop.create_future() for _ in range(config.forks * (config.branches - 1))
        ]
        """Where its branches begin, once that is known; None for the prompt."""
        self.session: Session | None = None
        """Set before anything is typed."""
        self._spent: list[Spent] = []
        self._begun = 0

    @property
    def lines(self) -> Sequence[Line]:
        """What it has typed."""
        return () if self.session is None else self.session.lines

    @property
    def forks_left(self) -> int:
        return self.branches_left // (self.config.branches - 1)

    @property
    def branches_left(self) -> int:
        """Branches for which nobody has said yet where they begin."""
        return len(self.starts) - self._begun

    @property
    def fork_points(self) -> list[int]:
        """The turns after which a branch may begin, counted from 1: no block is open, and no kind is skipped."""
        turns = []
        for turn, spent in enumerate(self._spent, 1):
            last_line = self.lines[spent.lines - 1]
            if self._may_fork_after(last_line):
                turns.append(turn)
        return turns

    async def after_line(self, session: GuestSession, line: Line) -> None:
        """Note what the session has spent, and fork it if that is due."""
        root_session = self.session  # a fork takes all of it, not only what guests see
        assert root_session is not None
        if root_session.stop is not None or root_session.is_full:
            return
        transcript = root_session.transcript
        logprobs = transcript.logprobs[line.start : line.end]
        self.surprises.append(-math.fsum(logprobs) / len(logprobs))
        spent = Spent(len(root_session.lines), len(transcript.completion_ids), root_session.clock.running_s)
        self._spent.append(spent)
        if self.is_due():
            await self.fork(root_session)

    def is_due(self) -> bool:
        """Whether to fork after the last line. Asked once after each line, for the random number that may be drawn."""
        if self.rule is None or not self.forks_left or not self.lines or not self._may_fork_after(self.lines[-1]):
            return False
        with boundary(Seam.FORK_RULE, self.rule, "is_due"):
            return self.rule.is_due(self)

    async def fork(self, session: Session) -> None:
        """Let branches begin here, as many as can have one at once with a fork. A session that does not survive this is
        found dead by its next line, as one is that has ended in another way between two lines: what happens to it is
        its own doing.
        """
        starts = [self._start(len(self._spent)) for _ in range(self.config.branches - 1)]
        try:
            if self.config.by == "fork":
                episodes = [await session.episode.fork(start.held) for start in starts]
                kernels = await session.kernel.fork([start.held for start in starts])
                # There may be fewer kernels than branches: the pool forks as many as it has room for.
                for start, episode, kernel in zip(starts, episodes, kernels, strict=False):
                    assert start.branch is not None
                    start.fork = Fork(episode, kernel)
                    start.branch = replace(start.branch, by="fork")
        except (ForkRefusedError, KernelDiedError) as error:
            _log.debug("the branches of root %d run its lines again: %s", self.index, error)
        except BaseException:
            for start in starts:
                await start.held.aclose()
            raise
        for start in starts:
            self._settle(start)

    def begin_branch(self, turn: int) -> None:
        """Let the next branch begin after this turn, one of `fork_points`. It runs the lines up to there again."""
        self._settle(self._start(turn))

    def end(self) -> None:
        """Let all other branches begin at the prompt."""
        while self.branches_left:
            self._settle(None)

    def _may_fork_after(self, line: Line) -> bool:
        return line.kind not in (LineKind.OPEN, *self.config.skip)

    def _start(self, turn: int) -> Start:
        session = self.session
        assert session is not None
        spent = self._spent[turn - 1]
        text = session.prompt.text + "".join(line.text + line.output for line in session.lines[: spent.lines])
        ids = session.transcript.ids[: len(session.prompt.ids) + spent.tokens]
        prompt = Prompt(text, tuple(ids))
        # Each fork divides what its session counts for among the branches that begin there and the root itself.
        forks_before = self._begun // (self.config.branches - 1)
        share = self.config.branches ** -(1 + forks_before)
        branch = Branch(self.index, spent.lines, share, "replay")
        return Start(branch, prompt, tuple(session.turns[:turn]), spent)

    def _settle(self, start: Start | None) -> None:
        self.starts[self._begun].set_result(start)
        self._begun += 1


class ForkRule:
    """Says where the roots of one group fork. `branch.at` names a subclass, which is called with the roots.

    There are two ways: `is_due` forks a root as it goes along; `ended` may call `Root.begin_branch` when sessions are
    over. A root whose branches have not all begun by then has to be told to `end`, or they would wait forever.
    """

    looks_at_outcomes: ClassVar[bool] = False
    """Whether `ended` is given outcomes. A rule that looks at them is biased, and refused with unbiased estimators."""

    def __init__(self, roots: Sequence[Root]) -> None:
        self.roots = roots
        for root in roots:
            root.rule = self

    def is_due(self, root: Root) -> bool:
        """Whether to fork after the line that this root has typed last."""
        return False

    def ended(self, root: Root, is_branch: bool, outcome: float | None) -> None:
        """This root is over, or one of its branches is. There is no `outcome` of sessions that were lost, and of
        branches that could not begin at their line.
        """
        if not is_branch:
            root.end()


class RandomForks(ForkRule):
    """After lines drawn evenly from the first `within` - 1, so that branches begin with one of the lines 2 to `within`.
    A line that may not fork leaves its draw to the next one that may."""

    def is_due(self, root: Root) -> bool:
        within = min(root.config.within or root.most_lines, root.most_lines)
        return root.random.random() * max(1, within - len(root.lines)) < root.forks_left


class EntropyForks(ForkRule):
    """After a line that surprised its policy more than those before it did."""

    def is_due(self, root: Root) -> bool:
        *before, last = root.surprises
        return bool(before) and last > math.fsum(before) / len(before)


FORK_RULES: dict[str, type[ForkRule]] = {"random": RandomForks, "entropy": EntropyForks}
"""The shipped rules, by name."""


def fork_rule(name: str) -> type[ForkRule]:
    """The rule that `branch.at` names. Raises ConfigError."""
    if name in FORK_RULES:
        return FORK_RULES[name]
    rule = imported(name, "branch.at:", "package.module:Class")
    if not (isinstance(rule, type) and issubclass(rule, ForkRule)):
        raise ConfigError(f"branch.at: {name!r} is not a subclass of repl_rl.rollout.ForkRule")
    return rule


class Trees:
    """The roots of a batch, and who waits for them. Raises ConfigError for tasks that don't divide into groups."""

    def __init__(
        self,
        config: BranchConfig,
        tasks: Sequence[Task],
        most_lines: int,
        sampling: SamplingConfig,
        grader: Grader = grade,
    ) -> None:
        """A session types `most_lines` lines at most. Equal seeds in `sampling` make equal draws. `grader` says what
        sessions came to, where no environment does and the rule asks."""
        self.config = config
        self._grader = grader
        size = config.group_size
        if len(tasks) % size:
            raise ConfigError(
                f"{len(tasks)} tasks don't divide into groups of {size}: {config.roots} roots, with {config.forks} "
                f"forks into {config.branches} each; give each task {size} times"
            )
        rule = fork_rule(config.at)

        self._rules: list[ForkRule] = []
        for first in range(0, len(tasks), size):
            roots = []
            for index in range(config.roots):
                seed = None
                if isinstance(sampling, SeededSampling):
                    seed = f"{sampling.of_trajectory(first + index).seed}/fork"
                roots.append(Root(config, index, most_lines, Random(seed)))
            with boundary(Seam.FORK_RULE, rule):
                self._rules.append(rule(roots))

    async def typed(self, request: Request, type_: Callable[..., Awaitable[Trajectory]]) -> Trajectory:
        """One session, typed by `type_(request, start, root)`: a root, or a branch once it is known where it begins.

        Raises RewardError if the grader fails.
        """
        group, index = divmod(request.index, self.config.group_size)
        rule = self._rules[group]
        is_branch = index >= self.config.roots
        root_index = index
        if is_branch:
            branches_of_root = self.config.forks * (self.config.branches - 1)
            root_index, branch = divmod(index - self.config.roots, branches_of_root)
        root = rule.roots[root_index]
        outcome = None
        try:
            if is_branch:
                at_prompt = Start(Branch(root.index, 0, 1.0, "anew"))
                with request.clock.waiting(Wait.QUEUE, "root"):
                    # Shielded, or cancelling this session would cancel the future, which the root has yet to set.
                    start = await asyncio.shield(root.starts[branch])
                try:
                    trajectory = await type_(request, start or at_prompt, None)
                except ReplayDiffersError:
                    trajectory = await type_(request, at_prompt, None)
            else:
                trajectory = await type_(request, Start(), root)
            if self.config.looks_at_outcomes:
                outcome = await self._outcome(request.task, trajectory)
            return trajectory
        finally:
            with boundary(Seam.FORK_RULE, rule, "ended"):
                rule.ended(root, is_branch, outcome)

    async def close(self) -> None:
        """Close the forks that nobody took."""
        for rule in self._rules:
            for root in rule.roots:
                root.end()
                for future in root.starts:
                    start = future.result()
                    if start is not None:
                        await start.held.aclose()

    async def _outcome(self, task: Task, trajectory: Trajectory) -> float | None:
        """What the environment or the grader gives. None for a session that was lost, and for a branch that began at
        the prompt."""
        if trajectory.is_void or (trajectory.branch is not None and not trajectory.branch.line):
            return None
        if trajectory.environment_reward is not None:
            return trajectory.environment_reward
        # in a thread: a user's grader may take its time, and all sessions share the event loop
        verdict = await asyncio.to_thread(graded_by, self._grader, task, trajectory)
        return verdict.grade
