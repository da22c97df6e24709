"""Attacks on time, memory, processes, threads and descriptors: they cost their own line, at most their own session."""

import pytest
from kernel.attacks.arena import KILLED, LIMITS, SHORT, SOON_S, Attack, cases
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
