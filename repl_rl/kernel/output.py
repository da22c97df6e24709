"""What a kernel prints: the pipes that carry it, and what the host keeps of it within a fixed number of bytes.

A pipe belongs to one event loop.
"""

import asyncio
import math
import os

_CHUNK_BYTES = 1 << 16
_DRAIN_BYTES = 1 << 20


class HeadAndTail:
    """Takes any number of bytes and keeps the first and the last of them, half of `limit_bytes` each."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped_bytes = 0

    def feed(self, chunk: bytes) -> None:
        room = self._head_bytes - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._tail_bytes:
            self._trim()

    def _trim(self) -> None:
        surplus = max(0, len(self._tail) - self._tail_bytes)
        del self._tail[:surplus]
        self._dropped_bytes += surplus

    def take(self) -> tuple[str, int]:
        """The text so far, with a marker where bytes are missing, and their number. Empties the buffer.

        Bytes that are not UTF-8 are shown as the replacement character, and so are characters cut by the limit.
        """
        self._trim()
        dropped_bytes = self._dropped_bytes
        if dropped_bytes == 0:
            # Decoded together: a character may lie across the border between the two.
            text = (self._head + self._tail).decode("utf-8", "replace")
        else:
            marker = f"\n... [{dropped_bytes} bytes left out] ...\n"
            text = self._head.decode("utf-8", "replace") + marker + self._tail.decode("utf-8", "replace")
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped_bytes = 0
        return text, dropped_bytes


class OutputPipe:
    """Carries what a process writes to both of its output descriptors to `kept`, in the order in which it was written.

    The process inherits the writing end; `close_write_end` closes it on this side once the process has it.

    The pipe is read when a line is done, and after `watch` also while the line runs; so short lines cost no wake-up. If
    a line prints more than `read_bytes`, the rest is not read: its writes block, and its time runs out.
    """

    def __init__(self, kept: HeadAndTail, read_bytes: float = math.inf) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._kept = kept
        self._read_bytes = read_bytes
        self._room_bytes = read_bytes
        """How much more the current line may print."""
        self._is_watched = False

    def close_write_end(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        self.close_write_end()
        self._unwatch()
        if self._read_fd >= 0:
            os.close(self._read_fd)
            self._read_fd = -1

    def watch(self) -> None:
        """Read as it fills, until `take`: a line may print more than the pipe can hold."""
        if self._read_fd >= 0:
            self._loop.add_reader(self._read_fd, self._on_readable)
            self._is_watched = True

    def take(self) -> tuple[str, int]:
        """The text written until now, and the number of bytes left out of its middle; makes room for the next line."""
        self._unwatch()
        self.drain()
        self._room_bytes = self._read_bytes
        return self._kept.take()

    def unblock(self) -> None:
        """Give the writers room again."""
        self._room_bytes = self._read_bytes
        self.watch()

    def drain(self, most_bytes: int = _DRAIN_BYTES) -> int:
        """Keep what was written until now, and no more than that. Returns the number of bytes."""
        count = 0
        while count < most_bytes and self._read_fd >= 0:
            try:
                chunk = os.read(self._read_fd, _CHUNK_BYTES)
            except BlockingIOError:
                break
            self._kept.feed(chunk)
            count += len(chunk)
            if len(chunk) < _CHUNK_BYTES:
                break
        return count

    def _on_readable(self) -> None:
        count = self.drain(_CHUNK_BYTES)
        self._room_bytes -= count
        if count == 0 or self._room_bytes <= 0:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._is_watched and self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)
        self._is_watched = False
