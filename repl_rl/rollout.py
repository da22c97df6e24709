"""Where engine, kernel and dialect meet: a task becomes a trajectory, line by line.

`Rollout.one` is the whole idea, read top to bottom: sample a line, run it, put the output in, until something ends it.
Trajectories run side by side and never wait for one another. A failure of the machinery makes a trajectory `aborted`;
whatever the typed code does is part of the data.

Not covered: a failing engine, which ends the run (its weights are everybody's).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from repl_rl.config import BudgetConfig, SamplingConfig
from repl_rl.dialect import Cell, Dialect, Reader, Turn
from repl_rl.engine import Engine, Finish, SampledLine, Vocabulary
from repl_rl.errors import ConfigError, KernelError
from repl_rl.kernel import ExecResult, ExecStatus, KernelSession, KernelSource
from repl_rl.trajectory import Line, LineKind, StopReason, Task, Trajectory
from repl_rl.transcript import Transcript

_KERNEL_ATTEMPTS = 3
"""Fresh kernels that a trajectory may use up before its first cell has run."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A task as the model reads it: the text, and its ids, encoded once."""

    text: str
    ids: tuple[int, ...]


class Rollout:
    """The policy in `engine` at the keyboard of interpreters from `kernels`.

    `context_tokens` bounds prompt and completion together. One instance serves many tasks at once.
    """

    def __init__(
        self,
        engine: Engine,
        kernels: KernelSource,
        dialect: Dialect,
        vocabulary: Vocabulary,
        *,
        budget: BudgetConfig,
        sampling: SamplingConfig,
        context_tokens: int,
        chat: bool = False,
    ) -> None:
        self.engine = engine
        self.kernels = kernels
        self.dialect = dialect
        self.vocabulary = vocabulary
        self.budget = budget
        self.sampling = sampling
        self.context_tokens = context_tokens
        self.chat = chat

    def prompt(self, task: Task) -> Prompt:
        """The prompt of a task. Raises ConfigError if it leaves no room for a line."""
        if self.chat:
            chat = self.dialect.chat_prompt(task.question)
            ids = self.vocabulary.encode_chat(chat.messages, chat.prefill)
            text = self.vocabulary.decode(ids)
        else:
            text = self.dialect.completion_prompt(task.question)
            ids = self.vocabulary.encode_prompt(text)
        if len(ids) >= self.context_tokens:
            raise ConfigError(
                f"the prompt of task {task.id!r} has {len(ids)} tokens and engine.context_tokens is "
                f"{self.context_tokens}; raise it, or shorten the prompt"
            )
        return Prompt(text, ids)

    async def many(self, tasks: Sequence[Task], sampling: SamplingConfig | None = None) -> list[Trajectory]:
        """One trajectory per task, in the order of the tasks.

        Raises EngineError if the engine fails, and KernelError if not a single trajectory could run.
        """
        prompts = [self.prompt(task) for task in tasks]
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._one_or_aborted(task, prompt, sampling or self.sampling))
                    for task, prompt in zip(tasks, prompts, strict=True)
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        trajectories = [done.result() for done in running]
        if trajectories and all(trajectory.stop_reason is StopReason.ABORTED for trajectory in trajectories):
            raise KernelError(
                f"no kernel worked for any of {len(tasks)} trajectories; the first: {trajectories[0].error}"
            )
        return trajectories

    async def one(self, task: Task, prompt: Prompt, session: Session) -> None:
        """The line loop. What it does is in `session`, also if it is left by an exception."""
        while session.stop is None:
            allowance = session.allowance(self.budget, self.context_tokens)
            if allowance.tokens < 1:
                session.stop = allowance.reason
                break
            sampled = await self.engine.sample_line(session.transcript.ids, allowance.tokens, session.sampling)
            start, end = session.transcript.append_sampled(sampled.ids, sampled.logprobs)
            text = self.vocabulary.decode(sampled.ids, before=session.transcript.ids[: -len(sampled.ids)])
            session.typing = text
            if sampled.finish is Finish.LENGTH:
                session.stop = allowance.reason
                session.lines.append(Line(start, end, text, LineKind.OVERLONG))
                break
            ran = await session.run(self._typed(text, sampled))
            session.stop = ran.stop or session.stop_after(sampled.finish, self.budget)
            shown = self.dialect.truncate(ran.output)
            if session.stop is None:
                shown += session.reader.next_prompt()
                session.stop = self._put_in(shown, session)
            session.lines.append(Line(start, end, text, ran.kind, ran.error_name, shown, duration_s=ran.duration_s))

    def _typed(self, text: str, sampled: SampledLine) -> tuple[str, bool]:
        """What reaches the interpreter, and whether the input ends there: the end-of-text token is no code."""
        if sampled.finish is not Finish.EOS:
            return text, False
        last = self.vocabulary.decode(sampled.ids[-1:])
        return text.removesuffix(last), True

    def _put_in(self, shown: str, session: Session) -> StopReason | None:
        """Append interpreter text to the sequence, unless it leaves no room to go on."""
        ids = self.vocabulary.encode_output(shown)
        if len(session.transcript) + len(ids) >= self.context_tokens:
            return StopReason.CONTEXT
        if len(session.transcript.completion_ids) + len(ids) >= self.budget.tokens:
            return StopReason.MAX_TOKENS
        session.transcript.append_output(ids)
        return None

    async def _one_or_aborted(self, task: Task, prompt: Prompt, sampling: SamplingConfig) -> Trajectory:
        version = self.engine.version
        async with AsyncExitStack() as stack:
            interpreter = Interpreter(self.kernels, stack)
            session = Session(Transcript(prompt.ids), self.dialect.reader(), interpreter, sampling)
            error: str | None = None
            try:
                await interpreter.start()
                await self.one(task, prompt, session)
            except KernelError as failure:
                session.stop, error = StopReason.ABORTED, f"{type(failure).__name__}: {failure}"
        return session.trajectory(task, prompt, version, error)


