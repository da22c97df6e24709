"""Waiting for a condition, with a deadline that a busy machine keeps as well."""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator

DEADLINE_S = 300.0


def until(
    true: Callable[[], object], seconds: float = DEADLINE_S, process: subprocess.Popen[str] | None = None
) -> None:
    """The process has to be alive meanwhile."""
    deadline = time.monotonic() + seconds
    while not true():
        assert process is None or process.poll() is None, process and process.communicate()
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def seeds(seconds: float) -> Iterator[int]:
    """For a test at length: one after another as long as there is time, from $SEED on."""
    began, seed = time.monotonic(), int(os.environ.get("SEED", "0"))
    while time.monotonic() < began + seconds:
        yield seed
        seed += 1


async def until_async(true: Callable[[], object], seconds: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.005)
