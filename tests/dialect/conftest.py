"""Real kernels for the dialects' sessions."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from dialect.talk import talk
from kernel.conftest import HASTY, LIMITS

from repl_rl.kernel import KernelPool
from repl_rl.rollout.execute import TurnResult
from repl_rl.utils.threads import BackgroundLoop

Talk = Callable[..., tuple[str, list[TurnResult]]]
"""Takes a dialect, turns, and whether the last one ends the text."""


@pytest.fixture(scope="session")
def pool(kernel_pools: Callable[..., KernelPool]) -> KernelPool:
    return kernel_pools(LIMITS, size=2)


@pytest.fixture
def talked(loop: BackgroundLoop, pool: KernelPool) -> Talk:
    """A session on a fresh sandboxed kernel: how it reads, and what each turn did."""
    return lambda dialect, turns, ends=False: loop.run(talk(pool, dialect, turns, ends))


@pytest.fixture
def talked_in_haste(loop: BackgroundLoop, kernel_pools: Callable[..., KernelPool]) -> Talk:
    """The same for turns that end because their processor time does, on a machine as busy as may be."""
    hasty = kernel_pools(replace(HASTY, line_s=0.5, line_wall_s=600.0, grace_s=60.0), size=1)
    return lambda dialect, turns: loop.run(talk(hasty, dialect, turns))
