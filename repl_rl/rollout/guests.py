"""Who looks on while a session is typed, and in what order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from repl_rl.config import SamplingConfig
from repl_rl.dialect import Turn
from repl_rl.errors import BrokenStateError, ConfigError
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.compact import Compactor
from repl_rl.rollout.execute import TurnResult
from repl_rl.rollout.guest import Guest
from repl_rl.rollout.repeats import Repeats
from repl_rl.rollout.session import Request, Session
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.rollout.start import Start
from repl_rl.rollout.tree import Trees
from repl_rl.trajectory import Trajectory


class Environment(Guest):
    """Shows what the environment of the session says after each line, and gives its reward in the end."""

    async def ran(self, session: Session, turn: Turn, ran: TurnResult) -> TurnResult:
        if ran.stop is None:
            try:
                return ran.observing(await session.episode.observed(turn))
            except BrokenStateError as failure:
                session.lost(failure)
        return ran

    async def ended(self, session: Session, trajectory: Trajectory) -> Trajectory:
        return await session.episode.graded(trajectory)


class Asking(Guest):
    """Records what a line, or its environment after it, has asked a model; calls that it has left behind are ended."""

    async def opened(self, session: Session) -> None:
        assert session.episode.subcalls is not None
        session.episode.subcalls.running_s = lambda: session.seconds

    async def ran(self, session: Session, turn: Turn, ran: TurnResult) -> TurnResult:
        assert session.episode.subcalls is not None
        return ran.asking(await session.episode.subcalls.take())


_ORDER: tuple[Callable[[Session], Guest | None], ...] = (
    lambda session: Environment() if session.episode.environment is not None else None,
    lambda session: Asking() if session.episode.subcalls is not None else None,  # what the environment asks, too
    lambda session: Repeats(session.budget.repeats) if session.budget.repeats is not None else None,
    lambda session: Compactor(session) if session.budget.compact_at is not None else None,
)
"""The environment is the first to see what a line did, since what is shown has its text. Those of the user follow, and
forks come last: a branch begins with all that the others have made of a line."""


def guests_of(session: Session, *last: Guest) -> tuple[Guest, ...]:
    """The guests of a session, in their order, `last` after the user's own."""
    shipped = (guest for make in _ORDER if (guest := make(session)) is not None)
    return (*shipped, *(kind() for kind in session.setup.extensions.guests), *last)


Type = Callable[..., Awaitable[Trajectory]]
"""Types one session: takes a `Request`, where it begins (`Start`), and guests that come last."""


class Plan(Protocol):
    """Where the sessions of a batch begin."""

    async def typed(self, request: Request, type_: Type) -> Trajectory:
        """One session, typed by `type_`."""

    async def close(self) -> None:
        """Give back what no session has taken."""


class Flat:
    """Each begins at its prompt."""

    async def typed(self, request: Request, type_: Type) -> Trajectory:
        return await type_(request, Start())

    async def close(self) -> None:
        pass


def plan_of(batch: RolloutBatch, setup: RolloutSetup, sampling: SamplingConfig) -> Plan:
    """Raises ConfigError if the sessions of the batch can't begin as it says."""
    if batch.branch is None:
        return Flat()
    setup.extensions.require_no_model()
    if setup.budget.compact_at is not None:
        raise ConfigError(
            f"budget.compact_at {setup.budget.compact_at} takes lines out of a transcript that branches would begin "
            "with; leave compact_at or branch out"
        )
    return Trees(batch.branch, batch.tasks, setup.budget.lines, sampling, setup.extensions.grader)
