"""A trajectory's kernel, and what a turn does in it: the most telling of its results gives the line its kind."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from repl_rl.dialect import AskingReader, Cell, CellRun, Dialect, Reader, Turn
from repl_rl.errors import ConfigError, ForkRefusedError, KernelDiedError, KernelError
from repl_rl.kernel import (
    ExecResult,
    ExecStatus,
    ForeignSession,
    ForkingSource,
    HostCall,
    HostCalls,
    HostReply,
    KernelSession,
    KernelSource,
)
from repl_rl.rollout.state import Clock, Wait
from repl_rl.trajectory import Line, LineKind, RecordedCell, StopReason, SubCall, ToolCall
from repl_rl.utils.user_code import Seam, boundary

_KERNEL_ATTEMPTS = 3
"""Fresh kernels that a trajectory may use up before its first cell has run."""
_MOST_IMAGE_BYTES = 8 << 20
"""How much the images of a trajectory may take together. Images beyond that are not kept."""
_KINDS = {
    ExecStatus.TIMEOUT: LineKind.TIMEOUT,
    ExecStatus.KILLED: LineKind.KILLED,
    ExecStatus.ERROR: LineKind.EXCEPTION,
}
_LEAST_TELLING_FIRST = tuple(LineKind)


class TrajectoryKernel:
    """The kernel of one trajectory. While no cell has run there is no state to lose, so a failed one is replaced."""

    def __init__(
        self,
        kernels: KernelSource,
        stack: AsyncExitStack,
        clock: Clock | None = None,
        setup: Sequence[str] = (),
        host: HostCalls | None = None,
        *,
        dialect_setup: str = "",
    ) -> None:
        """`setup` runs in each kernel before its first cell, after `dialect_setup` if the kernel runs Python.

        `host` answers calls of functions outside the sandbox.
        """
        self._kernels = kernels
        self._session = AsyncExitStack()
        stack.push_async_exit(self._session)
        self._clock = clock or Clock()
        self._setup = setup
        self._dialect_setup = dialect_setup
        self.language = "python"
        """The language of its kernel."""
        self._host = host
        self._kernel: KernelSession | None = None
        self._has_state = False
        self._image_bytes = 0

    async def start(self) -> None:
        """Take a kernel. Raises KernelError if none starts."""
        with self._clock.waiting(Wait.QUEUE, "kernel"):
            await self._session.aclose()  # gives a failed one back to the pool first
            self._kernel = await self._session.enter_async_context(self._kernels.session())
            if isinstance(self._kernel, ForeignSession):
                self.language = self._kernel.language
            sources = list(self._setup)
            if self.language == "python":
                sources.insert(0, self._dialect_setup)
            for source in sources:
                if source:
                    await self._kernel.prepare(source)

    async def is_complete(self, source: str) -> str:
        """What the kernel of another language says of a source (`repl_rl.dialect.foreign`)."""
        if not isinstance(self._kernel, ForeignSession):
            return "unknown"
        with self._clock.waiting(Wait.KERNEL, "is it complete"):
            return await self._kernel.is_complete(source)

    def adopt(self, kernel: KernelSession) -> None:
        """Go on in a kernel in which something has run."""
        self._kernel = kernel
        self._has_state = True

    async def fork(self, stacks: Sequence[AsyncExitStack]) -> Sequence[KernelSession]:
        """Forks of its kernel, as many as the pool has room for, one at least. Each ends with one of the stacks.

        Raises ForkRefusedError, and KernelError if the kernel ended over it.
        """
        if not isinstance(self._kernels, ForkingSource) or self._kernel is None:
            raise ForkRefusedError("these kernels don't fork")
        with self._clock.waiting(Wait.KERNEL, "fork"):
            return await self._kernels.forks(self._kernel, stacks, wait=False)

    async def execute(self, source: str) -> ExecResult:
        """Run a cell. Raises KernelError if the machinery fails after a cell has run, or three times before that."""
        for attempt in range(_KERNEL_ATTEMPTS):
            try:
                if self._kernel is None:
                    await self.start()
                assert self._kernel is not None
                with self._clock.waiting(Wait.KERNEL):
                    if self._host is None:
                        result = await self._kernel.execute(source)
                    else:
                        result = await self._kernel.execute(source, self._answer)
                if result.by_machinery:
                    raise KernelDiedError("the kernel went down together with what it was forked from")
            except KernelError:
                self._kernel = None
                if self._has_state or attempt + 1 == _KERNEL_ATTEMPTS:
                    raise
            else:
                self._has_state = True
                self._image_bytes += sum(len(image) for image in result.images)
                if self._image_bytes > _MOST_IMAGE_BYTES:
                    return replace(result, images=())
                return result
        raise AssertionError("the last attempt returns or raises")

    async def _answer(self, call: HostCall) -> HostReply:
        """Answer a call. A call that left the session can't be undone, so its cell is not run again."""
        assert self._host is not None
        self._has_state = True
        return await self._host(call)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What a turn did: its kind, what each of its cells showed, and whether that ends the trajectory."""

    kind: LineKind
    cells: tuple[CellRun, ...] = ()
    error_name: str | None = None
    answer: tuple[str, ...] | None = None
    stop: StopReason | None = None
    duration_s: float = 0.0
    fingerprint: str | None = None
    calls: tuple[ToolCall, ...] = ()
    answer_forms: tuple[str | None, ...] | None = None
    subcalls: tuple[SubCall, ...] = ()

    def observing(self, text: str) -> TurnResult:
        """A copy with a text that is shown after the last of the cells; "" or whole lines. Nothing if none ran."""
        if not text or not self.cells:
            return self
        *others, last = self.cells
        last = replace(last, observed=last.observed + text)
        return replace(self, cells=(*others, last))

    def as_line(self, start: int, end: int, text: str, shown: str, dialect: Dialect) -> Line:
        """The line of tokens `start:end`, after which `shown` was inserted."""
        with boundary(Seam.DIALECT, dialect, "plain_output"):
            outputs = [dialect.plain_output(run) for run in self.cells]
        cells = []
        for run, output in zip(self.cells, outputs, strict=True):
            cells.append(RecordedCell(run.cell.source, output, run.images, run.cell.span))
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
            subcalls=self.subcalls,
            cells=tuple(cells),
        )


async def read_turn(reader: Reader, kernel: TrajectoryKernel, typed: bytes, end_of_input: bool) -> Turn:
    """Read what was typed. Python is parsed here; kernels of other languages are asked where a cell ends.

    Raises ConfigError if the dialect can't ask.
    """
    language = kernel.language
    if language == "python":
        with boundary(Seam.DIALECT, reader, "read"):
            return reader.read(typed, end_of_input)
    if not isinstance(reader, AskingReader):
        raise ConfigError(
            f"the dialect's {type(reader).__name__} reads Python, and the kernel runs {language}; take dialect.name "
            "python or ipython, whose readers ask the kernel where a cell ends (docs/kernelspecs.md)"
        )
    with boundary(Seam.DIALECT, reader, "reading"):
        reading = reader.reading(typed, end_of_input, language)
        try:
            source = next(reading)
            while True:
                source = reading.send(await kernel.is_complete(source))
        except StopIteration as end:
            turn: Turn = end.value
            return turn


async def run_turn(kernel: TrajectoryKernel, turn: Turn) -> TurnResult:
    """Run the cells of a turn, in order, until one submits an answer or is killed.

    The most telling result gives the turn its kind. A refused cell counts as a cell that did not compile.
    """
    results: list[ExecResult] = []
    runs: list[CellRun] = []
    stop = None
    for cell in turn.cells:
        if cell.refusal is not None:
            result = ExecResult(
                ExecStatus.ERROR,
                error_name=cell.refusal.error_name,
                compiled=False,
                error_message=cell.refusal.message,
            )
        else:
            result = await kernel.execute(cell.source)
        results.append(result)
        runs.append(CellRun(cell, result.output, result.told_message, images=result.images))
        if result.answer is not None:
            stop = StopReason.ANSWER
            break
        if result.status is ExecStatus.KILLED:
            stop = StopReason.KILLED
            break
    if not results:
        return TurnResult(turn.idle_kind if turn.answer is None else LineKind.ANSWER)
    kinds = [_kind(run.cell, result) for run, result in zip(runs, results, strict=True)]
    ranks = [_LEAST_TELLING_FIRST.index(kind) for kind in kinds]
    most_telling = ranks.index(max(ranks))  # the first of several
    last = results[-1]
    return TurnResult(
        kind=kinds[most_telling],
        cells=tuple(runs),
        error_name=results[most_telling].error_name,
        answer=last.answer,
        stop=stop,
        duration_s=sum(result.duration_s for result in results),
        fingerprint=last.fingerprint,
        calls=tuple(call for result in results for call in result.calls),
        answer_forms=last.answer_forms,
    )


def _kind(cell: Cell, result: ExecResult) -> LineKind:
    if result.answer is not None:
        return LineKind.ANSWER
    if not result.compiled or (not cell.is_valid and result.status is ExecStatus.ERROR):
        return LineKind.SYNTAX_ERROR
    return _KINDS.get(result.status, cell.kind)
