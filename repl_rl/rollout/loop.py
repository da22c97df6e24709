"""Where engine, kernel and dialect meet: a task becomes a trajectory, line by line.

`Rollout.one` is the whole idea, read top to bottom: sample a line, run it, insert the output, until something ends it.
Trajectories run side by side and never wait for one another; `stream` yields each as it ends. A failure of the
machinery makes a trajectory `aborted`; whatever the typed code does is part of the data. For a single task, `stream`
yields each line before and after it runs.

Not covered: a failing engine, which ends the run, because all trajectories share it.
"""

from __future__ import annotations

import asyncio
import reprlib
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

from repl_rl.config import BranchConfig, BudgetConfig, SamplingConfig, SeededSampling
from repl_rl.dialect import Shown, dialect_name
from repl_rl.engine import Engine, Finish, SampledLine, Slot, Vocabulary
from repl_rl.errors import ConfigError, KernelError
from repl_rl.kernel import KernelSource, NestingSource
from repl_rl.rollout.compact import Compactor
from repl_rl.rollout.custom import SamplerEngine, run_sampler
from repl_rl.rollout.episode import Episode, EpisodeMaker
from repl_rl.rollout.events import Event, Listener, event_stream
from repl_rl.rollout.execute import Interpreter, read_turn, run_turn
from repl_rl.rollout.scheduler import Cut, CutScope, Scheduler
from repl_rl.rollout.score import graded_by
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.rollout.state import Clock, Spent, TrajectoryState, Wait
from repl_rl.rollout.subcalls import MOST_CHARS_PER_TOKEN, NoAnswerError, SubCalls
from repl_rl.rollout.tree import ReplayDiffersError, Root, Start, Trees, Typed
from repl_rl.tools import Toolbox
from repl_rl.trajectory import Group, Line, LineKind, StopReason, Task, Trajectory

