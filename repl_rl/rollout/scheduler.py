"""Which trajectories of a batch run, and which wait their turn. Knows neither tokens nor kernels."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

Made = TypeVar("Made")


async def scheduled(
    run: Callable[[int], Coroutine[Any, Any, Made]], count: int, at_once: int | None = None
) -> AsyncGenerator[tuple[int, Made], None]:
    """Index and trajectory of `count` trajectories, as they end. At most `at_once` run at a time (None: all), and they
    begin in the order of their indices.

    `run(index)` makes one. Closing the generator cancels what is still running and waits for it. Raises the first
    failure of `run`.
    """
    slots = asyncio.Semaphore(at_once or count)

    async def run_in_turn(index: int) -> tuple[int, Made]:
        async with slots:  # whose waiters are served in the order in which they came
            return index, await run(index)

    tasks = [asyncio.create_task(run_in_turn(index)) for index in range(count)]
    try:
        for completed in asyncio.as_completed(tasks):
            yield await completed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
