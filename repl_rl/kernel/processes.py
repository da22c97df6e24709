"""Processes seen from an event loop: waiting for their end without polling and without a thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess


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


def send_signal(pidfd: int, signum: int) -> None:
    """To a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signum)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
