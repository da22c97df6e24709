"""Trees: which sessions of a batch are forked, where, and how a session begins at a fork.

A group of `BranchConfig.group_size` tasks holds its roots first. Root r has the places `roots + r * n` to
`roots + (r + 1) * n - 1` for its branches, n of them, whatever comes of them: whoever has one of these places waits
until the root forks into it or has ended.

    roots = 2, forks = 1, branches = 3:     0  1 | 2 3 | 4 5        0 forks into 2 and 3, 1 into 4 and 5

Whether a root forks depends on what has been typed before, and on a random number of its own, never on what comes
after. So the line that it types next is one more sample of the same state, and its branches' lines are further ones.

With `at: contrast` it is the other way round: branches begin once their root has ended, one after another, at lines
that bisect it by what came of the one before (`_Bisection`). With `at: pass_rate` they do so if all roots of the group
came to the same.

A fork of the interpreter is exact, or it is refused (`KernelPool.fork`). Then the branch runs its root's lines again in
a fresh session, and compares whatever they show, and what the names are bound to. If there is a difference, because the
lines asked for the time, say, nothing branches off there, and the place types a session from the prompt.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from repl_rl.config import BranchConfig, SamplingConfig, SeededSampling
from repl_rl.dialect import Reader
from repl_rl.errors import ConfigError, ForkRefusedError
from repl_rl.kernel import KernelSession
from repl_rl.rollout.episode import Episode
from repl_rl.rollout.execute import Interpreter, TurnResult, read_turn, run_turn
from repl_rl.rollout.state import NOTHING, Prompt, Spent, TrajectoryState
from repl_rl.trajectory import Branch, Line, LineKind, Task

_log = logging.getLogger(__name__)


class Typed(NamedTuple):
    """One turn of a root, as it was read and as it ran."""

    text: bytes
    at_eos: bool
    ran: TurnResult


class Fork(NamedTuple):
    """A fork of a root's interpreter, and of what is around it."""

    episode: Episode
    kernel: KernelSession


class ReplayDiffersError(Exception):
    """The lines of a root showed something else when they were run again."""


