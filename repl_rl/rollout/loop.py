"""Where engine, kernel and dialect meet: a task becomes a trajectory, line by line.

`Rollout.one` is the whole idea, read top to bottom: sample a line, run it, put the output in, until something ends it.
Trajectories run side by side and never wait for one another; `stream` hands each on as it ends. A failure of the
machinery makes a trajectory `aborted`; whatever the typed code does is part of the data. Of a single task, `stream`
tells each line before and after it runs.

Not covered: a failing engine, which ends the run (its weights are everybody's).
"""

from __future__ import annotations

import reprlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import lru_cache, partial
from typing import Any, overload

from repl_rl.config import BudgetConfig, SamplingConfig, SeededSampling
from repl_rl.dialect import Dialect, OfferedTool, Shown
from repl_rl.engine import Engine, Finish, SampledLine, Slot, Vocabulary
from repl_rl.errors import ConfigError, KernelError
from repl_rl.kernel import KernelSource
from repl_rl.rollout.clock import Clock, Wait
from repl_rl.rollout.custom import SamplerEngine, run_sampler
from repl_rl.rollout.episode import Episode, EpisodeMaker, Extensions
from repl_rl.rollout.events import Event, Tell, as_told
from repl_rl.rollout.execute import Interpreter
from repl_rl.rollout.prompts import Prompts
from repl_rl.rollout.scheduler import Cut, Scheduler, Ticket
from repl_rl.rollout.state import Prompt, Session
from repl_rl.rollout.transcript import Transcript
from repl_rl.tools import Toolbox
from repl_rl.trajectory import Group, Line, LineKind, StopReason, Task, Trajectory

_REMEMBERED_OUTPUTS = 1024
_SHORT_OUTPUT_CHARS = 32


