"""Attacks on other processes: signalling, stopping, tracing and outliving them."""

import pytest
from kernel.attacks.arena import KILLED, OK, WAYS, Attack, cases, some
from kernel.attacks.conftest import Arenas, TryOut

from repl_rl.kernel.sandbox import SandboxKind


@pytest.mark.parametrize(("kind", "attack"), cases("processes"))
def test_other_processes_are_out_of_reach(kind: SandboxKind, attack: Attack, try_out: TryOut) -> None:
    try_out(kind, attack)


OUTLIVING, ENDS = WAYS["outliving"], WAYS["ends"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", some(OUTLIVING))
def test_nothing_outlives_its_session(way: str, end: str, arenas: Arenas) -> None:
    counted = "sum(name.isdigit() for name in os.listdir('/proc'))"
    _, count, last = arenas("bwrap").attack(OUTLIVING[way], counted, ENDS[end])
    assert int(count.output) > 1
    assert last.status is (OK if end == "closed" else KILLED)
