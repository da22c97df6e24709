"""What the host keeps of a kernel's output: the beginning and the end, within a fixed number of bytes."""

from __future__ import annotations


class HeadAndTail:
    """Bytes go in without end; the first and the last half of `limit_bytes` are kept."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - self._head_bytes
        self.clear()

    def clear(self) -> None:
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

        Bytes that are no UTF-8 are shown as the replacement character, and so are characters cut by the limit.
        """
        self._trim()
        head, tail, dropped = bytes(self._head), bytes(self._tail), self._dropped_bytes
        self.clear()
        if not dropped:
            return (head + tail).decode("utf-8", "replace"), 0
        marker = f"\n... [{dropped} bytes left out] ...\n"
        return head.decode("utf-8", "replace") + marker + tail.decode("utf-8", "replace"), dropped
