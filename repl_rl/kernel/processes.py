"""Processes: what hangs beneath one, and waiting for an end in an event loop, without polling and without a thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path


async def ended(pidfd: int) -> None:
    """Wait for the end of the process that a pidfd stands for."""
    loop = asyncio.get_running_loop()
    end: asyncio.Future[None] = loop.create_future()
    loop.add_reader(pidfd, _settle, end)
    try:
        await end
    finally:
        loop.remove_reader(pidfd)


async def exited(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child of this process; returns its exit status."""
    if process.poll() is None:
        pidfd = os.pidfd_open(process.pid)
        try:
            await ended(pidfd)
        finally:
            os.close(pidfd)
    return process.wait()


def pid_of(pidfd: int) -> int:
    """The process id of a pidfd's process, as this process sees it; -1 if it is gone."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines())
    return int(fields["Pid"])


def send_signal(pidfd: int, signum: int) -> None:
    """To a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signum)


def kill_family(pids: Sequence[int]) -> None:
    """Kill processes that may be gone already, and the process group of the first."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pids[0], signal.SIGKILL)


def tree(pid: int) -> Iterator[int]:
    """A process and all that it started, as far as it is still there."""
    waiting = [pid]
    while waiting:
        yield (each := waiting.pop())
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):
                waiting += map(int, Path(f"/proc/{each}/task/{task}/children").read_text().split())


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
