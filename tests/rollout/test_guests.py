"""What looks on while a session is typed: at which moments, in which order, and what it may do."""

from dataclasses import replace
from typing import Any

import pytest
from scripted import ScriptedEngine, rollout_of
from vocabularies import nano

from repl_rl.dialect import Turn
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool
from repl_rl.rollout.execute import TurnResult
from repl_rl.rollout.guest import Guest, GuestSession
from repl_rl.rollout.setup import make_extensions
from repl_rl.trajectory import Line, StopReason, Task, Trajectory

LINES = [" x = 6\n", " 1 / 0\n", " submit_final_answer(42)\n"]


class Telling(Guest):
    """Notes what it is told, shows that it was there, and puts its notes into the trajectory."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def opened(self, session: GuestSession) -> None:
        self.told.append(f"opened {len(session.lines)}")

    async def ran(self, session: GuestSession, turn: Turn, ran: TurnResult) -> TurnResult:
        self.told.append(f"ran {ran.kind}")
        return ran.observing(f"seen {ran.cells[-1].observed}\n")

    async def after_line(self, session: GuestSession, line: Line) -> None:
        self.told.append(f"after {session.lines.index(line)} {session.stop}")

    async def ended(self, session: GuestSession, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, error="; ".join([*filter(None, [trajectory.error]), *self.told]))


async def test_each_session_has_guests_of_its_own_which_are_told_of_each_line(pool: KernelPool) -> None:
    rollout = rollout_of(ScriptedEngine(nano(), LINES), pool, guests=[Telling, Telling])
    told = "opened 0; ran statement; after 0 None; ran exception; after 1 None; ran answer; after 2 answer"
    for trajectory in await rollout.many([Task("t", "What?", "42")] * 2):
        assert trajectory.lines[0].output == "seen \nseen seen \n\n>>>"
        assert (trajectory.answer, trajectory.error) == (("42",), f"{told}; {told}")


class Ending(Guest):
    """Ends its session after the second line, twice: the first reason stays."""

    async def after_line(self, session: GuestSession, line: Line) -> None:
        if len(session.lines) == 2:
            session.end(StopReason.REPEATS)
            session.end(StopReason.KILLED)


class Setting(Guest):
    """The same by setting `stop`, as guests did before there was `end`."""

    async def after_line(self, session: Any, line: Line) -> None:
        if len(session.lines) == 2:
            session.stop = StopReason.REPEATS


@pytest.mark.parametrize("guest", [Ending, Setting])
async def test_a_guest_ends_its_session(pool: KernelPool, guest: type[Guest]) -> None:
    rollout = rollout_of(ScriptedEngine(nano(), LINES), pool, guests=[guest])
    [trajectory] = await rollout.many([Task("t", "What?", "42")])
    assert (trajectory.stop_reason, len(trajectory.lines), trajectory.answer) == (StopReason.REPEATS, 2, None)


@pytest.mark.parametrize("named", ["test_guests:LINES", Task, len])
def test_what_is_no_guest_is_refused(named: object) -> None:
    with pytest.raises(ConfigError, match=r"guests: .* is not a subclass of repl_rl.rollout.Guest"):
        make_extensions(guests=[named])
