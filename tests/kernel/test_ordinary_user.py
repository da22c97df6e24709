"""The same walls without root: where root runs the tests, those of the walls run once more as somebody else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repl_rl.kernel.paths import Installation, find_bwrap

ORDINARY_UID = "12345"
MODULES = ("test_isolation.py", "test_limits.py", "test_ordinary_user.py")
SLOW_MODULES = ("test_budget.py", "test_forks.py", "test_guest_kernels.py")
LEFT_OUT = "ignores or sleeping or endless_output or handles or refused"
"""Tests that wait for time to run out, or need no kernel: nothing in them depends on the user."""


def as_an_ordinary_user(command: list[str]) -> list[str]:
    """`command` as a user who owns nothing; the interpreter may lie in a home folder that is closed to others."""
    prefix, home, bwrap = Installation.current().prefix, Path.home(), find_bwrap()
    words = [str(bwrap), "--dev-bind", "/", "/", "--perms", "0755", "--tmpfs", str(home)]
    for parent in reversed([parent for parent in prefix.parents if parent.is_relative_to(home) and parent != home]):
        words += ["--perms", "0755", "--dir", str(parent)]
    if prefix.is_relative_to(home):
        words += ["--ro-bind", str(prefix), str(prefix)]
    return [*words, "--", "setpriv", "--reuid", ORDINARY_UID, "--regid", ORDINARY_UID, "--clear-groups", *command]


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user anyway")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize("modules", [MODULES, pytest.param(SLOW_MODULES, marks=pytest.mark.slow)], ids=" ".join)
def test_the_walls_stand_without_root(modules: tuple[str, ...], tmp_path: Path) -> None:
    folder = Path(__file__).parent
    tmp_path.chmod(0o777)
    done = subprocess.run(
        as_an_ordinary_user(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"not ({LEFT_OUT})"]
            + [str(folder / module) for module in modules]
        ),
        cwd=folder.parent.parent,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8", "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.skipif(os.geteuid() == 0, reason="root runs this through the test above")
def test_this_is_not_root() -> None:
    assert os.geteuid() != 0
    assert os.getuid() == os.geteuid()
