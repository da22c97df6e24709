"""Guests look on while sessions are typed, at four moments. They may change what is shown, or end the session.

    class NoGiants(Guest):
        async def after_line(self, session, line):
            if len(line.output) > 10_000:
                session.stop = StopReason.KILLED

A config names them by import path (`guests: [my:NoGiants]`). Each session has guests of its own, made without
arguments, so a guest may remember what it likes of its session. An exception in a guest ends the run.
"""

from typing import Any

from repl_rl.dialect import Turn
from repl_rl.rollout.execute import TurnResult
from repl_rl.trajectory import Line, Trajectory


class Guest:
    """Does nothing at any moment that a subclass does not define. `session` is a `repl_rl.rollout.session.Session`."""

    async def opened(self, session: Any) -> None:
        """The interpreter is ready, and nothing has been typed."""

    async def ran(self, session: Any, turn: Turn, ran: TurnResult) -> TurnResult:
        """A turn has run. The result that this returns is shown to the model and recorded. `session.stop` says whether
        the turn was the last."""
        return ran

    async def after_line(self, session: Any, line: Line) -> None:
        """A line that ran is over, and its output stands in the transcript, unless it was the last (`session.stop`)."""

    async def ended(self, session: Any, trajectory: Trajectory) -> Trajectory:
        """The session is over, its interpreter still there; what is returned is what is left of it. Not called for one
        that was aborted."""
        return trajectory