@dataclass(slots=True)
class Start:
    """How a session begins: for a branch, what its root typed, and the fork, if the interpreter could be forked."""

    branch: Branch | None
    prompt: Prompt | None = None
    turns: tuple[Typed, ...] = ()
    spent: Spent = NOTHING
    fork: Fork | None = None
    held: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Closes the fork and its environment. Closing it again does nothing."""

    async def play(self, reader: Reader, interpreter: Interpreter, episode: Episode) -> None:
        """Bring a reader to where the root was, and without a fork interpreter and environment too.

        Raises ReplayDiffersError if the lines, or the environment at the start, show anything else than before.
        """
        asked = episode.prompt.ids
        if self.prompt is not None and self.prompt.ids[: len(asked)] != asked:
            raise ReplayDiffersError
        for turn in self.turns:
            read = await read_turn(reader, interpreter, turn.text, turn.at_eos)
            if self.fork is None:
                again = await run_turn(interpreter, read)
                if again.stop is None:
                    again = again.observing(await episode.observed(read))
                if _seen(again) != _seen(turn.ran):
                    raise ReplayDiffersError
            reader.show(turn.ran.cells, goes_on=True)


def _seen(ran: TurnResult) -> object:
    """What has to be equal."""
    shown = [(run.cell, run.output, run.error_message, run.observed) for run in ran.cells]
    return ran.kind, shown, ran.answer, ran.stop, ran.fingerprint


class Root:
    """The forks of one session, as it goes along."""

    def __init__(self, config: BranchConfig, place: int, lines: int, random: Random) -> None:
        """`place` is its place in the group; `lines` is the most that it may type."""
        self.config = config
        self._place = place
        self._random = random
        self._within = min(config.within or lines, lines)
        self._turns: list[Typed] = []
        self._surprises: list[float] = []
        self._spent: list[Spent] = []
        self._state: TrajectoryState | None = None
        self._bisection: _Bisection | None = None
        loop = asyncio.get_running_loop()
        self.places: list[asyncio.Future[Start | None]] = [
            loop.create_future() for _ in range(config.forks * (config.branches - 1))
        ]
        self._filled = 0

    def typed(self, turn: Typed, logprobs: Sequence[float], state: TrajectoryState) -> None:
        """Note a turn of the session, the log-probabilities of its tokens, in nats, and the state after it."""
        self._turns.append(turn)
        self._surprises.append(-math.fsum(logprobs) / len(logprobs))
        self._spent.append(Spent(len(state.lines), len(state.transcript.completion_ids), state.clock.running_s))
        self._state = state

    def is_due(self, lines: Sequence[Line]) -> bool:
        """Whether to fork after these lines. Asked once after each line, for the random number that it may draw."""
        left = (len(self.places) - self._filled) // (self.config.branches - 1)
        if self.config.looks_at_outcomes or not left or not lines or not self._forks_after(lines[-1]):
            return False
        if self.config.at == "entropy":
            *before, last = self._surprises
            return bool(before) and last > math.fsum(before) / len(before)
        return self._random.random() * max(1, self._within - len(lines)) < left

    async def fork(self, state: TrajectoryState, interpreter: Interpreter, episode: Episode) -> None:
        """Let branches begin here. Raises KernelError if the session was lost over it."""
        starts = [self._start(state, len(self._turns)) for _ in range(self.config.branches - 1)]
        try:
            if self.config.by == "fork":
                await _fork(starts, interpreter, episode)
        except ForkRefusedError as error:
            _log.debug("the branches of task %s run its lines again: %s", state.task.id, error)
        except BaseException:
            for start in starts:
                await start.held.aclose()
            raise
        for start in starts:
            self._fill(start)

    def _forks_after(self, line: Line) -> bool:
        return line.kind not in (LineKind.OPEN, *self.config.skip)

    def _start(self, state: TrajectoryState, turns: int) -> Start:
        """After so many turns; their lines are to run again."""
        spent = self._spent[turns - 1]
        before = state.lines[: spent.lines]
        prompt = Prompt(
            state.prompt.text + "".join(line.text + line.output for line in before),
            tuple(state.transcript.ids[: len(state.prompt.ids) + spent.tokens]),
        )
        share = self.config.branches ** -(1 + self._filled // (self.config.branches - 1))
        return Start(Branch(self._place, spent.lines, share, "replay"), prompt, tuple(self._turns[:turns]), spent)

    def bisect(self, outcome: float) -> None:
        """The session is over, with this outcome: let the first branch begin half way."""
        lines = () if self._state is None else self._state.lines
        turns = [number for number, spent in enumerate(self._spent, 1) if self._forks_after(lines[spent.lines - 1])]
        self._bisection = _Bisection(outcome, turns)
        self._begin_next()

    def compare(self, outcome: float | None) -> None:
        """A branch is over, with this outcome: let the next one begin. Without an outcome, none does."""
        if self._bisection is None or self._filled == len(self.places):
            return
        if outcome is None:
            self.end()
        else:
            self._bisection.compare(outcome)
            self._begin_next()

    def _begin_next(self) -> None:
        assert self._bisection is not None
        turns = self._bisection.turns
        if turns is None or self._state is None:
            self.end()
        else:
            self._fill(self._start(self._state, turns))

    def end(self) -> None:
        """Nothing begins here any more: who still waits begins at the prompt."""
        while self._filled < len(self.places):
            self._fill(None)

    def _fill(self, start: Start | None) -> None:
        self.places[self._filled].set_result(start)
        self._filled += 1


class _Bisection:
    """Looks for the line that decided about a session: the last one before which another outcome can still be had.

    The first branch begins half way. After one that came out differently, the next begins half way towards the end,
    else half way towards the beginning. Once the line is found, all others begin before it.
    """

    def __init__(self, outcome: float, turns: Sequence[int]) -> None:
        """`turns` are the places where a branch may begin, in order."""
        self._outcome = outcome
        self._turns = turns
        self._least, self._end = 0, len(turns)
        self._contrasting: int | None = None

    @property
    def turns(self) -> int | None:
        """After how many turns the next branch begins; None if no place is left at which anything may change."""
        return self._contrasting if self._least == self._end else self._turns[self._middle]

    @property
    def _middle(self) -> int:
        return (self._least + self._end) // 2

    def compare(self, outcome: float) -> None:
        """What came of the branch that began there."""
        if self._least == self._end:
            return
        if outcome != self._outcome:
            self._contrasting, self._least = self._turns[self._middle], self._middle + 1
        else:
            self._end = self._middle


async def _fork(starts: Sequence[Start], interpreter: Interpreter, episode: Episode) -> None:
    """Give forks to as many as can have one at once. Raises ForkRefusedError if there are none."""
    around = [await episode.fork(start.held) for start in starts]
    kernels = await interpreter.fork([start.held for start in starts])
    for start, surroundings, kernel in zip(starts, around, kernels, strict=False):
        assert start.branch is not None
        start.fork, start.branch = Fork(surroundings, kernel), replace(start.branch, by="fork")


class Trees:
    """The roots of a batch, and who waits for them. Raises ConfigError for tasks that don't divide into groups."""

    def __init__(self, config: BranchConfig, tasks: Sequence[Task], lines: int, sampling: SamplingConfig) -> None:
        """`lines` is the most that a session may type. Equal seeds in `sampling` make equal draws."""
        self.config = config
        size = config.group_size
        if len(tasks) % size:
            raise ConfigError(
                f"{len(tasks)} tasks don't divide into groups of {size}: {config.roots} roots, with {config.forks} "
                f"forks into {config.branches} each; give each task {size} times"
            )

        def draws(index: int) -> Random:
            return Random(
                f"{sampling.of_trajectory(index).seed}/fork" if isinstance(sampling, SeededSampling) else None
            )

        self._roots = {
            first + place: Root(config, place, lines, draws(first + place))
            for first in range(0, len(tasks), size)
            for place in range(config.roots)
        }
        self._outcomes: dict[int, float | None] = {}

    def root(self, index: int) -> Root | None:
        """The forks of the session with this index; None if it is a branch."""
        return self._roots.get(index)

    def anew(self, index: int) -> Branch | None:
        """What is recorded of a session that began at the prompt: None for a root."""
        return None if index in self._roots else Branch(self._parent(index), 0, 1.0, "anew")

    async def start(self, index: int) -> Start | None:
        """Where the session with this index begins, once that is known; None at the prompt."""
        if index in self._roots:
            return None
        first = index - index % self.config.group_size
        root = self._roots[first + self._parent(index)]
        place = index - first - self.config.roots
        return await asyncio.shield(root.places[place % len(root.places)])

    def ended(self, index: int, outcome: float | None = None) -> None:
        """A session is over. Whoever still waits for one of its forks begins at the prompt, unless outcomes decide.

        There is no `outcome` of sessions that were lost, and of branches that could not begin at their line.
        """
        root = self.root(index)
        first = index - index % self.config.group_size
        if root is None:
            if self.config.looks_at_outcomes:
                self._roots[first + self._parent(index)].compare(outcome)
        elif outcome is None:
            root.end()
        elif self.config.at == "contrast":
            root.bisect(outcome)
        if root is not None and self.config.at == "pass_rate":
            self._outcomes[index] = outcome
            self._decide(range(first, first + self.config.roots))

    def _decide(self, roots: range) -> None:
        """Once all roots of a group have ended: bisect those of a group that came to the same."""
        if not all(each in self._outcomes for each in roots):
            return
        known = {each: outcome for each in roots if (outcome := self._outcomes[each]) is not None}
        for each, outcome in known.items():
            if len(set(known.values())) == 1:
                self._roots[each].bisect(outcome)
            else:
                self._roots[each].end()

    async def close(self) -> None:
        """Close the forks that nobody took."""
        for root in self._roots.values():
            root.end()
            for place in root.places:
                if (start := place.result()) is not None:
                    await start.held.aclose()

    def _parent(self, index: int) -> int:
        """The place of a branch's root in its group."""
        place = index % self.config.group_size - self.config.roots
        return place // (self.config.forks * (self.config.branches - 1))
