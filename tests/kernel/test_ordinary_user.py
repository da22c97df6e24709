"""The same walls without root: where root runs the tests, those of the walls run once more as somebody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kernel.again import assert_passes_without_root, without_root

MODULES = ("test_isolation.py", "test_limits.py", "test_ordinary_user.py")
SLOW_MODULES = ("test_budget.py", "test_forks.py", "test_guest_kernels.py")


@without_root
@pytest.mark.more
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("modules", [MODULES, pytest.param(SLOW_MODULES, marks=pytest.mark.slow)], ids=" ".join)
def test_the_walls_stand_without_root(modules: tuple[str, ...]) -> None:
    paths = [str(Path(__file__).with_name(module)) for module in modules]
    assert_passes_without_root("-k", "not refused", "-m", "not slow", *paths)


@pytest.mark.skipif(os.geteuid() == 0, reason="root runs this through the test above")
def test_this_is_not_root() -> None:
    assert os.geteuid() != 0
    assert os.getuid() == os.geteuid()
