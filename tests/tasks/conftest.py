"""What tests of problems share."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
GYM = CHECKOUT / ".venv" / "reasoning_gym"
sys.path.append(str(CHECKOUT / "notebooks"))  # the puzzles of the example


@pytest.fixture
def own_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Families of a user's own are in the path."""
    shutil.copy(Path(__file__).with_name("own_families.py.txt"), tmp_path / "own_families.py")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture(scope="module")
def reasoning_gym() -> Iterator[None]:
    """`import reasoning_gym` works while this is in use."""
    assert (GYM / "reasoning_gym").is_dir(), f"{GYM} is missing; `make .venv/reasoning_gym/.installed` brings it"
    sys.path.append(str(GYM))
    yield
    sys.path.remove(str(GYM))
