"""The host's end of a session's output: a pipe that both of its output descriptors write to."""

from __future__ import annotations

import asyncio
import os

from repl_rl.kernel.output import HeadAndTail

_CHUNK_BYTES = 1 << 16
_DRAIN_BYTES = 1 << 20


class OutputPipe:
    """Text from the session, in the order in which it was written. Belongs to one event loop.

    It is read when a line is done, and while one runs that has been `watch`ed: short lines cost no wake-up. A line that
    prints more than `read_bytes` is not read any further: its writes block, and its time runs out.
    """

    def __init__(self, keep_bytes: int, read_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._kept = HeadAndTail(keep_bytes)
        self._read_bytes = self._room_bytes = read_bytes
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._is_watching = False

    def close_write_end(self) -> None:
        """To be called once the session has it."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def watch(self) -> None:
        """Read as it fills, until `take`: more than the pipe can hold may come."""
        if not self._is_watching and self._read_fd >= 0:
            self._loop.add_reader(self._read_fd, self._on_readable)
            self._is_watching = True

    def take(self) -> tuple[str, int]:
        """What was written until now, and the number of bytes left out of its middle; makes room for the next line."""
        self._unwatch()
        self._read(_DRAIN_BYTES)
        self._room_bytes = self._read_bytes
        return self._kept.take()

    def unblock(self) -> None:
        """Give the writers room again."""
        self._room_bytes = self._read_bytes
        self.watch()

    def close(self) -> None:
        self._unwatch()
        self.close_write_end()
        if self._read_fd >= 0:
            os.close(self._read_fd)
            self._read_fd = -1

    def _on_readable(self) -> None:
        count = self._read(_CHUNK_BYTES)
        self._room_bytes -= count
        if count == 0 or self._room_bytes <= 0:
            self._unwatch()

    def _read(self, most_bytes: int) -> int:
        count = 0
        while count < most_bytes and self._read_fd >= 0:
            try:
                chunk = os.read(self._read_fd, _CHUNK_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                break
            self._kept.feed(chunk)
            count += len(chunk)
            if len(chunk) < _CHUNK_BYTES:
                break
        return count

    def _unwatch(self) -> None:
        if self._is_watching:
            self._loop.remove_reader(self._read_fd)
            self._is_watching = False
