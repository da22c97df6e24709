"""What tests of rollouts share."""

from __future__ import annotations

import pytest
from vocabularies import nano

from repl_rl.engine import Vocabulary


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return nano()