class Interpreter:
    """The kernel of one trajectory. While no cell has run there is no state to lose, so a failed one is replaced."""

    def __init__(self, kernels: KernelSource, stack: AsyncExitStack) -> None:
        self._kernels = kernels
        self._stack = stack
        self._kernel: KernelSession | None = None
        self._has_state = False

    async def start(self) -> None:
        """Take a kernel. Raises KernelError if none comes up."""
        self._kernel = await self._stack.enter_async_context(self._kernels.session())

    async def execute(self, source: str) -> ExecResult:
        for attempt in range(_KERNEL_ATTEMPTS):
            try:
                if self._kernel is None:
                    await self.start()
                assert self._kernel is not None
                result = await self._kernel.execute(source)
            except KernelError:
                self._kernel = None
                if self._has_state or attempt + 1 == _KERNEL_ATTEMPTS:
                    raise
            else:
                self._has_state = True
                return result
        raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, slots=True)
class Ran:
    """What a turn did: its kind, what the interpreter showed, and whether that ends the trajectory."""

    kind: LineKind
    output: str = ""
    error_name: str | None = None
    stop: StopReason | None = None
    duration_s: float = 0.0


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
    lines: list[Line] = field(default_factory=list)
    stop: StopReason | None = None
    answer: tuple[str, ...] | None = None
    typing: str = ""
    """The line that was sampled last."""
    started: float = field(default_factory=time.monotonic)

    def allowance(self, budget: BudgetConfig, context_tokens: int) -> Allowance:
        """The tightest of the three token budgets."""
        return min(
            Allowance(budget.line_tokens, StopReason.LINE_TOKENS),
            Allowance(budget.tokens - len(self.transcript.completion_ids), StopReason.MAX_TOKENS),
            Allowance(context_tokens - len(self.transcript), StopReason.CONTEXT),
            key=lambda allowance: allowance.tokens,
        )

    def stop_after(self, finish: Finish, budget: BudgetConfig) -> StopReason | None:
        """Why the trajectory ends with the line that has just run, if it does."""
        if finish is Finish.EOS:
            return StopReason.EOS
        if len(self.lines) + 1 >= budget.lines:
            return StopReason.MAX_LINES
        return StopReason.SECONDS if time.monotonic() - self.started >= budget.seconds else None

    async def run(self, typed: tuple[str, bool]) -> Ran:
        """Run the cells that a turn completes, in order, until one of them ends the trajectory."""
        turn = self.reader.read(*typed)
        results: list[tuple[Cell, ExecResult]] = []
        for cell in turn.cells:
            result = await self.interpreter.execute(cell.source)
            results.append((cell, result))
            if result.answer is not None:
                self.answer = result.answer
            if _end_of(result) is not None:
                break
        return _summarize(turn, results)

    def trajectory(self, task: Task, prompt: Prompt, version: int, error: str | None) -> Trajectory:
        assert self.stop is not None
        return Trajectory(
            task_id=task.id,
            prompt=prompt.text,
            prompt_ids=prompt.ids,
            completion_ids=tuple(self.transcript.completion_ids),
            sampled_mask=tuple(self.transcript.sampled_mask),
            logprobs=tuple(self.transcript.logprobs),
            stop_reason=self.stop,
            lines=tuple(self._all_lines()),
            answer=self.answer,
            version=version,
            error=error,
            duration_s=time.monotonic() - self.started,
        )

    def _all_lines(self) -> list[Line]:
        """The lines, and where the machinery failed under one, that line too: its tokens were sampled."""
        covered = self.lines[-1].end if self.lines else 0
        lost = [index for index, was in enumerate(self.transcript.sampled_mask) if was and index >= covered]
        return [*self.lines, *([Line(lost[0], lost[-1] + 1, self.typing, LineKind.KILLED)] if lost else [])]


def _summarize(turn: Turn, results: Sequence[tuple[Cell, ExecResult]]) -> Ran:
    """The most telling result gives the turn its kind; the outputs are joined in order."""
    if not results:
        return Ran(turn.idle_kind)
    kinds = [_kind(cell, result) for cell, result in results]
    telling = max(range(len(kinds)), key=lambda index: _RANK[kinds[index]])
    return Ran(
        kinds[telling],
        "".join(result.output for _, result in results),
        results[telling][1].error_name,
        _end_of(results[-1][1]),
        sum(result.duration_s for _, result in results),
    )


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
