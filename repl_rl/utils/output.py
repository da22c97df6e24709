"""Standard output and standard error whose other end goes away: the reader of a pipe, a terminal, room on a disk.

Python raises in whatever happens to print then, and a training run would end without a checkpoint because of a sentence
about its progress. Here what can't be printed to standard output goes to standard error, or nowhere. A command that has
something to lose (`ends_in_order`) is interrupted once, as by Ctrl-C; any other ends.
"""

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TextIO, cast

from repl_rl.errors import OutputError

_GONE = (errno.EPIPE, errno.EIO)
"""A reader that has ended, and a terminal that was closed."""
_blocks: list[object] = []
"""An entry for each block of `ends_in_order` that runs."""


@contextmanager
def ends_in_order() -> Iterator[None]:
    """While the block runs, an interrupt ends it with all that it has done."""
    _blocks.append(None)
    try:
        yield
    finally:
        _blocks.pop()


@contextmanager
def guarded_output() -> Iterator[None]:
    """While the block runs, `sys.stdout` and `sys.stderr` can be written to, whatever becomes of them. One that is
    closed from the start writes nowhere."""
    with ExitStack() as stack:
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            original = getattr(sys, name)
            stream = original
            if stream is None:
                with suppress(OSError):
                    _replace(descriptor, os.devnull)
                stream = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a locale may have no more than ASCII
            stack.callback(setattr, sys, name, original)
            guarded = _Guarded(stream, is_output=name == "stdout")
            setattr(sys, name, cast(TextIO, guarded))
        yield


class _Guarded:
    """A text stream that takes whatever is written."""

    def __init__(self, stream: TextIO, is_output: bool) -> None:
        self._stream = stream
        self._is_output = is_output
        self._is_lost = False

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            if self._is_lost:
                return
            self._is_lost = True
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        with suppress(OSError, io.UnsupportedOperation):
            _replace(self._stream.fileno(), os.devnull)
        if not self._is_output:
            return
        reason = f"standard output can't be written any more: {error.strerror}"
        if not _blocks:
            if error.errno in _GONE:  # as when the reader is `head`: no fault, so no message
                raise SystemExit(1)
            raise OutputError(reason)
        print(f"repl-rl: {reason}; what was done is kept, as after Ctrl-C", file=sys.stderr, flush=True)
        with suppress(OSError, io.UnsupportedOperation):
            os.dup2(sys.stderr.fileno(), self._stream.fileno())
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # else it has been interrupted already
            os.kill(os.getpid(), signal.SIGTERM)


def _replace(descriptor: int, path: str) -> None:
    """Let a descriptor lead to `path`."""
    new_descriptor = os.open(path, os.O_WRONLY)
    if new_descriptor != descriptor:
        os.dup2(new_descriptor, descriptor)
        os.close(new_descriptor)
