"""The result of a cell, its calls to the host, and the protocols of kernels and of their backends.

All of it is about source text, not tokens. Code that fails is data: an `ExecResult` with a status. Machinery that fails
raises a `KernelError`. A session's reports are not trusted, see `repl_rl.kernel.border`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from repl_rl.trajectory import ToolCall


class ExecStatus(StrEnum):
    """How the execution of a cell ended."""

    OK = "ok"
    ERROR = "error"
    """An exception, or a cell that does not compile."""
    INCOMPLETE = "incomplete"
    """The cell needs another line; nothing was run."""
    TIMEOUT = "timeout"
    """It ran out of time and the interrupt ended it; the interpreter lives on."""
    KILLED = "killed"
    """The interpreter is gone: it exited, it was killed, or it ignored the interrupt."""


class LineLimit(StrEnum):
    """A limit on the time of a line, by its name in `Limits`."""

    LINE_S = "line_s"
    """Its processor time."""
    LINE_WALL_S = "line_wall_s"
    """The time by the clock on the wall: it has waited for longer than it has computed."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What one cell did.

    `output` is what a terminal would have shown, in order: echoes, prints, stderr, tracebacks, and what background
    threads and processes wrote since the last cell. Its middle is missing if `omitted_bytes` is not 0.
    `error_message` is the exception as `traceback.format_exception_only` writes it, with its name and without the last
    newline: "NameError: name 'x' is not defined". None where there is no exception.
    `compiled` is False where the cell itself is not valid Python, unlike code that raises SyntaxError as it runs.
    `answer` is the `repr` of each value handed to `submit_final_answer` in this cell, None without a submission.
    `answer_forms` are their forms (kernels/python/repl_answer.py), each a text or None; None if no value has one.
    `fingerprint` stands for what the session's names are bound to after the cell: sessions with equal state have equal
    ones. None where the kernel gives none.
    `by_machinery` is True for a killed kernel if the machinery around it failed, whatever the cell did.
    `calls` are the tool calls that ended in this cell, as the session reports them: the first 1,000, and none from a
    kernel that does not report them.
    `images` are the PNG files of what the cell drew, see `border.images_of`.
    `limit` is the limit on its time that ended it. A killed kernel has one only if it was killed for that: not if it
    ended by itself, even after it had been interrupted.
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
    images: tuple[bytes, ...] = ()
    answer_forms: tuple[str | None, ...] | None = None
    limit: LineLimit | None = None

    @property
    def told_message(self) -> str | None:
        """`error_message` for a model: it says why a line was interrupted."""
        if self.status is not ExecStatus.TIMEOUT:
            return self.error_message
        reason = "it waited for too long" if self.limit is LineLimit.LINE_WALL_S else "it ran out of time"
        return f"{self.error_message or 'KeyboardInterrupt'}: {reason}"

    @property
    def state_lost(self) -> bool:
        """True if nothing can be run after this cell: the names it defined are gone."""
        return self.status is ExecStatus.KILLED


@dataclass(frozen=True, slots=True)
class HostCall:
    """A session's call of a tool that runs on the host. The arguments are what JSON can hold, and are not checked: code
    that a model typed can send any call."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostReply:
    """The outcome of a `HostCall`: a value that JSON can hold, or the name and the message of an exception.

    The session raises the builtin exception of that name, or else one of a class made for it.
    """

    value: Any = None
    error_name: str | None = None
    error_message: str | None = None


HostCalls = Callable[[HostCall], Awaitable[HostReply]]
"""Answers a call. Cancelled when the session no longer waits for the answer."""


class KernelSession(Protocol):
    """One interpreter, fresh when it is handed out and never used again after its session."""

    async def prepare(self, source: str) -> None:
        """Run set-up code before the first cell, with the module `repl_tools` (kernels/python/repl_tools.py) at hand.

        It shows nothing, its own names are dropped afterwards, and the tools that it binds are not part of the state.
        Raises KernelStartError with what it printed if it fails; the interpreter can't be used after that.
        """

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        """Run one cell, one at a time. `host` answers its calls of host tools; the line's time stands still meanwhile.

        Raises KernelDiedError if the interpreter died before it had run anything, or if an earlier result has said that
        it is gone. If it dies between two cells, the first one is taken to be the cause, and the second one's result
        reports it.
        """


@runtime_checkable
class ForeignSession(KernelSession, Protocol):
    """An interpreter that says what it interprets."""

    @property
    def language(self) -> str:
        """Its name, as the kernel gives it: "python", "R", "gp"."""

    async def is_complete(self, source: str) -> str:
        """Whether it would run `source`, or wait for another line: Jupyter's "complete", "incomplete", "invalid", or
        "unknown" if it does not say."""


class KernelSource(Protocol):
    """Where fresh interpreters come from."""

    def session(self) -> AbstractAsyncContextManager[KernelSession]:
        """A fresh interpreter, gone at exit. Entering waits for one and raises KernelStartError if none comes up."""


@runtime_checkable
class ForkingSource(KernelSource, Protocol):
    """A source whose interpreters can be forked."""

    async def forks(
        self, kernel: KernelSession, stacks: Sequence[AsyncExitStack], *, reseed: bool = False, wait: bool = True
    ) -> Sequence[KernelSession]:
        """Forks of one of its interpreters, one for each stack, with which it ends. Without `wait`, as many as can be
        had at once, one at least. Raises ForkRefusedError if there can be none."""


class Kernel(KernelSession, Protocol):
    """A kernel that the pool holds, before, while and after a session has it."""

    @property
    def is_alive(self) -> bool:
        """False once nothing can be run in it any more."""

    async def can_fork(self) -> str | None:
        """Why it can't be forked exactly now, or None. Raises KernelDiedError if it is gone."""

    async def fork(self, count: int, *, reseed: bool) -> Sequence[Kernel]:
        """`count` forks with its state; with `reseed`, they draw their random states anew. The caller closes them.

        Raises ForkRefusedError with the reason, and lives on then; KernelDiedError if it is gone or does not survive.
        """

    async def open_jupyter(self) -> Path:
        """A Jupyter connection file with which any client on this machine attaches to the live state.

        Raises KernelDiedError if the kernel is gone, KernelError if it has no Jupyter side. A second call returns the
        same file, which is gone with the kernel.
        """

    def memory_mb(self) -> float:
        """Roughly the memory that its processes on this machine hold. Callable from any thread."""

    def excess(self) -> str | None:
        """The resource of which it has more than it may, if Linux can't limit that here. Callable from any thread."""

    def kill(self) -> None:
        """End it at once, whatever runs; `execute` then reports that it was killed."""

    async def close(self) -> None:
        """Kill the kernel with everything that it started, and wait until all of it is gone. May be called twice."""


class Backend(Protocol):
    """Makes a pool's kernels. Opened once, in the event loop that its kernels live in, and closed once.

    `restarts` counts how often the process that makes the kernels died and was replaced.
    """

    restarts: int

    async def open(self, memory_mb: float) -> None:
        """`memory_mb` is the budget of all kernels together.

        Raises ConfigError, DependencyError or SandboxError if no kernel could ever run here as asked.
        """

    async def start(self) -> Kernel:
        """A fresh kernel that answers. Raises KernelStartError if it does not come up. May be called concurrently."""

    async def close(self) -> None:
        """Release everything. The pool has closed all kernels before."""
