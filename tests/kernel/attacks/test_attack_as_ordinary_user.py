"""The same attacks without root: where root runs the tests, this folder runs once more as somebody else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernel.attacks.arena import FROM_FORKS
from kernel.test_ordinary_user import as_an_ordinary_user

FROM_R = "test_attack_from_r.py"


@pytest.mark.skipif(os.geteuid() != 0, reason="the attacks run as an ordinary user anyway")
@pytest.mark.skipif(FROM_FORKS, reason="these attacks are not made from forks")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("test_attack_privileges.py", marks=pytest.mark.more),
        pytest.param(".", marks=pytest.mark.slow),
        pytest.param(FROM_R, marks=[pytest.mark.slow, pytest.mark.timeout(1300)]),
    ],
)
def test_the_attacks_fail_without_root_too(name: str, tmp_path: Path) -> None:
    folder = Path(__file__).parent
    tmp_path.chmod(0o777)
    others = [] if name == FROM_R else ["--ignore", str(folder / FROM_R)]
    done = subprocess.run(
        as_an_ordinary_user(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *others, str(folder / name)]
        ),
        cwd=folder.parents[2],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8", "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
