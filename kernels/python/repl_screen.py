"""Where a session's output goes: to a descriptor as it happens, and into a record of what a terminal would show."""

from __future__ import annotations

import contextlib
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TextIO


class _Tap(io.RawIOBase):
    """The bottom of a text stream: passes bytes on to a descriptor, if it has one, and to the screen's record."""

    def __init__(self, name: str, descriptor: int | None, record: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self.name = f"<{name}>"
        self._channel = name
        self._descriptor = descriptor
        self._record = record
        self.has_descriptor = self.passes_on = descriptor is not None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._descriptor is None:
            return super().fileno()
        return self._descriptor

    def write(self, chunk: Any) -> int:
        written = os.write(self._descriptor, chunk) if self.passes_on else len(chunk)  # type: ignore[arg-type]  # has_descriptor
        self._record(self._channel, bytes(chunk[:written]))
        return written


def _drop(_channel: str, _chunk: bytes) -> None:
    pass


def _flush(stream: TextIO) -> None:
    try:  # noqa: SIM105 - after every line, and `suppress` takes longer than the flush
        stream.flush()
    except Exception:  # noqa: BLE001 - whatever the session has put there instead of the stream
        pass


class Screen:
    """Standard output and error as a terminal merges them: both line-buffered, in the order of their flushes.

    With `descriptors` (out, err) the bytes also go there at once. Keeps the first `limit_bytes` between two `take`s,
    with the stream that each part came by; what a typed line prints runs no more code of ours than that, so that a line
    that prints deep in a recursion ends where it would with nothing kept.
    """

    def __init__(self, descriptors: tuple[int | None, int | None] = (None, None), limit_bytes: int = 1_000_000) -> None:
        self._parts: list[tuple[str, bytes]] = []
        self._room_bytes = self._limit_bytes = limit_bytes
        self._omitted_bytes = 0
        self._listener: Callable[[str, bytes], None] | None = None
        self._shows_traceback = False
        self.stdin: TextIO = sys.stdin if descriptors[0] is not None else io.StringIO()
        self.stdout = self._stream("stdout", descriptors[0], "strict")
        self.stderr = self._stream("stderr", descriptors[1], "backslashreplace")

    @contextlib.contextmanager
    def heard_by(self, listener: Callable[[str, bytes], None] | None) -> Iterator[None]:
        """Inside the block, hand what is printed to `listener("stdout" or "stderr", bytes)` alone; None drops it."""
        taps = [stream.buffer.raw for stream in (self.stdout, self.stderr)]
        self._listener = listener or _drop
        for tap in taps:
            tap.passes_on = False
        try:
            yield
        finally:
            self._listener = None
            for tap in taps:
                tap.passes_on = tap.has_descriptor

    def keep(self, limit_bytes: int) -> None:
        """Change what is kept between two `take`s."""
        self._room_bytes = self._limit_bytes = limit_bytes

    def begin_traceback(self) -> None:
        """Until the next `take`, what is written to stderr is a traceback."""
        self._shows_traceback = True

    def _stream(self, name: str, descriptor: int | None, errors: str) -> io.TextIOWrapper[io.BufferedWriter[_Tap]]:
        buffer = io.BufferedWriter(_Tap(name, descriptor, self._keep))
        stream = io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, newline="\n", line_buffering=True)
        stream.mode = "w"  # type: ignore[misc]  # as CPython does
        return stream

    def _keep(self, channel: str, chunk: bytes) -> None:
        if self._listener is not None:
            self._listener(channel, chunk)
            return
        kept = chunk[: self._room_bytes]
        self._room_bytes -= len(kept)
        self._omitted_bytes += len(chunk) - len(kept)
        if kept:
            is_traceback = self._shows_traceback and channel == "stderr"
            self._parts.append(("traceback" if is_traceback else channel, kept))

    def flush(self) -> None:
        """Flush as CPython does after each statement: stderr, then stdout. Errors of a broken stream are ignored."""
        for name, own in (("stderr", self.stderr), ("stdout", self.stdout)):
            stream = getattr(sys, name, own)
            _flush(stream)
            if stream is not own:
                _flush(own)

    def take(self) -> tuple[str, int, list[tuple[str, bytes]]]:
        """The text since the last call, the number of bytes that the limit left out of it, and its parts.

        A part is "stdout", "stderr" or "traceback", and bytes.
        """
        parts, omitted_bytes = self._parts, self._omitted_bytes
        self._parts = []
        self._room_bytes, self._omitted_bytes, self._shows_traceback = self._limit_bytes, 0, False
        text = b"".join([chunk for _, chunk in parts]).decode("utf-8", "replace")
        return text, omitted_bytes, parts
