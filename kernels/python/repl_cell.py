"""Runs cells in a process that does other things between them. What applies to cells only is set up around each."""

from __future__ import annotations

import _signal
import os
import resource
import signal

import repl_interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from repl_client import Client
    from repl_fork import Handler

_SIGINT, _SIG_IGN = int(signal.SIGINT), int(signal.SIG_IGN)
_RLIMIT_AS = resource.RLIMIT_AS


class Cells:
    """The cells of one session in this process, whoever asks for them. SIGINT reaches nothing but a running cell."""

    def __init__(self, interpreter: repl_interpreter.PythonInterpreter, memory_bytes: Sequence[int] | None) -> None:
        """`memory_bytes` is the soft and the hard limit on address space, or None."""
        self.interpreter = interpreter
        self._memory_bytes = memory_bytes
        self._handler: Handler = signal.default_int_handler
        self._pid = os.getpid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGRTMAX, _insist)

    def run(self, source: str) -> repl_interpreter.Outcome:
        """The `Outcome` of one cell. Never raises, and never returns in a process that the cell has forked."""
        return self._run(self.interpreter.run, source) or self.interpreter.interrupted()

    def run_for(self, client: Client, source: str) -> repl_interpreter.Outcome:
        """As `run`, for a cell of one of Jupyter's clients."""
        return self._run(lambda source: self.interpreter.run_for(client, source), source) or _interrupted()

    def prepare(self, source: str) -> repl_interpreter.Outcome:
        """As `run`, for set-up code."""
        return self._run(self.interpreter.prepare, source) or _interrupted()

    def _run(self, function: Callable[[str], repl_interpreter.Outcome], source: str) -> repl_interpreter.Outcome | None:
        """The outcome of a cell; None if it was interrupted as it ended."""
        outcome = None
        try:
            self._limit_memory(0)
            try:
                _signal.signal(_SIGINT, self._handler)
                outcome = function(source)
            finally:
                self._handler = _signal.signal(_SIGINT, _SIG_IGN)
                self._limit_memory(1)
        except KeyboardInterrupt:
            _signal.signal(_SIGINT, _SIG_IGN)  # the call of it above may have raised it
            self._limit_memory(1)
        if os.getpid() != self._pid:
            os._exit(0)  # at a terminal it would compete for the input, here it ends
        return outcome

    def _limit_memory(self, soft_index: int) -> None:
        """Set the soft limit to that of a cell (0) or to the hard one (1): the reply after a cell needs memory too."""
        if self._memory_bytes is not None:
            try:  # noqa: SIM105 - twice for every line, and `suppress` takes longer
                resource.setrlimit(_RLIMIT_AS, (self._memory_bytes[soft_index], self._memory_bytes[1]))
            except (OSError, ValueError):  # the session may have lowered its own hard limit
                pass


def _interrupted() -> repl_interpreter.Outcome:
    return repl_interpreter.Outcome(repl_interpreter.ERROR, error_name="KeyboardInterrupt")


def _insist(_number: int, frame: FrameType | None) -> None:
    """Do as on SIGINT, which `os.system` ignores while it waits, so that it is not even pending afterwards."""
    handler = _signal.getsignal(_SIGINT)
    if callable(handler):
        handler(_SIGINT, frame)
