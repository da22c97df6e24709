"""Guests look on while sessions are typed, at four moments. They may change what is shown, or end the session.

    class NoGiants(Guest):
        async def after_line(self, session, line):
            if len(line.output) > 10_000:
                session.end(StopReason.KILLED)

A config names them by import path (`guests: [my:NoGiants]`). Each session has guests of its own, made without
arguments, so a guest may remember what it likes of its session. An exception in a guest ends the run.
"""

from collections.abc import Sequence
from typing import Protocol

from repl_rl.config import BudgetConfig
from repl_rl.dialect import Turn
from repl_rl.rollout.execute import TrajectoryKernel, TurnResult
from repl_rl.rollout.state import Prompt
from repl_rl.trajectory import Line, StopReason, Task, Trajectory


class GuestSession(Protocol):
    """What a guest sees of its session: all of it is for reading, and `end` is what it may do."""

    @property
    def task(self) -> Task: ...
    @property
    def prompt(self) -> Prompt:
        """The first prompt, as text and ids."""

    @property
    def lines(self) -> Sequence[Line]:
        """The lines that are over."""

    @property
    def stop(self) -> StopReason | None:
        """Why the session is over, once it is."""

    @property
    def answer(self) -> tuple[str, ...] | None:
        """What was submitted."""

    @property
    def budget(self) -> BudgetConfig: ...
    @property
    def seconds(self) -> float:
        """How much of `budget.seconds` is used."""

    @property
    def tokens_left(self) -> int:
        """How much of `budget.tokens` is left."""

    @property
    def kernel(self) -> TrajectoryKernel:
        """The interpreter. What a guest runs in it is not recorded."""

    def end(self, reason: StopReason) -> None:
        """End the session: nothing is sampled any more. A session that is over keeps its reason."""


class Guest:
    """Does nothing at any moment that a subclass does not define."""

    async def opened(self, session: GuestSession) -> None:
        """The interpreter is ready, and nothing has been typed."""

    async def ran(self, session: GuestSession, turn: Turn, ran: TurnResult) -> TurnResult:
        """A turn has run. The result that this returns is shown to the model and recorded. `session.stop` says whether
        the turn was the last."""
        return ran

    async def after_line(self, session: GuestSession, line: Line) -> None:
        """A line that ran is over, and its output stands in the transcript, unless it was the last (`session.stop`)."""

    async def ended(self, session: GuestSession, trajectory: Trajectory) -> Trajectory:
        """The session is over, its interpreter still there; what is returned is what is left of it. Not called for one
        that was aborted."""
        return trajectory
