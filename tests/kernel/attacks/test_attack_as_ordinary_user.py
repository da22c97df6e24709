"""The same attacks without root: where root runs the tests, this folder runs once more as somebody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel.again import assert_passes_without_root, without_root
from kernel.attacks.arena import FROM_FORKS

FROM_R = "test_attack_from_r.py"


@without_root
@pytest.mark.skipif(FROM_FORKS, reason="these attacks are not made from forks")
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("test_attack_privileges.py", marks=pytest.mark.more),
        pytest.param(".", marks=pytest.mark.slow),
        pytest.param(FROM_R, marks=pytest.mark.slow),
    ],
)
def test_the_attacks_fail_without_root_too(name: str) -> None:
    folder = Path(__file__).parent
    others = [] if name == FROM_R else ["--ignore", str(folder / FROM_R)]
    assert_passes_without_root(*others, str(folder / name))
