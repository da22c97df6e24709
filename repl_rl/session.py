"""One trajectory in the making: what has been sampled, what has run, and whether it may go on.

The line loop in `rollout` drives a `Session`; the kernel behind it is an `Interpreter`, replaced as long as nothing has
run in it. `Ran` says what a turn did: the most telling of its results gives the line its kind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

from repl_rl.config import BudgetConfig, SamplingConfig
from repl_rl.dialect import Cell, CellRun, Reader, Refusal, Turn
from repl_rl.engine import Finish
from repl_rl.errors import KernelDiedError, KernelError
from repl_rl.kernel import ExecResult, ExecStatus, HostCall, HostCalls, HostReply, KernelSession, KernelSource
from repl_rl.trajectory import Line, LineKind, StopReason, Task, ToolCall, Trajectory
from repl_rl.transcript import Transcript

_KERNEL_ATTEMPTS = 3
"""Fresh kernels that a trajectory may use up before its first cell has run."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A task as the model reads it: the text, and its ids, encoded once."""

    text: str
    ids: tuple[int, ...]


class Wait(Enum):
    """What a trajectory waits for; what is left of its time is our own work."""

    ENGINE = "engine"
    KERNEL = "kernel"
    QUEUE = "queue"


class Clock:
    """Where the wall time of one trajectory goes.

    A wait lasts from asking until the trajectory goes on. While the event loop is busy with others, a result that is
    there waits too, and that is in the wait: `time/loop_share` among the metrics says how busy the loop was.
    Everything is in seconds; `asked` is `time.monotonic()` when the batch was asked for.
    """

    def __init__(self, asked: float | None = None) -> None:
        now = time.monotonic()
        self.asked = now if asked is None else asked
        self.waited_s = {Wait.ENGINE: 0.0, Wait.KERNEL: 0.0, Wait.QUEUE: now - self.asked}
        self._began = now
        self._ended: float | None = None

    @contextmanager
    def waiting(self, wait: Wait) -> Iterator[None]:
        """Count the time of the block, however it is left."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.waited_s[wait] += time.monotonic() - began

    def begin(self) -> None:
        """Seat and kernel are there: from now on `budget.seconds` runs."""
        self._began = time.monotonic()

    def end(self) -> None:
        """The last line is over; what is cleaned up afterwards counts for nobody."""
        self._ended = time.monotonic()

    @property
    def running_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def duration_s(self) -> float:
        return (time.monotonic() if self._ended is None else self._ended) - self.asked


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

    def as_line(self, start: int, end: int, text: str, shown: str) -> Line:
        """The line of tokens `start:end`, behind which `shown` was put in."""
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
        )


@dataclass(frozen=True, slots=True)
class Allowance:
    """Tokens that the next line may have, and the reason to stop if it needs more."""

    tokens: int
    reason: StopReason


@dataclass(slots=True)
class Session:
    """One trajectory in the making."""

    transcript: Transcript
    reader: Reader
    interpreter: Interpreter
    sampling: SamplingConfig
    clock: Clock = field(default_factory=Clock)
    lines: list[Line] = field(default_factory=list)
    stop: StopReason | None = None
    answer: tuple[str, ...] | None = None
    typing: str = ""
    """The line that was sampled last."""

    def allowance(self, budget: BudgetConfig, context_tokens: int) -> Allowance:
        """The tightest of the three token budgets."""
        return min(
            Allowance(budget.line_tokens, StopReason.LINE_TOKENS),
            Allowance(budget.tokens - len(self.transcript.completion_ids), StopReason.MAX_TOKENS),
            Allowance(context_tokens - len(self.transcript), StopReason.CONTEXT),
            key=lambda allowance: allowance.tokens,
        )

    def stop_after(self, finish: Finish, turn: Turn, budget: BudgetConfig) -> StopReason | None:
        """Why the trajectory ends with the line that has just run, if it does."""
        if turn.answer is not None and self.answer is None:
            self.answer = turn.answer
            return StopReason.ANSWER
        if finish is Finish.EOS and not turn.waits:
            return StopReason.EOS
        if len(self.lines) + 1 >= budget.lines:
            return StopReason.MAX_LINES
        return StopReason.SECONDS if self.clock.running_s >= budget.seconds else None

    async def run(self, turn: Turn) -> Ran:
        """Run the cells that a turn completes, in order, until one of them ends the trajectory."""
        ran, self.answer = await run_turn(self.interpreter, turn)
        return ran

    def trajectory(self, task: Task, prompt: Prompt, version: int, error: str | None) -> Trajectory:
        """What it has come to. Output behind the last line is left out: nothing was sampled after it."""
        assert self.stop is not None
        lines = tuple(self._all_lines())
        self.transcript.cut_behind(lines[-1].end if lines else 0)
        return Trajectory(
            task_id=task.id,
            prompt=prompt.text,
            prompt_ids=prompt.ids,
            completion_ids=tuple(self.transcript.completion_ids),
            sampled_mask=tuple(self.transcript.sampled_mask),
            logprobs=tuple(self.transcript.logprobs),
            stop_reason=self.stop,
            lines=lines,
            answer=self.answer,
            version=version,
            error=error,
            duration_s=self.clock.duration_s,
            engine_s=self.clock.waited_s[Wait.ENGINE],
            kernel_s=self.clock.waited_s[Wait.KERNEL],
            queue_s=self.clock.waited_s[Wait.QUEUE],
        )

    def _all_lines(self) -> list[Line]:
        """The lines, and one that was running when the machinery failed or the cut came: its tokens were sampled."""
        covered = self.lines[-1].end if self.lines else 0
        lost = [index for index, was in enumerate(self.transcript.sampled_mask[covered:], covered) if was]
        lines = [*self.lines, *([Line(lost[0], lost[-1] + 1, self.typing, LineKind.KILLED)] if lost else [])]
        return [*lines[:-1], replace(lines[-1], text=lines[-1].text + self.reader.flush())] if lines else []


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
