"""Where engine, kernel and dialect meet: a task becomes a trajectory, line by line.

`Rollout.one` is the whole idea, read top to bottom: sample a line, run it, put the output in, until something ends it.
Trajectories run side by side and never wait for one another. A failure of the machinery makes a trajectory `aborted`;
whatever the typed code does is part of the data.

Not covered: a failing engine, which ends the run (its weights are everybody's).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from repl_rl.config import BudgetConfig, SamplingConfig
from repl_rl.dialect import Dialect
from repl_rl.engine import Engine, Finish, SampledLine, Vocabulary
from repl_rl.errors import ConfigError, KernelError
from repl_rl.kernel import KernelSource
from repl_rl.session import Interpreter, Prompt, Session
from repl_rl.trajectory import Line, LineKind, StopReason, Task, Trajectory
from repl_rl.transcript import Transcript


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

    async def one(self, session: Session) -> None:
        """The line loop. What it does is in `session`, also if it is left by an exception."""
        while session.stop is None:
            allowance = session.allowance(self.budget, self.context_tokens)
            if allowance.tokens < 1:
                session.stop = allowance.reason
                break
            sampled = await session.seat.sample_line(session.transcript.ids, allowance.tokens, session.sampling)
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

    def _most_tokens(self, prompt: Prompt) -> int:
        return min(len(prompt.ids) + self.budget.tokens, self.context_tokens)

    async def _one_or_aborted(self, task: Task, prompt: Prompt, sampling: SamplingConfig) -> Trajectory:
        version = self.engine.version
        async with AsyncExitStack() as stack:
            seat = await stack.enter_async_context(self.engine.seat(self._most_tokens(prompt)))
            interpreter = Interpreter(self.kernels, stack)
            session = Session(Transcript(prompt.ids), self.dialect.reader(), interpreter, seat, sampling)
            error: str | None = None
            try:
                await interpreter.start()
                await self.one(session)
            except KernelError as failure:
                session.stop, error = StopReason.ABORTED, f"{type(failure).__name__}: {failure}"
        return session.trajectory(task, prompt, version, error)
