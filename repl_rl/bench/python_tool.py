"""`python` as someone who trains with TRL would write it: a function that blocks, over a kernel per rollout.

It runs a line as our rollouts do: our dialect reads it, a sandboxed kernel of our pool runs it, and what comes back is
the output and the prompt behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

from repl_rl.config import DialectConfig, KernelConfig
from repl_rl.dialect import CellRun, Dialect, make_dialect
from repl_rl.kernel import KernelSession
from repl_rl.rollout.setup import make_pool
from repl_rl.utils.background import BackgroundLoop


def python(code: str) -> str:
    """Run a line of Python.

    Args:
        code: The line.
    """
    raise NotImplementedError("what TRL's schema is made from; `open_tools` gives the functions that run")


class PythonTool:
    """The `python` of one rollout. Each call takes `latency_s` longer than the cell does."""

    def __init__(self, loop: BackgroundLoop, kernel: KernelSession, dialect: Dialect, latency_s: float) -> None:
        self.calls = 0
        self.seconds = 0.0
        self._loop = loop
        self._kernel = kernel
        self._reader = dialect.reader()
        self._latency_s = latency_s

    def __call__(self, code: str) -> str:
        """The output of the cells that `code` completes, and the next prompt. Raises KernelDiedError."""
        self.calls += 1
        started = time.perf_counter()
        if self._latency_s:
            time.sleep(self._latency_s)
        cells = self._reader.read(code).cells
        runs = [CellRun(cell, self._loop.run(self._kernel.execute(cell.source)).output) for cell in cells]
        self.seconds += time.perf_counter() - started
        return "".join(part.text for part in self._reader.show(runs, goes_on=True))


@contextmanager
def open_tools(count: int, config: KernelConfig, latency_s: float) -> Iterator[Sequence[PythonTool]]:
    """`count` tools whose kernels are up, all gone behind the block. Raises SandboxError where kernels can't run."""
    dialect = make_dialect(DialectConfig())
    stack = AsyncExitStack()

    async def open_sessions() -> list[KernelSession]:
        pool = await stack.enter_async_context(make_pool(config))
        return [await stack.enter_async_context(pool.session()) for _ in range(count)]

    with BackgroundLoop() as loop:
        try:
            yield [PythonTool(loop, kernel, dialect, latency_s) for kernel in loop.run(open_sessions())]
        finally:
            loop.run(stack.aclose())
