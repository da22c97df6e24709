"""Who looks on while a session is typed, and in what order."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from repl_rl.config import SamplingConfig
from repl_rl.dialect import Turn
from repl_rl.errors import BrokenStateError, ConfigError
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.compact import Compactor
from repl_rl.rollout.execute import TurnResult
from repl_rl.rollout.guest import Guest
from repl_rl.rollout.session import Session
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.rollout.tree import Trees
from repl_rl.trajectory import LineKind, StopReason, Trajectory

_log = logging.getLogger(__name__)


class Environment(Guest):
    """Shows what the environment of the session says after each line, and gives its reward in the end: 0 if what the
    session left behind can't be rewarded."""

    async def ran(self, session: Session, turn: Turn, ran: TurnResult) -> TurnResult:
        if ran.stop is None:
            try:
                return ran.observing(await session.episode.observed(turn))
            except BrokenStateError as failure:
                session.lost(failure)
        return ran

    async def ended(self, session: Session, trajectory: Trajectory) -> Trajectory:
        assert session.episode.environment is not None
        if trajectory.is_void:
            return trajectory
        try:
            return replace(trajectory, environment_reward=await session.episode.environment.reward(trajectory))
        except BrokenStateError as failure:
            _log.warning("a session earns nothing: %s", failure)
            return replace(trajectory, environment_reward=0.0, error=trajectory.error or str(failure))


class Asking(Guest):
    """Records what a line, or its environment after it, has asked a model; calls that it has left behind are ended."""

    async def opened(self, session: Session) -> None:
        assert session.episode.subcalls is not None
        session.episode.subcalls.running_s = lambda: session.seconds

    async def ran(self, session: Session, turn: Turn, ran: TurnResult) -> TurnResult:
        assert session.episode.subcalls is not None
        return replace(ran, subcalls=await session.episode.subcalls.take())


class Repeats(Guest):
    """Ends a session that has so often repeated what gets it nowhere: code that fails in one way, or shows the same,
    calls no tool and changes nothing, at any time; and, in a row, blank lines or one comment."""

    def __init__(self, most: int, told: str = "") -> None:
        """`told` is shown after a repetition that is not the last."""
        self._most, self._told = most, told
        self._in_row, self._last = 0, ""
        self._seen = Counter[object]()

    async def ran(self, session: Session, turn: Turn, ran: TurnResult) -> TurnResult:
        times = self.after(ran, turn.text) if session.stop is None else 0
        if times >= self._most:
            session.stop = StopReason.REPEATS
        return ran.observing(self._told) if 1 < times < self._most else ran

    def after(self, ran: TurnResult, text: str) -> int:
        """The most often repeated of these, once a line is over."""
        done: list[object] = [(run.cell.source, run.error_message) for run in ran.cells if run.has_failed]
        shown = tuple((run.cell.source, run.text) for run in ran.cells if run.text)
        if shown and not done and not ran.calls and ran.fingerprint is not None:
            done = [(shown, ran.fingerprint)]
        self._seen.update(done)
        if ran.kind in (LineKind.BLANK, LineKind.COMMENT):
            self._in_row, self._last = (self._in_row + 1 if text.strip() == self._last else 1), text.strip()
        elif ran.kind is not LineKind.OPEN:  # a block comes to nothing before it ends
            self._in_row = 0
        return max([self._in_row, *(self._seen[each] for each in done)])


def _told(session: Session) -> str:
    texts = getattr(session.episode.dialect, "texts", {})
    return str(texts.get("repeated", "")) if session.setup.in_chat(session.episode.dialect) else ""


_ORDER: tuple[Callable[[Session], Guest | None], ...] = (
    lambda session: Environment() if session.episode.environment is not None else None,
    lambda session: Asking() if session.episode.subcalls is not None else None,  # what the environment asks, too
    lambda session: Repeats(session.budget.repeats, _told(session)) if session.budget.repeats is not None else None,
    lambda session: Compactor(session) if session.budget.compact_at is not None else None,
)
"""The environment is the first to see what a line did, since what is shown has its text. Those of the user follow, and
forks come last: a branch begins with all that the others have made of a line."""


def guests_of(session: Session, *last: Guest) -> tuple[Guest, ...]:
    """The guests of a session, in their order, `last` after the user's own."""
    shipped = (guest for make in _ORDER if (guest := make(session)) is not None)
    return (*shipped, *(kind() for kind in session.setup.extensions.guests), *last)


def trees_of(batch: RolloutBatch, setup: RolloutSetup, sampling: SamplingConfig) -> Trees | None:
    """Where the sessions of a batch begin; None if all do at their prompts. Raises ConfigError if they can't."""
    if batch.branch is None:
        return None
    setup.extensions.require_no_model()
    if setup.budget.compact_at is not None:
        raise ConfigError(
            f"budget.compact_at {setup.budget.compact_at} takes lines out of a transcript that branches would begin "
            "with; leave compact_at or branch out"
        )
    return Trees(batch.branch, batch.tasks, setup.budget.lines, sampling, setup.extensions.grader)