_REMEMBERED_OUTPUTS = 1024
_SHORT_OUTPUT_CHARS = 32


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the trajectories of one call have in common. `asked` is `time.monotonic()` at the call."""

    tasks: Sequence[Task]
    sampling: SamplingConfig
    asked: float
    listener: Listener | None
    trees: Trees | None

    def sampling_of(self, index: int) -> SamplingConfig:
        return self.sampling.of_trajectory(index) if isinstance(self.sampling, SeededSampling) else self.sampling


class Rollout:
    """The policy in `engine` at the keyboard of interpreters from `kernels`. One instance serves many tasks at once."""

    def __init__(self, engine: Engine, kernels: KernelSource, setup: RolloutSetup) -> None:
        self.engine = engine
        self.kernels = kernels
        self.setup = setup
        self.environments: dict[int, Any] = {}
        """The environments of the last batch, by the index of the task."""
        needed = 0 if setup.extensions.sampler is not None else setup.subcalls.depth - 1
        if needed > (kernels.depth if isinstance(kernels, NestingSource) else 0):
            raise ConfigError(
                f"subcalls.depth {setup.subcalls.depth} lets sessions wait for sessions, and these kernels keep no "
                f"places for that; give KernelPool(size, depth={needed}), or set subcalls.depth to 1"
            )
        self._episodes = EpisodeMaker(setup, engine, self.asked)
        self._encode_short = lru_cache(_REMEMBERED_OUTPUTS)(setup.vocabulary.encode_output)

    @property
    def vocabulary(self) -> Vocabulary:
        return self.setup.vocabulary

    @property
    def sampling(self) -> SamplingConfig:
        """How lines are sampled unless a call asks for something else."""
        return self.setup.sampling

    @overload
    def stream(self, tasks: Task, sampling: SamplingConfig | None = None) -> AsyncGenerator[Event, None]: ...

    @overload
    def stream(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None = None,
        cut: Cut | None = None,
        branch: BranchConfig | None = None,
    ) -> AsyncGenerator[tuple[int, Trajectory], None]: ...

    def stream(
        self,
        tasks: Task | Sequence[Task],
        sampling: SamplingConfig | None = None,
        cut: Cut | None = None,
        branch: BranchConfig | None = None,
    ) -> AsyncGenerator[Event, None] | AsyncGenerator[tuple[int, Trajectory], None]:
        """For one task, its events (`repl_rl.rollout.events`) as they happen. For several, each task's index and
        trajectory as it ends; with `cut`, unfinished trajectories too. With `branch`, each `branch.group_size` tasks,
        which are one task repeated, are typed as trees (`repl_rl.rollout.tree`).

        Raises ConfigError before anything starts if a prompt is too long, and EngineError if the engine fails. Closing
        the iterator (`contextlib.aclosing`) cancels whatever is still running.
        """
        if isinstance(tasks, Task):
            if cut is not None or branch is not None:
                raise ConfigError(
                    f"cuts and branches are for several tasks, and this is one: {tasks.id!r}; leave them out"
                )
            task = tasks

            async def roll(listener: Listener) -> Trajectory:
                async with aclosing(self._trajectories([task], sampling, None, listener)) as ended:
                    [(_, trajectory)] = [each async for each in ended]
                return trajectory

            return event_stream(task, roll)
        given: object = tasks  # a string is a sequence too, and type checkers don't object
        if isinstance(given, str):
            raise ConfigError(f"{reprlib.repr(tasks)} is not a task: give Task(id, question, answer) of repl_rl")
        return self._trajectories(tasks, sampling, cut, None, branch)

    async def groups(
        self,
        tasks: Sequence[Task],
        group_size: int,
        sampling: SamplingConfig | None = None,
        cut: Cut | None = None,
        branch: BranchConfig | None = None,
    ) -> AsyncGenerator[tuple[int, Group], None]:
        """Like `stream`, for groups of `group_size` consecutive tasks: a group's number and trajectories, in order."""
        open_groups: dict[int, dict[int, Trajectory]] = {}
        async with aclosing(self.stream(tasks, sampling, cut, branch)) as ended:
            async for index, trajectory in ended:
                number = index // group_size
                members = open_groups.setdefault(number, {})
                members[index] = trajectory
                if len(members) == min(group_size, len(tasks) - number * group_size):
                    yield number, Group(member for _, member in sorted(open_groups.pop(number).items()))

    async def many(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None = None,
        cut: Cut | None = None,
        branch: BranchConfig | None = None,
    ) -> list[Trajectory]:
        """One trajectory per task, in the order of the tasks.

        Raises what `stream` raises, and KernelError if not a single trajectory could run.
        """
        ended = {index: trajectory async for index, trajectory in self.stream(tasks, sampling, cut, branch)}
        trajectories = [ended[index] for index in range(len(tasks))]
        refuse_if_all_aborted(trajectories)
        return trajectories

    async def _trajectories(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None,
        cut: Cut | None,
        listener: Listener | None = None,
        branch: BranchConfig | None = None,
    ) -> AsyncGenerator[tuple[int, Trajectory], None]:
        """All trajectories of a batch, as they end: from the user's own loop if there is one, else from ours."""
        setup = self.setup
        sampling = sampling or setup.sampling
        if setup.extensions.sampler is not None:
            engine = SamplerEngine(self.engine, setup.vocabulary, sampling, setup.context_tokens)
            for made in enumerate(await run_sampler(setup.extensions.sampler, tasks, engine, self.kernels)):
                yield made
            return
        self._episodes.refuse(tasks)
        self.environments.clear()
        if branch is not None:
            setup.extensions.require_no_model()
            if setup.budget.compact_at is not None:
                raise ConfigError(
                    f"budget.compact_at {setup.budget.compact_at} takes lines out of a transcript that branches would "
                    "begin with; leave compact_at or branch out"
                )
        trees = None if branch is None else Trees(branch, tasks, setup.budget.lines, sampling)
        batch = _Batch(tasks, sampling, time.monotonic(), listener, trees)

        def run(index: int, scope: CutScope) -> Coroutine[Any, Any, Trajectory]:
            return self._trajectory(batch, index, scope)

        try:
            async with aclosing(Scheduler(run, len(tasks), setup.at_once, cut).stream()) as ended:
                async for index, trajectory in ended:
                    yield index, trajectory
        finally:
            if trees is not None:
                await trees.close()

    async def _trajectory(self, batch: _Batch, index: int, scope: CutScope) -> Trajectory:
        """One trajectory, whatever happens: aborted if the machinery fails, unfinished if it is cut."""
        trees, clock, start, outcome = batch.trees, Clock(batch.asked), None, None
        try:
            if trees is not None and not scope.is_cut:
                with scope.open_to_cut(), clock.waiting(Wait.QUEUE):
                    start = await trees.start(index)
            try:
                trajectory = await self._begun(batch, index, scope, clock, start)
            except ReplayDiffersError:
                trajectory = await self._begun(batch, index, scope, clock, None)
            if trees is not None and trees.config.looks_at_outcomes:
                outcome = await self._outcome(batch.tasks[index], trajectory)
            return trajectory
        finally:
            if trees is not None:
                trees.ended(index, outcome)

    async def _outcome(self, task: Task, trajectory: Trajectory) -> float | None:
        """What the environment or the grader gives; None for a session that was lost, or began in another's place.

        Raises RewardError if the grader fails.
        """
        if trajectory.is_void or (trajectory.branch is not None and not trajectory.branch.line):
            return None
        if trajectory.environment_reward is not None:
            return trajectory.environment_reward
        return await asyncio.to_thread(graded_by, self.setup.extensions.grader, task, trajectory)

    async def _begun(self, batch: _Batch, index: int, scope: CutScope, clock: Clock, start: Start | None) -> Trajectory:
        """The trajectory that begins at `start`, or at the prompt. Raises ReplayDiffersError if it can't begin so."""
        task, listener, trees = batch.tasks[index], batch.listener, batch.trees
        anew = None if trees is None else trees.anew(index)
        begun = Start(anew) if start is None else start
        episode = Episode(self._episodes.prompt(task), self._episodes.dialect, Toolbox())

        def state_in(episode: Episode, listener: Listener | None = None) -> TrajectoryState:
            dialect, name = episode.dialect, dialect_name(episode.dialect)
            return TrajectoryState(
                task, begun.prompt or episode.prompt, dialect.reader(), batch.sampling_of(index), clock, listener, name,
                begun.branch, begun.spent, self.engine.version,
            )  # fmt: skip

        state = state_in(episode)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(begun.held.aclose)
            try:
                if not scope.is_cut:
                    if begun.fork is not None:
                        episode = begun.fork.episode
                    else:
                        episode = await self._episodes.make(task, batch.sampling_of(index), stack)
                    state = state_in(episode, listener)
                if not scope.is_cut:  # the cut may have come while the environment opened
                    with scope.open_to_cut():
                        left = self.setup.budget.tokens - state.spent.tokens
                        most_tokens = min(len(state.transcript) + left, self.setup.context_tokens)
                        with clock.waiting(Wait.QUEUE):
                            slot = await stack.enter_async_context(self.engine.slot(most_tokens))
                        host = episode.toolbox.host_calls()
                        interpreter = Interpreter(
                            self.kernels, stack, clock, episode.setup, host, dialect_setup=episode.dialect.setup
                        )
                        if begun.fork is not None:
                            interpreter.adopt(begun.fork.kernel)
                        elif episode.dialect.needs_kernel:
                            await interpreter.start()
                        await begun.play(state.reader, interpreter, episode)
                        state.begin()
                        await self.one(state, episode, interpreter, slot, None if trees is None else trees.root(index))
                if state.stop is None:
                    state.stop = StopReason.UNFINISHED
                clock.end()
                trajectory = await episode.graded(state.trajectory())
            except KernelError as failure:
                clock.end()
                state.stop = StopReason.ABORTED
                trajectory = state.trajectory(f"{type(failure).__name__}: {failure}")
        if episode.environment is not None:
            self.environments[index] = episode.environment.instance
        return trajectory

    async def asked(self, task: Task, max_tokens: int, subcalls: SubCalls, sampling: SamplingConfig) -> Trajectory:
        """The session about what another session asks, of at most `max_tokens` tokens; it asks `subcalls` in turn.

        It takes its slot and its kernel at its own depth, in the same order as all sessions: there is always one for
        each depth, so the deepest can go on, and in the end all can. Its seconds are those of the session that waits
        for it. Aborted if the machinery fails. Raises NoAnswerError if it can't begin.
        """
        depth, clock, state = subcalls.depth - 1, Clock(), None
        budget = self.setup.budget
        budget = budget.model_copy(update={"tokens": min(budget.tokens, max_tokens)})
        if len(task.question) > MOST_CHARS_PER_TOKEN * self.setup.context_tokens:
            chars = f"{len(task.question):,}"
            raise NoAnswerError("length", f"a prompt of {chars} characters does not fit; give long text as context")
        async with AsyncExitStack() as stack:
            try:
                episode = await self._episodes.make(task, sampling, stack, subcalls)
                dialect, spent = episode.dialect, Spent(seconds=subcalls.running_s())
                state = TrajectoryState(
                    task, episode.prompt, dialect.reader(), sampling, clock, None, dialect_name(dialect), None, spent,
                    self.engine.version,
                )  # fmt: skip
                with clock.waiting(Wait.QUEUE):
                    tokens = min(len(state.transcript) + budget.tokens, self.setup.context_tokens)
                    slot = await stack.enter_async_context(self.engine.slot(tokens, depth))
                host = episode.toolbox.host_calls()
                interpreter = Interpreter(
                    self.kernels, stack, clock, episode.setup, host, dialect_setup=dialect.setup, depth=depth
                )
                await interpreter.start()
                state.begin()
                await self.one(state, episode, interpreter, slot, budget=budget)
                failure = None
            except KernelError as error:
                if state is None:
                    raise NoAnswerError("session", str(error)) from error
                state.stop, failure = StopReason.ABORTED, f"{type(error).__name__}: {error}"
            clock.end()
            return state.trajectory(failure)

    async def one(
        self,
        state: TrajectoryState,
        episode: Episode,
        interpreter: Interpreter,
        slot: Slot,
        root: Root | None = None,
        budget: BudgetConfig | None = None,
    ) -> None:
        """The line loop. Its progress is kept in `state`, even if an exception ends it. A `root` forks as it goes."""
        budget, context_tokens = budget or self.setup.budget, self.setup.context_tokens
        transcript, reader, spent = state.transcript, state.reader, state.spent
        compactor = None
        if budget.compact_at is not None:
            compactor = Compactor(budget, context_tokens, self.setup.vocabulary, episode.dialect, interpreter)
            if (await compactor.open()).state_lost:
                state.stop = StopReason.KILLED
        if episode.subcalls is not None:
            episode.subcalls.running_s = lambda: spent.seconds + state.clock.running_s
        while state.stop is None:
            # The tightest of the token budgets, and the stop reason if the line exceeds it.
            allowed, reason = min(
                (budget.line_tokens, StopReason.LINE_TOKENS),
                (budget.tokens - spent.tokens - len(transcript.completion_ids), StopReason.MAX_TOKENS),
                (context_tokens - len(transcript), StopReason.CONTEXT),
                key=lambda budgeted: budgeted[0],
            )
            if allowed < 1:
                state.stop = reason
                break

            # Sample. The end-of-text token is a key, not text: it does not reach the terminal.
            with state.clock.waiting(Wait.ENGINE):
                sampled = await slot.sample_line(transcript.ids, allowed, state.sampling)
            start, end = transcript.append_sampled(sampled.ids, sampled.logprobs, sampled.versions)
            at_eos = sampled.finish is Finish.EOS
            typed = sampled.ids[:-1] if at_eos else sampled.ids
            turn = await read_turn(reader, interpreter, self.setup.vocabulary.bytes_of(typed), at_eos)
            state.sampled(turn, sampled)
            if sampled.finish is Finish.LENGTH:
                state.stop = reason
                state.add(Line(start, end, turn.text, LineKind.OVERLONG, cells=()))
                break

            # Run.
            ran = await run_turn(interpreter, turn)
            state.answer, state.answer_forms, state.stop = ran.answer, ran.answer_forms, ran.stop
            if state.stop is None:
                ran = ran.observing(await episode.observed(turn))
                if turn.answer is not None and state.answer is None:
                    state.answer, state.stop = turn.answer, StopReason.ANSWER
                elif at_eos and not turn.waits:
                    state.stop = StopReason.EOS
                elif spent.lines + len(state.lines) + 1 >= budget.lines:
                    state.stop = StopReason.MAX_LINES
                elif spent.seconds + state.clock.running_s >= budget.seconds:
                    state.stop = StopReason.SECONDS

            # Insert what the dialect shows, unless that leaves no room for another line.
            shown = reader.show(ran.cells, goes_on=state.stop is None)
            ids, text = self._encoded(shown, sampled)
            if state.stop is None:
                if compactor is None and len(transcript) + len(ids) >= context_tokens:
                    state.stop = StopReason.CONTEXT
                elif spent.tokens + len(transcript.completion_ids) + len(ids) >= budget.tokens:
                    state.stop = StopReason.MAX_TOKENS
                else:
                    transcript.append_output(ids)
            state.add(await episode.recorded(ran.as_line(start, end, turn.text, text, episode.dialect)))

            # Compact, unless that leaves no room for another line either.
            if compactor is not None and state.stop is None:
                if compactor.is_due(state):
                    listed = await compactor.compact(state)
                    if listed.answer is not None:  # of a thread that the session has left behind
                        state.answer, state.stop = listed.answer, StopReason.ANSWER
                    elif listed.state_lost:
                        state.stop = StopReason.KILLED
                if state.stop is None and len(transcript) >= context_tokens:
                    state.stop = StopReason.CONTEXT

            # Fork.
            if root is not None and state.stop is None:
                root.typed(Typed(self.setup.vocabulary.bytes_of(typed), at_eos, ran), sampled.logprobs, state)
                if root.is_due(state.lines):
                    await root.fork(state, interpreter, episode)

    def _encoded(self, shown: Sequence[Shown], sampled: SampledLine) -> tuple[list[int], str]:
        """What the dialect shows, as ids and as text, without the end-of-turn token if the model sampled it itself."""
        vocabulary, ids = self.setup.vocabulary, list[int]()
        for part in shown:
            if part.is_frame:
                ids += vocabulary.encode_frame(part.text)
            elif len(part.text) <= _SHORT_OUTPUT_CHARS:
                ids += self._encode_short(part.text)
            else:
                ids += vocabulary.encode_output(part.text)
        text = "".join(part.text for part in shown)
        if ids and sampled.finish is Finish.EOS and ids[0] in vocabulary.eos_ids:
            return ids[1:], text.removeprefix(vocabulary.decode(ids[:1]))
        return ids, text


def refuse_if_all_aborted(trajectories: Sequence[Trajectory]) -> None:
    """Raises KernelError if no trajectory at all could run: then the machine is at fault, not a single kernel."""
    if trajectories and all(trajectory.stop_reason is StopReason.ABORTED for trajectory in trajectories):
        count, first = len(trajectories), trajectories[0].error
        raise KernelError(f"not one of {count} trajectories could run; the first: {first}")
