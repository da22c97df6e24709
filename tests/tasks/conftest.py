"""What tests of problems share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

GYM = Path(__file__).parents[2] / ".venv" / "reasoning_gym"


@pytest.fixture(scope="module")
def reasoning_gym() -> Iterator[None]:
    """`import reasoning_gym` works while this is in use."""
    assert (GYM / "reasoning_gym").is_dir(), f"{GYM} is missing; `make .venv/reasoning_gym/.installed` brings it"
    sys.path.append(str(GYM))
    yield
    sys.path.remove(str(GYM))
