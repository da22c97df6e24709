"""The same walls without root: where root runs the tests, these and the attacks run once more as somebody else."""

import os
import shlex

import pytest
from kernel.again import assert_passes_without_root, without_root

QUICK = "-k 'not refused' -m 'not slow'"


@without_root
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("options", "names"),
    [
        pytest.param(QUICK, "test_isolation.py test_limits.py test_ordinary_user.py", marks=pytest.mark.more),
        pytest.param(QUICK, "test_budget.py test_forks.py test_guest_kernels.py", marks=pytest.mark.slow),
        pytest.param("", "attacks/test_attack_privileges.py", marks=pytest.mark.more),
        pytest.param("--ignore tests/kernel/attacks/test_attack_from_r.py", "attacks", marks=pytest.mark.slow),
        pytest.param("", "attacks/test_attack_from_r.py", marks=pytest.mark.slow),
    ],
)
def test_the_walls_stand_without_root(options: str, names: str) -> None:
    assert_passes_without_root(*shlex.split(options), *(f"tests/kernel/{name}" for name in names.split()))


@pytest.mark.skipif(os.geteuid() == 0, reason="root runs this through the test above")
def test_this_is_not_root() -> None:
    assert os.geteuid() != 0
    assert os.getuid() == os.geteuid()
