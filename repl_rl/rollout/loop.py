"""Where engine, kernel and dialect meet: a task becomes a trajectory, line by line.

`Rollout.one` is the whole idea, read top to bottom: sample a line, run it, insert the output, until something ends it.
Trajectories run side by side and never wait for one another. A failure of the machinery makes a trajectory `aborted`;
whatever the typed code does is part of the data.

Not covered: a failing engine, which ends the run, because all trajectories share it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from repl_rl.config import BranchConfig, BudgetConfig, SamplingConfig, SeededSampling
from repl_rl.dialect import Shown
from repl_rl.engine import Engine, Finish, SampledLine, Slot, Vocabulary
from repl_rl.errors import BrokenStateError, ConfigError, KernelError
from repl_rl.kernel import KernelSource, NestingSource
from repl_rl.rollout.batch import RolloutBatch, refuse_if_all_aborted
from repl_rl.rollout.compact import Compactor
from repl_rl.rollout.custom import SamplerEngine, run_sampler
from repl_rl.rollout.episode import Episode, EpisodeMaker
from repl_rl.rollout.events import Event, Listener, event_stream
from repl_rl.rollout.execute import Repetition, TrajectoryKernel, read_turn, run_turn
from repl_rl.rollout.scheduler import Cut, CutScope, Scheduler
from repl_rl.rollout.score import graded_by
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.rollout.state import Clock, Spent, TrajectoryState, Wait
from repl_rl.rollout.subcalls import MOST_CHARS_PER_TOKEN, NoAnswerError, SubCalls
from repl_rl.rollout.tree import ReplayDiffersError, Root, RootTurn, Start, Trees
from repl_rl.tools import Toolbox
from repl_rl.trajectory import Line, LineKind, StopReason, Task, Trajectory

_REMEMBERED_OUTPUTS = 1024
_SHORT_OUTPUT_CHARS = 32


@dataclass(frozen=True, slots=True)
class _Request:
    """One trajectory of a batch, before it begins."""

    task: Task
    index: int
    sampling: SamplingConfig
    scope: CutScope
    clock: Clock
    listener: Listener | None


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

    def stream(self, task: Task, sampling: SamplingConfig | None = None) -> AsyncGenerator[Event, None]:
        """What happens to one task (`repl_rl.rollout.events`), as it happens: each line before and after it runs.

        Raises what `as_completed` raises. Closing the iterator cancels what is still running.
        """
        batch = RolloutBatch([task], sampling)

        async def roll(listener: Listener) -> Trajectory:
            async with aclosing(self.as_completed(batch, listener)) as ended:
                [(_, trajectory)] = [each async for each in ended]
            return trajectory

        return event_stream(task, roll)

    async def many(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None = None,
        cut: Cut | None = None,
        branch: BranchConfig | None = None,
    ) -> list[Trajectory]:
        """The trajectories of a `RolloutBatch` of these, in the order of the tasks.

        Raises what `as_completed` raises, and KernelError if not a single trajectory could run.
        """
        batch = RolloutBatch(tasks, sampling, cut, branch)
        ended = {index: trajectory async for index, trajectory in self.as_completed(batch)}
        trajectories = [ended[index] for index in range(len(tasks))]
        refuse_if_all_aborted(trajectories)
        return trajectories

    async def as_completed(
        self, batch: RolloutBatch, listener: Listener | None = None
    ) -> AsyncGenerator[tuple[int, Trajectory], None]:
        """Each task's index and trajectory as it ends, from the user's own loop if there is one, else from ours.

        `listener` is told of each line. Raises ConfigError before anything starts if a prompt is too long, and
        EngineError if the engine fails. Closing the iterator (`contextlib.aclosing`) cancels what is still running.
        """
        setup, tasks, branch = self.setup, batch.tasks, batch.branch
        sampling = batch.sampling or setup.sampling
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
        asked = time.monotonic()

        async def run(index: int, scope: CutScope) -> Trajectory:
            own = sampling.of_trajectory(index) if isinstance(sampling, SeededSampling) else sampling
            return await self._trajectory(_Request(tasks[index], index, own, scope, Clock(asked), listener), trees)

        try:
            async with aclosing(Scheduler(run, len(tasks), setup.at_once, batch.cut).stream()) as ended:
                async for index, trajectory in ended:
                    yield index, trajectory
        finally:
            if trees is not None:
                await trees.close()

    async def _trajectory(self, request: _Request, trees: Trees | None) -> Trajectory:
        """One trajectory, whatever happens: aborted if the machinery fails, unfinished if it is cut."""
        if trees is None:
            return await self._begun(request, Start(None))
        index, start, outcome = request.index, None, None
        try:
            if not request.scope.is_cut:
                with request.scope.open_to_cut(), request.clock.waiting(Wait.QUEUE):
                    start = await trees.start(index)
            from_prompt = Start(trees.anew(index))
            try:
                trajectory = await self._begun(request, start or from_prompt, trees.root(index))
            except ReplayDiffersError:
                trajectory = await self._begun(request, from_prompt)
            if trees.config.looks_at_outcomes:
                outcome = await self._outcome(request.task, trajectory)
            return trajectory
        finally:
            trees.ended(index, outcome)

    async def _outcome(self, task: Task, trajectory: Trajectory) -> float | None:
        """What the environment or the grader gives. None for a session that was lost, and for a branch that began at
        the prompt. Raises RewardError if the grader fails.
        """
        if trajectory.is_void or (trajectory.branch is not None and not trajectory.branch.line):
            return None
        if trajectory.environment_reward is not None:
            return trajectory.environment_reward
        return await asyncio.to_thread(graded_by, self.setup.extensions.grader, task, trajectory)

    async def _begun(self, request: _Request, start: Start, root: Root | None = None) -> Trajectory:
        """The trajectory that begins at `start`. Raises ReplayDiffersError if it can't begin there."""
        task, scope, clock = request.task, request.scope, request.clock
        episode = Episode(self._episodes.prompt(task), self._episodes.dialect, Toolbox())

        def state_in(episode: Episode, listener: Listener | None = None) -> TrajectoryState:
            prompt, version = start.prompt or episode.prompt, self.engine.version
            return TrajectoryState(
                task, prompt, episode.dialect, request.sampling, clock, listener, start.branch, start.spent, version
            )

        state = state_in(episode)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(start.held.aclose)
            try:
                if not scope.is_cut:
                    if start.fork is not None:
                        episode = start.fork.episode
                    else:
                        episode = await self._episodes.make(task, request.sampling, stack)
                    state = state_in(episode, request.listener)
                if not scope.is_cut:  # the cut may have come while the environment opened
                    with scope.open_to_cut():
                        await self._typed(state, episode, stack, start, root, self.setup.budget)
                if state.stop is None:
                    state.stop = StopReason.UNFINISHED
                clock.end()
                trajectory = await episode.graded(state.trajectory())
            except KernelError as failure:
                clock.end()
                trajectory = state.aborted(failure)
        if episode.environment is not None:
            self.environments[request.index] = episode.environment.instance
        return trajectory

    async def asked(self, task: Task, max_tokens: int, subcalls: SubCalls, sampling: SamplingConfig) -> Trajectory:
        """A session that another one has asked for, of at most `max_tokens` tokens. `subcalls` answers what it asks.

        It takes a slot and a kernel of its own depth, in the same order as all sessions. There is always one of them
        for each depth, so the deepest session can go on, and in the end all can. Its seconds are those of the session
        that waits for it. Aborted if the machinery fails. Raises NoAnswerError if it can't begin.
        """
        clock, state = Clock(), None
        budget = self.setup.budget
        budget = budget.model_copy(update={"tokens": min(budget.tokens, max_tokens)})
        if len(task.question) > MOST_CHARS_PER_TOKEN * self.setup.context_tokens:
            chars = f"{len(task.question):,}"
            raise NoAnswerError("length", f"a prompt of {chars} characters does not fit; give long text as context")
        async with AsyncExitStack() as stack:
            try:
                episode = await self._episodes.make(task, sampling, stack, subcalls)
                state = TrajectoryState(
                    task,
                    episode.prompt,
                    episode.dialect,
                    sampling,
                    clock,
                    spent=Spent(seconds=subcalls.running_s()),
                    version=self.engine.version,
                )
                await self._typed(state, episode, stack, Start(None), None, budget, subcalls.depth - 1)
            except KernelError as failure:
                clock.end()
                if state is None:
                    raise NoAnswerError("session", str(failure)) from failure
                return state.aborted(failure)
            clock.end()
            return state.trajectory()

    async def _typed(
        self,
        state: TrajectoryState,
        episode: Episode,
        stack: AsyncExitStack,
        start: Start,
        root: Root | None,
        budget: BudgetConfig,
        depth: int = 0,
    ) -> None:
        """Take a slot and a kernel, which `stack` gives back, and type a session with them."""
        left = budget.tokens - state.spent.tokens
        most_tokens = min(len(state.transcript) + left, self.setup.context_tokens)
        with state.clock.waiting(Wait.QUEUE):
            slot = await stack.enter_async_context(self.engine.slot(most_tokens, depth))
        host = episode.toolbox.host_calls()
        kernel = TrajectoryKernel(
            self.kernels, stack, state.clock, episode.setup, host, dialect_setup=episode.dialect.setup, depth=depth
        )
        if start.fork is not None:
            kernel.adopt(start.fork.kernel)
        elif episode.dialect.needs_kernel:
            await kernel.start()
        await start.play(state.reader, kernel, episode)
        state.begin()
        await self.one(state, episode, kernel, slot, root, budget)

    async def one(
        self,
        state: TrajectoryState,
        episode: Episode,
        kernel: TrajectoryKernel,
        slot: Slot,
        root: Root | None,
        budget: BudgetConfig,
    ) -> None:
        """The line loop. Its progress is kept in `state`, even if an exception ends it. A `root` forks as it goes."""
        context_tokens = self.setup.context_tokens
        transcript, reader, spent = state.transcript, state.reader, state.spent
        repetition, compactor = Repetition(), None
        if budget.compact_at is not None:
            compactor = Compactor(budget, context_tokens, self.setup.vocabulary, episode.dialect, kernel)
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
            turn = await read_turn(reader, kernel, self.setup.vocabulary.bytes_of(typed), at_eos)
            state.sampled(turn, sampled)
            if sampled.finish is Finish.LENGTH:
                state.stop = reason
                state.add(Line(start, end, turn.text, LineKind.OVERLONG, cells=()))
                break

            # Run.
            ran = await run_turn(kernel, turn)
            state.answer, state.answer_forms, state.stop = ran.answer, ran.answer_forms, ran.stop
            if state.stop is None:
                try:
                    ran = ran.observing(await episode.observed(turn))
                except BrokenStateError as failure:
                    state.lost(failure)
            if state.stop is None:
                if turn.answer is not None and state.answer is None:
                    state.answer, state.stop = turn.answer, StopReason.ANSWER
                elif at_eos and not turn.waits:
                    state.stop = StopReason.EOS
                elif spent.lines + len(state.lines) + 1 >= budget.lines:
                    state.stop = StopReason.MAX_LINES
                elif repetition.after(ran, turn.text) >= (budget.repeats or math.inf):
                    state.stop = StopReason.REPEATS
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
                root.typed(RootTurn(self.setup.vocabulary.bytes_of(typed), at_eos, ran), sampled.logprobs, state)
                if root.is_due():
                    await root.fork(kernel, episode)

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
