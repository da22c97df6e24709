"""What a cell did, and the two protocols that every kernel backend fulfils. Knows source text, no tokens.

Code that fails is data: an `ExecResult` with a status. Machinery that fails raises a `KernelError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class ExecStatus(StrEnum):
    """How the execution of a cell ended, one value per way to end."""

    OK = "ok"
    ERROR = "error"
    """An exception, or a cell that does not compile."""
    INCOMPLETE = "incomplete"
    """The cell needs another line; nothing was run."""
    TIMEOUT = "timeout"
    """It ran out of time and was interrupted in time; the interpreter lives on."""
    KILLED = "killed"
    """The interpreter is gone: it exited, it was killed, or it ignored the interrupt."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What one cell did.

    `output` is what a terminal would have shown, in order: echoes, prints, stderr, tracebacks, and what background
    threads and processes wrote since the last cell. Its middle is missing if `omitted_bytes` is not 0.
    `compiled` is False where the cell itself is no valid Python, as opposed to code that raises SyntaxError as it runs.
    `answer` is the `repr` of each value handed to `submit_final_answer` in this cell, None without a submission.
    `fingerprint` stands for what the session's names are bound to after the cell: sessions with equal state have equal
    ones. None where the kernel gives none. `by_machinery` says of a killed kernel that the machinery around it failed,
    whatever the cell did.
    """

    status: ExecStatus
    output: str = ""
    error_name: str | None = None
    compiled: bool = True
    answer: tuple[str, ...] | None = None
    duration_s: float = 0.0
    omitted_bytes: int = 0
    fingerprint: str | None = None
    by_machinery: bool = False

    @property
    def state_lost(self) -> bool:
        """True where nothing can be run after this cell: the names it defined are gone."""
        return self.status is ExecStatus.KILLED


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of a function outside, with JSON values."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HostReply:
    """What it returned, a JSON value, or the exception that it raised."""

    value: Any = None
    error_name: str | None = None
    error_message: str | None = None


HostCalls = Callable[[HostCall], Awaitable[HostReply]]


class KernelSession(Protocol):
    """One interpreter, fresh when it is handed out and never used again after its session."""

    async def execute(self, source: str) -> ExecResult:
        """Run one cell. Raises KernelDiedError if the interpreter is gone through no fault of the code that it ran."""


class KernelSource(Protocol):
    """Where fresh interpreters come from."""

    def session(self) -> AbstractAsyncContextManager[KernelSession]:
        """A fresh interpreter, gone at exit. Entering waits for one and raises KernelStartError if none comes up."""
