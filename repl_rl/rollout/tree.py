"""Trees: which sessions of a batch are forked, where, and how a session begins at a fork.

A group of `BranchConfig.group_size` tasks holds its roots first. Root r has the places `roots + r * n` to
`roots + (r + 1) * n - 1` for its branches, n of them, whatever comes of them: whoever has one of these places waits
until the root forks into it or has ended.

    roots = 2, forks = 1, branches = 3:     0  1 | 2 3 | 4 5        0 forks into 2 and 3, 1 into 4 and 5

Whether a root forks depends on what has been typed before, and on a random number of its own, never on what comes
after. So the line that it types next is one more sample of the same state, and its branches' lines are further ones.

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

from repl_rl.config import BranchConfig
from repl_rl.dialect import Reader
from repl_rl.errors import ConfigError, ForkRefusedError
from repl_rl.kernel import KernelSession
from repl_rl.rollout.episode import Episode
from repl_rl.rollout.execute import Interpreter, TurnResult, run_turn
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
            read = reader.read(turn.text, turn.at_eos)
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
        loop = asyncio.get_running_loop()
        self.places: list[asyncio.Future[Start | None]] = [
            loop.create_future() for _ in range(config.forks * (config.branches - 1))
        ]
        self._filled = 0

    def typed(self, turn: Typed, logprobs: Sequence[float]) -> None:
        """Note a turn of the session, and the log-probabilities of its tokens, in nats."""
        self._turns.append(turn)
        self._surprises.append(-math.fsum(logprobs) / len(logprobs))

    def is_due(self, lines: Sequence[Line]) -> bool:
        """Whether to fork after these lines. Asked once after each line, for the random number that it may draw."""
        left = (len(self.places) - self._filled) // (self.config.branches - 1)
        if not left or not lines or lines[-1].kind in (LineKind.OPEN, *self.config.skip):
            return False
        if self.config.at == "entropy":
            *before, last = self._surprises
            return bool(before) and last > math.fsum(before) / len(before)
        return self._random.random() * max(1, self._within - len(lines)) < left

    async def fork(self, state: TrajectoryState, interpreter: Interpreter, episode: Episode) -> None:
        """Let branches begin here. Raises KernelError if the session was lost over it."""
        prompt = Prompt(
            state.prompt.text + "".join(line.text + line.output for line in state.lines), tuple(state.transcript.ids)
        )
        spent = Spent(len(state.lines), len(state.transcript.completion_ids), state.clock.running_s)
        share = self.config.branches ** -(1 + self._filled // (self.config.branches - 1))
        branch = Branch(self._place, len(state.lines), share, "replay")
        starts = [Start(branch, prompt, tuple(self._turns), spent) for _ in range(self.config.branches - 1)]
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

    def end(self) -> None:
        """The session is over: who still waits begins at the prompt."""
        while self._filled < len(self.places):
            self._fill(None)

    def _fill(self, start: Start | None) -> None:
        self.places[self._filled].set_result(start)
        self._filled += 1


async def _fork(starts: Sequence[Start], interpreter: Interpreter, episode: Episode) -> None:
    """Give forks to as many as can have one at once. Raises ForkRefusedError if there are none."""
    around = [await episode.fork(start.held) for start in starts]
    kernels = await interpreter.fork([start.held for start in starts])
    for start, surroundings, kernel in zip(starts, around, kernels, strict=False):
        assert start.branch is not None
        start.fork, start.branch = Fork(surroundings, kernel), replace(start.branch, by="fork")


class Trees:
    """The roots of a batch, and who waits for them. Raises ConfigError for tasks that don't divide into groups."""

    def __init__(self, config: BranchConfig, tasks: Sequence[Task], lines: int, seed: str | None) -> None:
        """`lines` is the most that a session may type. Equal seeds make equal draws; None makes them anew."""
        self.config = config
        size = config.group_size
        if len(tasks) % size:
            raise ConfigError(
                f"{len(tasks)} tasks don't divide into groups of {size}: {config.roots} roots, with {config.forks} "
                f"forks into {config.branches} each; give each task {size} times"
            )
        self._roots = {
            first + place: Root(
                config, place, lines, Random() if seed is None else Random(f"{seed}/{first + place}/fork")
            )
            for first in range(0, len(tasks), size)
            for place in range(config.roots)
        }

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

    def ended(self, index: int) -> None:
        """A session is over. Whoever still waits for one of its forks begins at the prompt."""
        if root := self.root(index):
            root.end()

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
