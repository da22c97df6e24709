"""Who looks on while a session is typed, and in what order."""

import logging
from collections import Counter
from dataclasses import replace

from repl_rl.config import SamplingConfig
from repl_rl.dialect import Turn
from repl_rl.errors import BrokenStateError, ConfigError
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.compact import Compactor
from repl_rl.rollout.execute import TurnResult
from repl_rl.rollout.guest import Guest, GuestSession
from repl_rl.rollout.session import Session
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.rollout.subcalls import SubCalls
from repl_rl.rollout.tree import Root, Trees
from repl_rl.tools.environments import EnvironmentSession
from repl_rl.trajectory import LineKind, StopReason, Trajectory
from repl_rl.utils.user_code import Seam, boundary

_log = logging.getLogger(__name__)


class Environment(Guest):
    """Shows what the environment of the session says after each line, and gives its reward in the end: 0 if what the
    session left behind can't be rewarded."""

    def __init__(self, session: Session, environment: EnvironmentSession) -> None:
        self._session = session
        self._environment = environment

    async def ran(self, session: GuestSession, turn: Turn, ran: TurnResult) -> TurnResult:
        if ran.stop is None:
            try:
                return ran.observing(await self._session.episode.observed(turn))
            except BrokenStateError as failure:
                self._session.lost(failure)
        return ran

    async def ended(self, session: GuestSession, trajectory: Trajectory) -> Trajectory:
        if trajectory.is_void:
            return trajectory
        try:
            verdict = await self._environment.reward(trajectory)
        except BrokenStateError as failure:
            _log.warning("a session earns nothing: %s", failure)
            return replace(trajectory, environment_reward=0.0, error=trajectory.error or str(failure))
        if verdict is None:
            return trajectory
        return replace(trajectory, environment_reward=verdict.grade, environment_reason=verdict.reason or None)


class Asking(Guest):
    """Records what a line, or its environment after it, has asked a model; calls that it has left behind are ended."""

    def __init__(self, subcalls: SubCalls) -> None:
        self._subcalls = subcalls

    async def ran(self, session: GuestSession, turn: Turn, ran: TurnResult) -> TurnResult:
        return replace(ran, subcalls=await self._subcalls.take())


class Repeats(Guest):
    """Ends a session that has so often repeated what gets it nowhere: code that fails in one way, or shows the same,
    calls no tool and changes nothing, at any time; and, in a row, blank lines or one comment."""

    def __init__(self, limit: int, warning: str = "") -> None:
        """A session ends at `limit` repetitions. `warning` is shown after a repetition that is not the last."""
        self._limit = limit
        self._warning = warning
        self._idle_text = ""
        self._idle_in_row = 0
        self._counts = Counter[object]()

    async def ran(self, session: GuestSession, turn: Turn, ran: TurnResult) -> TurnResult:
        if session.stop is not None:
            return ran
        repetitions = self.after(ran, turn.text)
        if repetitions >= self._limit:
            session.end(StopReason.REPEATS)
        elif repetitions > 1:
            return ran.observing(self._warning)
        return ran

    def after(self, ran: TurnResult, text: str) -> int:
        """How often the most repeated part of this line has been there by now."""
        repeatable: list[object] = [(run.cell.source, run.error_message) for run in ran.cells if run.has_failed]
        output = tuple((run.cell.source, run.text) for run in ran.cells if run.text)
        # Equal output is progress if a tool was called or the state changed; without a fingerprint nobody knows.
        if output and not repeatable and not ran.calls and ran.fingerprint is not None:
            repeatable = [(output, ran.fingerprint)]
        self._counts.update(repeatable)

        if ran.kind in (LineKind.BLANK, LineKind.COMMENT):
            idle_text = text.strip()
            if idle_text != self._idle_text:
                self._idle_in_row = 0
            self._idle_in_row += 1
            self._idle_text = idle_text
        elif ran.kind is not LineKind.OPEN:  # a block comes to nothing before it ends
            self._idle_in_row = 0

        repetitions = self._idle_in_row
        for part in repeatable:
            repetitions = max(repetitions, self._counts[part])
        return repetitions


def _warning_of_repeats(session: Session) -> str:
    if not session.setup.in_chat(session.episode.dialect):
        return ""
    texts = getattr(session.episode.dialect, "texts", {})
    return str(texts.get("repeated", ""))


def guests_of(session: Session, root: Root | None = None) -> tuple[Guest, ...]:
    """The guests of a session, in the order in which they are told. `root` forks it."""
    guests: list[Guest] = []
    # The environment is the first to see what a line did, since what is shown has its text.
    if session.episode.environment is not None:
        guests.append(Environment(session, session.episode.environment))
    if session.episode.subcalls is not None:
        guests.append(Asking(session.episode.subcalls))  # after the environment, which may ask as well
    if session.budget.repeats is not None:
        guests.append(Repeats(session.budget.repeats, _warning_of_repeats(session)))
    if session.budget.compact_at is not None:
        guests.append(Compactor(session))
    for guest in session.setup.extensions.guests:
        with boundary(Seam.GUEST, guest):
            guests.append(guest())
    # Forks come last: a branch begins with all that the others have made of a line.
    if root is not None:
        root.session = session
        guests.append(root)
    return tuple(guests)


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
