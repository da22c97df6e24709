"""Real kernels for the dialects' sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from dialect.talk import talk
from kernel.conftest import HASTY, LIMITS

from repl_rl.dialect import Dialect
from repl_rl.kernel import KernelPool
from repl_rl.rollout.execute import TurnResult
from repl_rl.utils.threads import BackgroundLoop

Talk = Callable[[Dialect, Sequence[str]], tuple[str, list[TurnResult]]]


@pytest.fixture(scope="session")
def pool(kernel_pools: Callable[..., KernelPool]) -> KernelPool:
    return kernel_pools(LIMITS, size=2)


@pytest.fixture
def talked(loop: BackgroundLoop, pool: KernelPool) -> Talk:
    """A session on a fresh sandboxed kernel: how it reads, and what each turn did."""
    return lambda dialect, turns: loop.run(talk(pool, dialect, turns))


@pytest.fixture
def talked_in_haste(loop: BackgroundLoop, kernel_pools: Callable[..., KernelPool]) -> Talk:
    """The same for turns that end because their time does."""
    hasty = kernel_pools(replace(HASTY, grace_s=60.0), size=1)
    return lambda dialect, turns: loop.run(talk(hasty, dialect, turns))
