"""What looks on while a session is typed: at which moments, in which order, and what it may do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import ScriptedEngine
from vocabularies import nano

from repl_rl.dialect import Turn
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool
from repl_rl.rollout.execute import TurnResult
from repl_rl.rollout.guest import Guest
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.session import Session
from repl_rl.rollout.setup import RolloutSetup, make_extensions
from repl_rl.trajectory import Line, StopReason, Task, Trajectory

LINES = [" x = 6\n", " x * 7\n", " 1 / 0\n", " submit_final_answer(42)\n"]


class Telling(Guest):
    """Notes what it is told, shows that it was there, and puts its notes into the trajectory."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def opened(self, session: Session) -> None:
        self.told.append(f"opened {len(session.lines)}")

    async def ran(self, session: Session, turn: Turn, ran: TurnResult) -> TurnResult:
        self.told.append(f"ran {ran.kind}")
        return ran.observing(f"seen {len(session.lines)}\n")

    async def after_line(self, session: Session, line: Line) -> None:
        self.told.append(f"after {session.lines.index(line)} {session.stop}")

    async def ended(self, session: Session, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, error="; ".join(self.told))


class Doubling(Guest):
    """Shows once more what those before it have added to a line."""

    async def ran(self, session: Session, turn: Turn, ran: TurnResult) -> TurnResult:
        return ran.observing("".join(run.observed for run in ran.cells))


async def roll(pool: KernelPool, *guests: type[Guest]) -> list[Trajectory]:
    setup = RolloutSetup(nano(), context_tokens=1024, extensions=make_extensions(guests=guests))
    return await Rollout(ScriptedEngine(nano(), lambda prompt: LINES), pool, setup).many([Task("t", "What?", "42")] * 2)


async def test_each_session_has_guests_of_its_own_which_are_told_of_each_line(pool: KernelPool) -> None:
    for trajectory in await roll(pool, Telling, Doubling):
        shown = [line.output for line in trajectory.lines]
        assert shown[:2] == ["seen 0\nseen 0\n>>>", "42\nseen 1\nseen 1\n>>>"]
        assert trajectory.answer == ("42",)
        assert trajectory.error is not None
        assert trajectory.error.split("; ") == [
            "opened 0",
            *("ran statement", "after 0 None", "ran expression", "after 1 None", "ran exception", "after 2 None"),
            *("ran answer", "after 3 answer"),
        ]


class Hasty(Guest):
    async def after_line(self, session: Session, line: Line) -> None:
        session.stop = StopReason.EOS


async def test_a_guest_ends_a_session(pool: KernelPool) -> None:
    for trajectory in await roll(pool, Hasty):
        assert (len(trajectory.lines), trajectory.stop_reason, trajectory.answer) == (1, StopReason.EOS, None)


@pytest.mark.parametrize("named", ["test_guests:roll", Task, len])
def test_what_is_no_guest_is_refused(named: object) -> None:
    with pytest.raises(ConfigError, match=r"guests: .* is not a subclass of repl_rl.rollout.guest.Guest"):
        make_extensions(guests=[named])
