"""The host's end of a kernel's output: a pipe that both of its output descriptors write to, read as it fills."""

from __future__ import annotations

import asyncio
import os

from repl_rl.kernel.output import HeadAndTail

_CHUNK_BYTES = 1 << 16
_DRAIN_BYTES = 1 << 20


class OutputPipe:
    """Text from the kernel, in the order in which it was written. Belongs to one event loop.

    A line that prints more than `read_bytes` is not read any further: its writes block, and its time runs out.
    The pipe's end is the end of everything in the sandbox: `ended` is done then.
    """

    def __init__(self, keep_bytes: int, read_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._kept = HeadAndTail(keep_bytes)
        self._read_bytes = self._room_bytes = read_bytes
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._is_reading = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._resume()

    @property
    def has_ended(self) -> bool:
        return self.ended.done()

    def close_write_end(self) -> None:
        """To be called once the kernel has inherited it: the pipe ends with its last writer."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def take(self) -> tuple[str, int]:
        """What was written until now, and the number of bytes left out of its middle; makes room for the next line."""
        self._read(_DRAIN_BYTES)
        self.unblock()
        return self._kept.take()

    def unblock(self) -> None:
        """Give the writers room again."""
        self._room_bytes = self._read_bytes
        self._resume()

    def close(self) -> None:
        self._pause()
        self.close_write_end()
        if self._read_fd >= 0:
            os.close(self._read_fd)
            self._read_fd = -1
        self._end()

    def _on_readable(self) -> None:
        self._room_bytes -= self._read(_CHUNK_BYTES)
        if self._room_bytes <= 0:
            self._pause()

    def _read(self, most_bytes: int) -> int:
        count = 0
        while count < most_bytes and self._read_fd >= 0:
            try:
                chunk = os.read(self._read_fd, _CHUNK_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                self._pause()
                self._end()
                break
            self._kept.feed(chunk)
            count += len(chunk)
        return count

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _resume(self) -> None:
        if not self._is_reading and self._read_fd >= 0 and not self.has_ended:
            self._loop.add_reader(self._read_fd, self._on_readable)
            self._is_reading = True

    def _pause(self) -> None:
        if self._is_reading:
            self._loop.remove_reader(self._read_fd)
            self._is_reading = False
