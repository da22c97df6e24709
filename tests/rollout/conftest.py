"""What tests of rollouts share."""

from collections.abc import Callable

import pytest
from vocabularies import nano

from repl_rl.engine import Vocabulary
from repl_rl.kernel import KernelPool, Limits


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return nano()


@pytest.fixture
def pool(kernel_pools: Callable[..., KernelPool]) -> KernelPool:
    """Room for three sandboxed sessions."""
    return kernel_pools(Limits(line_s=60), size=3)
