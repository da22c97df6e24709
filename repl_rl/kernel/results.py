"""What a cell did, what it asks of the host, and the two protocols that every kernel backend fulfils.

Knows source text, no tokens. Code that fails is data: an `ExecResult` with a status. Machinery that fails raises a
`KernelError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from repl_rl.trajectory import ToolCall


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
    `error_message` is the exception as `traceback.format_exception_only` writes it, with its name and without the last
    newline: "NameError: name 'x' is not defined". None where there is no exception.
    `compiled` is False where the cell itself is no valid Python, as opposed to code that raises SyntaxError as it runs.
    `answer` is the `repr` of each value handed to `submit_final_answer` in this cell, None without a submission.
    `fingerprint` stands for what the session's names are bound to after the cell: sessions with equal state have equal
    ones. None where the kernel gives none. `by_machinery` says of a killed kernel that the machinery around it failed,
    whatever the cell did. `calls` are those of tools that ended in this cell, as the session reports them: the first
    1,000, and none where the kernel tells none.
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
    error_message: str | None = None
    calls: tuple[ToolCall, ...] = ()

    @property
    def state_lost(self) -> bool:
        """True where nothing can be run after this cell: the names it defined are gone."""
        return self.status is ExecStatus.KILLED


@dataclass(frozen=True, slots=True)
class HostCall:
    """A session's call of a tool that runs on the host. The arguments are what JSON can hold, and nobody checked them:
    code that a model typed can send any call."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostReply:
    """What became of a `HostCall`: its value, of what JSON can hold, or the name of an exception and what it says.

    The session raises the builtin exception of that name, else one of a class made for it.
    """

    value: Any = None
    error_name: str | None = None
    error_message: str | None = None


HostCalls = Callable[[HostCall], Awaitable[HostReply]]
"""Answers calls. Cancelled when the session no longer waits for it."""


class KernelSession(Protocol):
    """One interpreter, fresh when it is handed out and never used again after its session."""

    async def prepare(self, source: str) -> None:
        """Run set-up code before the first cell, with the module `repl_tools` (kernels/python/repl_tools.py) at hand.

        It shows nothing, its own names go with it, and the tools that it binds are no state. Raises KernelStartError
        with what it printed if it fails; the interpreter is then of no more use.
        """

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        """Run one cell, with `host` to answer its calls of host tools. The line's time stands still during a call.

        Raises KernelDiedError if the interpreter is gone through no fault of the code that it ran.
        """


class KernelSource(Protocol):
    """Where fresh interpreters come from."""

    def session(self) -> AbstractAsyncContextManager[KernelSession]:
        """A fresh interpreter, gone at exit. Entering waits for one and raises KernelStartError if none comes up."""
