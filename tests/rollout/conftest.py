"""What tests of rollouts share."""

from __future__ import annotations

import pytest

from repl_rl.engine import Vocabulary, load_vocabulary
from repl_rl.models.nano import NANO_PATH


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return load_vocabulary(str(NANO_PATH))
