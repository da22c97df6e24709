"""Real kernels for the dialects' sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from dialect.talk import talk
from kernel.conftest import LIMITS

from repl_rl.dialect import Dialect
from repl_rl.kernel import KernelPool
from repl_rl.rollout.execute import Ran
from repl_rl.utils.background import BackgroundLoop

Talk = Callable[[Dialect, Sequence[str]], tuple[str, list[Ran]]]


@pytest.fixture(scope="session")
def loop() -> Iterator[BackgroundLoop]:
    with BackgroundLoop() as loop:
        yield loop


@pytest.fixture(scope="session")
def pool(loop: BackgroundLoop) -> Iterator[KernelPool]:
    pool = KernelPool(size=2, limits=replace(LIMITS, line_s=4.0), sandbox="bwrap")
    loop.run(pool.__aenter__())
    yield pool
    loop.run(pool.__aexit__(None, None, None))


@pytest.fixture
def talked(loop: BackgroundLoop, pool: KernelPool) -> Talk:
    """A session on a fresh sandboxed kernel: how it reads, and what each turn did."""
    return lambda dialect, turns: loop.run(talk(pool, dialect, turns))
