"""Attacks on time, memory, processes, threads and descriptors: they cost their own line, at most their own session."""

from __future__ import annotations

import pytest
from kernel.attacks.arena import BOTH, KILLED, LIMITS, SHORT, SOON_S, Attack, cases
from kernel.attacks.conftest import Arenas, TryOut

from repl_rl.kernel.sandbox import SandboxKind


@pytest.mark.parametrize(("kind", "attack"), cases("time"))
def test_no_limit_can_be_gone_round(kind: SandboxKind, attack: Attack, try_out: TryOut) -> None:
    try_out(kind, attack)


def test_threads_are_limited_where_linux_does_not_count_them(arenas: Arenas) -> None:
    """A small stack takes so little address space that thousands fit."""
    start = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start"
    cells = f"_ = threading.stack_size(32768)\nwhile tried({start}) is None: pass\n", "time.sleep(25)"
    bomb = next(result for result in arenas("sandlock").attack(*cells) if result.state_lost)
    assert (bomb.status, bomb.by_machinery) == (KILLED, False)


@pytest.mark.parametrize("cell", ["while True: os.fork()\n", "os.system(':() { :|:& }; :')"], ids=["python", "shell"])
def test_a_bomb_whose_every_part_goes_on_is_ended_with_its_session(cell: str, arenas: Arenas) -> None:
    [bomb] = arenas("bwrap", SHORT).attack(cell)
    assert bomb.duration_s < SOON_S
    assert len(bomb.output) < LIMITS.output_bytes + 100


@pytest.mark.parametrize("kind", BOTH)
def test_terminals_and_watches_of_others_are_out_of_reach(kind: str, arenas: Arenas) -> None:
    watched = "os.open(os.path.dirname(os.__file__), os.O_RDONLY)"
    ways = (
        "c('inotify_init1', 0)",
        "c('inotify_add_watch', 0, b'/usr', 0xfff)",
        f"tried(fcntl.fcntl, {watched}, 1026, 1)",
        "tried(fcntl.fcntl, os.open(os.__file__, os.O_RDONLY), 1024, 0)",
        "tried(fcntl.fcntl, os.open(os.path.dirname(os.__file__) + '/this.py', os.O_RDONLY), 1024, 1)",
    )
    [told] = arenas(kind).attack(", ".join(ways))
    assert told.output == f"{('EPERM',) * len(ways)}\n"
