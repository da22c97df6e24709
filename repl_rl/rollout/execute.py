"""A trajectory's kernel, and what a turn does in it.

`Interpreter` replaces the kernel as long as nothing has run in it. `Ran` says what a turn did: the most telling of its
results gives the line its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from repl_rl.dialect import Cell, CellRun, Dialect, Refusal, Turn
from repl_rl.errors import KernelDiedError, KernelError
from repl_rl.kernel import ExecResult, ExecStatus, HostCall, HostCalls, HostReply, KernelSession, KernelSource
from repl_rl.rollout.clock import Clock, Wait
from repl_rl.trajectory import Line, LineKind, RecordedCell, StopReason, ToolCall

_KERNEL_ATTEMPTS = 3
"""Fresh kernels that a trajectory may use up before its first cell has run."""


class Interpreter:
    """The kernel of one trajectory. While no cell has run there is no state to lose, so a failed one is replaced."""

    def __init__(
        self,
        kernels: KernelSource,
        stack: AsyncExitStack,
        clock: Clock | None = None,
        setup: Sequence[str] = (),
        host: HostCalls | None = None,
    ) -> None:
        """`setup` runs in each kernel before its first cell; `host` answers its calls of functions outside."""
        self._kernels = kernels
        self._stack = stack
        self._clock = clock or Clock()
        self._setup = tuple(filter(None, setup))
        self._host = host
        self._kernel: KernelSession | None = None
        self._has_state = False

    async def start(self) -> None:
        """Take a kernel. Raises KernelError if none comes up."""
        with self._clock.waiting(Wait.QUEUE):
            self._kernel = await self._stack.enter_async_context(self._kernels.session())
            for source in self._setup:
                await self._kernel.prepare(source)

    async def execute(self, source: str) -> ExecResult:
        for attempt in range(_KERNEL_ATTEMPTS):
            try:
                if self._kernel is None:
                    await self.start()
                assert self._kernel is not None
                with self._clock.waiting(Wait.KERNEL):
                    result = await self._execute(self._kernel, source)
                if result.by_machinery:
                    raise KernelDiedError("the kernel went down together with what it was forked from")
            except KernelError:
                self._kernel = None
                if self._has_state or attempt + 1 == _KERNEL_ATTEMPTS:
                    raise
            else:
                self._has_state = True
                return result
        raise AssertionError("the last attempt returns or raises")

    async def _execute(self, kernel: KernelSession, source: str) -> ExecResult:
        return await (kernel.execute(source) if self._host is None else kernel.execute(source, self._called))

    async def _called(self, call: HostCall) -> HostReply:
        """A call that leaves the session has happened: its cell is not run again."""
        assert self._host is not None
        self._has_state = True
        return await self._host(call)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a turn did: its kind, what each of its cells showed, and whether that ends the trajectory."""

    kind: LineKind
    cells: tuple[CellRun, ...] = ()
    error_name: str | None = None
    stop: StopReason | None = None
    duration_s: float = 0.0
    fingerprint: str | None = None
    calls: tuple[ToolCall, ...] = ()

    def observing(self, text: str) -> Ran:
        """With what the environment shows, behind the last of the cells."""
        if not text or not self.cells:
            return self
        return replace(self, cells=(*self.cells[:-1], replace(self.cells[-1], observed=text)))

    def as_line(self, start: int, end: int, text: str, shown: str, dialect: Dialect) -> Line:
        """The line of tokens `start:end`, after which `shown` was put in."""
        return Line(
            start,
            end,
            text,
            self.kind,
            self.error_name,
            shown,
            duration_s=self.duration_s,
            fingerprint=self.fingerprint,
            calls=self.calls,
            cells=tuple(RecordedCell(run.cell.source, dialect.plain_output(run)) for run in self.cells),
        )


async def run_turn(interpreter: Interpreter, turn: Turn) -> tuple[Ran, tuple[str, ...] | None]:
    """Run the cells of a turn, in order, until one submits an answer or is killed; the answer stands beside it."""
    results: list[tuple[Cell, ExecResult]] = []
    for cell in turn.cells:
        result = _refused(cell.refusal) if cell.refusal else await interpreter.execute(cell.source)
        results.append((cell, result))
        if _end_of(result) is not None:
            break
    return _summarize(turn, results), results[-1][1].answer if results else None


def _summarize(turn: Turn, results: Sequence[tuple[Cell, ExecResult]]) -> Ran:
    """The most telling result gives the turn its kind; the outputs are joined in order."""
    if not results:
        return Ran(turn.idle_kind if turn.answer is None else LineKind.ANSWER)
    kinds = [_kind(cell, result) for cell, result in results]
    telling = max(range(len(kinds)), key=lambda index: _RANK[kinds[index]])
    return Ran(
        kinds[telling],
        tuple(CellRun(cell, result.output, _told(result)) for cell, result in results),
        results[telling][1].error_name,
        _end_of(results[-1][1]),
        sum(result.duration_s for _, result in results),
        results[-1][1].fingerprint,
        tuple(call for _, result in results for call in result.calls),
    )


def _told(result: ExecResult) -> str | None:
    """What the exception says; of an interrupt, why it came."""
    if result.status is not ExecStatus.TIMEOUT:
        return result.error_message
    return f"{result.error_message or 'KeyboardInterrupt'}: it ran out of time"


def _refused(refusal: Refusal) -> ExecResult:
    """What stands for the run of a cell that was not run."""
    name, message = refusal.error_name, refusal.message
    return ExecResult(ExecStatus.ERROR, error_name=name, compiled=False, error_message=message)


def _kind(cell: Cell, result: ExecResult) -> LineKind:
    if result.answer is not None:
        return LineKind.ANSWER
    if not result.compiled:
        return LineKind.SYNTAX_ERROR
    by_status = {
        ExecStatus.TIMEOUT: LineKind.TIMEOUT,
        ExecStatus.KILLED: LineKind.KILLED,
        ExecStatus.ERROR: LineKind.EXCEPTION,
    }
    return by_status.get(result.status, cell.kind)


def _end_of(result: ExecResult) -> StopReason | None:
    if result.answer is not None:
        return StopReason.ANSWER
    return StopReason.KILLED if result.status is ExecStatus.KILLED else None


_RANK = {
    kind: rank
    for rank, kind in enumerate(
        (
            LineKind.BLANK,
            LineKind.COMMENT,
            LineKind.OPEN,
            LineKind.STATEMENT,
            LineKind.EXPRESSION,
            LineKind.SYNTAX_ERROR,
            LineKind.EXCEPTION,
            LineKind.TIMEOUT,
            LineKind.KILLED,
            LineKind.ANSWER,
            LineKind.OVERLONG,
        )
    )
}
