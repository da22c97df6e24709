"""Where the packages of `verifiers.txt` lie, a folder that is on no path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_rl.integrations.shared import close_shared_kernels

VERIFIERS = Path(__file__).parents[2] / ".venv" / "verifiers"


@pytest.fixture(scope="module")
def verifiers_path() -> Iterator[Path]:
    """`import verifiers` works while this is in use."""
    assert (VERIFIERS / "verifiers").is_dir(), f"{VERIFIERS} is missing; `make .venv/verifiers/.installed` brings it"
    sys.path.append(str(VERIFIERS))
    yield VERIFIERS
    sys.path.remove(str(VERIFIERS))
    close_shared_kernels()
