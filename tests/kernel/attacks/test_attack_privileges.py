"""Attacks on the walls themselves: mounts, namespaces, users, capabilities, and the parts of the kernel behind them."""

import platform
import shutil

import pytest
from kernel.attacks.arena import BOTH, OK, SECRET, WAYS, Attack, cases, some
from kernel.attacks.conftest import Arenas, TryOut

from repl_rl.kernel.sandbox import SandboxKind


@pytest.mark.parametrize(("kind", "attack"), cases("privileges"))
def test_the_walls_can_not_be_moved_and_no_privilege_is_there(
    kind: SandboxKind, attack: Attack, try_out: TryOut
) -> None:
    try_out(kind, attack)


PROGRAMS = WAYS["programs"]


@pytest.mark.parametrize("program", some(filter(shutil.which, PROGRAMS)))
def test_programs_give_no_privilege(program: str, arenas: Arenas) -> None:
    asked = f"{PROGRAMS[program].split()!r}, stdin=subprocess.DEVNULL, capture_output=True, text=True"
    judged = "done.returncode != 0"
    if PROGRAMS[program].endswith(" id"):
        judged += " or 'uid=' in done.stdout and 'uid=0' not in done.stdout"
    ran, result = arenas("bwrap").attack(f"program = {program!r}; done = subprocess.run({asked})", judged)
    assert ran.status is OK, ran.output
    assert result.output == "True\n"
    assert SECRET not in ran.output


@pytest.mark.skipif(platform.machine() != "x86_64", reason="int 0x80 is x86")
@pytest.mark.parametrize("kind", BOTH)
def test_the_gate_of_another_architecture_leads_nowhere(kind: str, arenas: Arenas) -> None:
    gate = """page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, 7)
_ = page.write(bytes.fromhex("53 b8 14 00 00 00 cd 80 5b c3"))
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid()"""
    [result] = arenas(kind).attack(gate)
    assert result.output in ("", "False\n") or "Error" in result.output
