"""Attacks on files: filling them, reading the host's, changing what is everybody's."""

import re
from pathlib import Path

import pytest
from kernel.attacks.arena import BOTH, GONE, SECRET, Attack, cases
from kernel.attacks.conftest import Arenas, TryOut

from repl_rl.kernel.sandbox import SandboxKind


@pytest.mark.parametrize(("kind", "attack"), cases("files"))
def test_files_are_limited_and_those_of_others_out_of_reach(kind: SandboxKind, attack: Attack, try_out: TryOut) -> None:
    try_out(kind, attack)


@pytest.mark.parametrize("kind", BOTH)
def test_a_file_of_the_host_can_be_neither_read_nor_changed(kind: str, arenas: Arenas, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text(SECRET)
    [told] = arenas(kind).attack(
        f"p = {str(victim)!r}; [tried(f, p, *a) for f, *a in ((open,), (open, 'a'), (os.remove,), (os.chmod, 0o777),"
        " (os.chown, 1, 1), (os.utime, (1, 1)), (os.setxattr, 'user.x', b''), (os.truncate, 0), (os.rename, p + 'x'))]"
    )
    assert re.fullmatch(rf"\[({GONE}(, )?){{9}}\]", told.output.strip()), told.output
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == (SECRET, 0o644)
    assert victim.stat().st_mtime > 1
