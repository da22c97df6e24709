"""Tests run once more in a process of their own: without root, or from forks."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from repl_rl.kernel.paths import Installation, find_bwrap

ORDINARY_UID = "12345"
without_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="the tests run as an ordinary user anyway, or setpriv is not installed",
)


def assert_passes(*words: str, environment: dict[str, str], before: list[str] | None = None) -> None:
    """Run pytest with `words`; `before` comes before its command."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*(before or []), *command], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def assert_passes_without_root(*words: str) -> None:
    """As a user who owns nothing; the interpreter may lie in a home folder that is closed to others."""
    prefix, own_home = Installation.current().prefix, Path.home()
    before = [str(find_bwrap()), "--dev-bind", "/", "/", "--perms", "0755", "--tmpfs", str(own_home)]
    for parent in reversed([path for path in prefix.parents if path.is_relative_to(own_home) and path != own_home]):
        before += ["--perms", "0755", "--dir", str(parent)]
    if prefix.is_relative_to(own_home):
        before += ["--ro-bind", str(prefix), str(prefix)]
    before += ["--", "setpriv", "--reuid", ORDINARY_UID, "--regid", ORDINARY_UID, "--clear-groups"]
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        os.chmod(home, 0o777)
        environment = {"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
        assert_passes(*words, environment=environment, before=before)
