"""The process of a local kernel that no sandbox of ours holds: what it prints, its death, and that of its children.

Such a kernel carries a mark in its environment, which its children inherit whatever session they start: killing all
that carry the mark ends them too. A guard does so when the owner of the kernels dies, SIGKILL included. Not covered:
processes that were given another environment and whose parent has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from repl_rl.kernel.processes import tree

MARK = "REPL_RL_KERNEL"

_CHUNK_BYTES = 1 << 16
_LONGEST_DEATH_S = 5.0
_GUARD = """
trap '' HUP INT TERM
read -r _
for _ in 1 2 3 4 5 6 7 8 9 10; do
  for process in /proc/[0-9]*; do
    grep -qaF "$1" "$process/environ" 2>/dev/null && kill -9 "${process#/proc/}" 2>/dev/null
  done
  sleep 0.1
done
"""


class Guard:
    """Kills every process whose environment holds `text` once the owner of the guard is gone."""

    def __init__(self, text: str) -> None:
        lifeline, self._held = os.pipe()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "repl-rl-guard", text],
            stdin=lifeline,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        os.close(lifeline)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._held)


class Printed:
    """A pipe for what a process prints; `feed` gets it as it comes. Belongs to one event loop."""

    def __init__(self, feed: Callable[[bytes], None]) -> None:
        self._feed = feed
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        asyncio.get_running_loop().add_reader(self._read_fd, self._read)

    def close_write_end(self) -> None:
        """To be called once the process has inherited it."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def drain(self) -> None:
        """Feed what was printed until now."""
        while self._read_fd >= 0 and self._read() == _CHUNK_BYTES:
            pass

    def close(self) -> None:
        self.close_write_end()
        self._close_read_end()

    def _read(self) -> int:
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self._read_fd, _CHUNK_BYTES)
            if chunk:
                self._feed(chunk)
            else:
                self._close_read_end()
            return len(chunk)
        return 0

    def _close_read_end(self) -> None:
        if self._read_fd >= 0:
            asyncio.get_running_loop().remove_reader(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1


def kill_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a child of ours, its descendants and all that carry `mark`; wait until those are gone."""
    family = list(tree(process.pid)) if process.poll() is None else []
    if process.poll() is None:
        process.kill()
    deadline = time.monotonic() + _LONGEST_DEATH_S
    pending = {*family, *_marked(mark)}
    while pending and time.monotonic() < deadline:
        for pid in pending:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
        pending = _marked(mark)


def _marked(mark: str) -> set[int]:
    """A process that is dead has no environment any more."""
    entry = f"{MARK}={mark}\0".encode()
    return {int(folder.parent.name) for folder in Path("/proc").glob("[0-9]*/environ") if entry in _bytes(folder)}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