class Rollout:
    """The policy in `engine` at the keyboard of interpreters from `kernels`.

    `context_tokens` bounds prompt and completion together. At most `at_once` trajectories of a batch run at a time;
    None leaves that to engine and kernels. One instance serves many tasks at once.
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
        at_once: int | None = None,
        extensions: Extensions | None = None,
        dialect_with: Callable[[Sequence[OfferedTool]], Dialect] | None = None,
    ) -> None:
        """`extensions` are the user's tools, environment or loop; `dialect_with` gives the dialect with some tools."""
        self.engine = engine
        self.kernels = kernels
        self.vocabulary = vocabulary
        self.budget = budget
        self.sampling = sampling
        self.context_tokens = context_tokens
        self.chat = chat
        self.at_once = at_once
        self.instances: dict[int, Any] = {}
        """The environments of the last batch, by the index of the task."""
        self._extensions = extensions or Extensions()
        self._prompts = Prompts(vocabulary, chat, context_tokens)
        self._episodes = EpisodeMaker(self._extensions, dialect_with or (lambda tools: dialect), self._prompts.of)
        self.dialect = self._episodes.dialect
        self._encode_short = lru_cache(_REMEMBERED_OUTPUTS)(vocabulary.encode_output)

    def prompt(self, task: Task) -> Prompt:
        """The prompt of a task. Raises ConfigError if it leaves no room for a line."""
        return self._prompts.of(self.dialect, task)

    @overload
    def stream(self, tasks: Task, sampling: SamplingConfig | None = None) -> AsyncGenerator[Event, None]: ...

    @overload
    def stream(
        self, tasks: Sequence[Task], sampling: SamplingConfig | None = None, cut: Cut | None = None
    ) -> AsyncGenerator[tuple[int, Trajectory], None]: ...

    def stream(
        self, tasks: Task | Sequence[Task], sampling: SamplingConfig | None = None, cut: Cut | None = None
    ) -> AsyncGenerator[Event, None] | AsyncGenerator[tuple[int, Trajectory], None]:
        """Of one task, what happens (`repl_rl.rollout.events`), as it happens. Of several, the index of a task and its
        trajectory, as they end; with `cut`, unfinished ones too.

        Raises ConfigError before anything starts if a prompt is too long, and EngineError if the engine fails. What
        still runs when the iterator is closed (`contextlib.aclosing`) is cancelled.
        """
        if isinstance(tasks, Task):
            if cut is not None:
                raise ConfigError(f"a cut is for several tasks, and this is one: {tasks.id!r}; leave it out")
            return as_told(tasks, partial(self._watched, tasks, sampling))
        given: object = tasks  # a text is a sequence too, so no type checker's business
        if isinstance(given, str):
            raise ConfigError(f"{reprlib.repr(tasks)} is no task: give Task(id, question, answer) of repl_rl")
        return self._trajectories(tasks, sampling, cut)

    async def _watched(self, task: Task, sampling: SamplingConfig | None, tell: Tell) -> Trajectory:
        async with aclosing(self._trajectories([task], sampling, None, tell)) as ended:
            [(_, trajectory)] = [each async for each in ended]
        return trajectory

    async def _trajectories(
        self, tasks: Sequence[Task], sampling: SamplingConfig | None, cut: Cut | None, tell: Tell | None = None
    ) -> AsyncGenerator[tuple[int, Trajectory], None]:
        sampling = sampling or self.sampling
        if self._extensions.sampler is not None:
            engine = SamplerEngine(self.engine, self.vocabulary, sampling, self.context_tokens)
            for made in enumerate(await run_sampler(self._extensions.sampler, tasks, engine, self.kernels)):
                yield made
            return
        self._prompts.refuse_long(self.dialect, tasks)
        self.instances.clear()
        asked = time.monotonic()

        def run(index: int, ticket: Ticket) -> Coroutine[Any, Any, Trajectory]:
            return self._roll(index, tasks[index], _of_trajectory(sampling, index), ticket, asked, tell)

        async with aclosing(Scheduler(run, len(tasks), self.at_once, cut).stream()) as ended:
            async for index, trajectory in ended:
                yield index, trajectory

    async def groups(
        self, tasks: Sequence[Task], group_size: int, sampling: SamplingConfig | None = None, cut: Cut | None = None
    ) -> AsyncGenerator[tuple[int, Group], None]:
        """As `stream`, for `group_size` tasks in a row at a time: a group's number and its trajectories in order."""
        open_groups: dict[int, dict[int, Trajectory]] = {}
        async with aclosing(self.stream(tasks, sampling, cut)) as ended:
            async for index, trajectory in ended:
                number = index // group_size
                members = open_groups.setdefault(number, {})
                members[index] = trajectory
                if len(members) == min(group_size, len(tasks) - number * group_size):
                    yield number, Group(member for _, member in sorted(open_groups.pop(number).items()))

    async def many(
        self, tasks: Sequence[Task], sampling: SamplingConfig | None = None, cut: Cut | None = None
    ) -> list[Trajectory]:
        """One trajectory per task, in the order of the tasks.

        Raises what `stream` raises, and KernelError if not a single trajectory could run.
        """
        ended = {index: trajectory async for index, trajectory in self.stream(tasks, sampling, cut)}
        trajectories = [ended[index] for index in range(len(tasks))]
        refuse_if_all_aborted(trajectories)
        return trajectories

    async def one(self, session: Session, episode: Episode, slot: Slot) -> None:
        """The line loop. What it does is in `session`, also if it is left by an exception."""
        while session.stop is None:
            allowance = session.allowance(self.budget, self.context_tokens)
            if allowance.tokens < 1:
                session.stop = allowance.reason
                break
            with session.clock.waiting(Wait.ENGINE):
                sampled = await slot.sample_line(session.transcript.ids, allowance.tokens, session.sampling)
            start, end = session.transcript.append_sampled(sampled.ids, sampled.logprobs)
            turn = session.reader.read(*self._typed(sampled))
            session.typed(turn, sampled)
            if sampled.finish is Finish.LENGTH:
                session.stop = allowance.reason
                session.add(Line(start, end, turn.text, LineKind.OVERLONG, cells=()))
                break
            ran = await session.run(turn)
            if ran.stop is None:
                ran = ran.observing(await episode.observed(turn))
            session.stop = ran.stop or session.stop_after(sampled.finish, turn, self.budget)
            shown = session.reader.show(ran.cells, goes_on=session.stop is None)
            ids, text = self._behind(sampled, shown)
            if session.stop is None:
                session.stop = self._put_in(ids, session)
            session.add(ran.as_line(start, end, turn.text, text, episode.dialect))

    def _typed(self, sampled: SampledLine) -> tuple[bytes, bool]:
        """What reaches the terminal, and whether the input ends there: the end-of-text token is a key, not text."""
        ends = sampled.finish is Finish.EOS
        return self.vocabulary.bytes_of(sampled.ids[:-1] if ends else sampled.ids), ends

    def _behind(self, sampled: SampledLine, shown: Sequence[Shown]) -> tuple[list[int], str]:
        """What the dialect shows, as ids and as text, without an end of the model's turn that it has sampled itself."""
        ids = [index for part in shown for index in self._encode(part)]
        text = "".join(part.text for part in shown)
        if ids and sampled.finish is Finish.EOS and ids[0] in self.vocabulary.eos_ids:
            return ids[1:], text.removeprefix(self.vocabulary.decode(ids[:1]))
        return ids, text

    def _put_in(self, ids: Sequence[int], session: Session) -> StopReason | None:
        """Append what is shown to the sequence, unless it leaves no room to go on."""
        if len(session.transcript) + len(ids) >= self.context_tokens:
            return StopReason.CONTEXT
        if len(session.transcript.completion_ids) + len(ids) >= self.budget.tokens:
            return StopReason.MAX_TOKENS
        session.transcript.append_output(ids)
        return None

    def _encode(self, part: Shown) -> Sequence[int]:
        if part.is_frame:
            return self.vocabulary.encode_frame(part.text)
        is_short = len(part.text) <= _SHORT_OUTPUT_CHARS
        return self._encode_short(part.text) if is_short else self.vocabulary.encode_output(part.text)

    async def _roll(
        self, index: int, task: Task, sampling: SamplingConfig, ticket: Ticket, asked: float, tell: Tell | None
    ) -> Trajectory:
        """A trajectory in any case: one that the machinery fails is aborted, one that is cut unfinished."""
        version, clock = self.engine.version, Clock(asked)
        episode, error = Episode(self.prompt(task), self.dialect, Toolbox()), None
        async with AsyncExitStack() as stack:
            session = self._session(episode, sampling, clock, stack)
            try:
                if not ticket.is_cut:
                    episode = await self._episodes.make(task, stack)
                    session = self._session(episode, sampling, clock, stack)
                    session.tell = tell
                if not ticket.is_cut:  # the cut may have come while the environment opened
                    with ticket.open_to_cut():
                        await self._take_place_and_type(session, task, episode, stack)
                if session.stop is None:
                    session.stop = StopReason.UNFINISHED
                clock.end()
                trajectory = await episode.graded(session.trajectory(task, episode.prompt, version, None))
            except KernelError as failure:
                clock.end()
                session.stop, error = StopReason.ABORTED, f"{type(failure).__name__}: {failure}"
                trajectory = session.trajectory(task, episode.prompt, version, error)
        if episode.environment is not None:
            self.instances[index] = episode.environment.instance
        return trajectory

    def _session(self, episode: Episode, sampling: SamplingConfig, clock: Clock, stack: AsyncExitStack) -> Session:
        host = episode.toolbox.host_calls()
        interpreter = Interpreter(self.kernels, stack, clock, setup=episode.setup, host=host)
        return Session(Transcript(episode.prompt.ids), episode.dialect.reader(), interpreter, sampling, clock)

    async def _take_place_and_type(self, session: Session, task: Task, episode: Episode, stack: AsyncExitStack) -> None:
        transcript = session.transcript
        most_tokens = min(len(transcript) + self.budget.tokens, self.context_tokens)
        with session.clock.waiting(Wait.QUEUE):
            slot = await stack.enter_async_context(self.engine.slot(most_tokens))
        if episode.dialect.needs_kernel:
            await session.interpreter.start()
        session.begin(task, episode.prompt)
        await self.one(session, episode, slot)


def _of_trajectory(sampling: SamplingConfig, index: int) -> SamplingConfig:
    return sampling.of_trajectory(index) if isinstance(sampling, SeededSampling) else sampling


def refuse_if_all_aborted(trajectories: Sequence[Trajectory]) -> None:
    """Raises KernelError if not a single one could run: something is wrong with the machine, not with a kernel."""
    if trajectories and all(trajectory.stop_reason is StopReason.ABORTED for trajectory in trajectories):
        count, first = len(trajectories), trajectories[0].error
        raise KernelError(f"not one of {count} trajectories could run; the first: {first}")
