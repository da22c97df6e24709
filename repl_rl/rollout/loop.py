"""Where engine, kernel and dialect meet: a task becomes a trajectory, line by line.

`Rollout.one` is the whole idea, read top to bottom: sample a line, run it, insert the output, until something ends it.
Trajectories run side by side and never wait for one another. A failure of the machinery makes a trajectory `aborted`;
whatever the typed code does is part of the data.

Not covered: a failing engine, which ends the run, because all trajectories share it.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import lru_cache

from repl_rl.config import BranchConfig, SamplingConfig, SeededSampling
from repl_rl.dialect import Shown
from repl_rl.engine import Engine, Finish, Vocabulary, slot_of
from repl_rl.errors import KernelError
from repl_rl.kernel import KernelSource
from repl_rl.rollout.batch import OnEnd, RolloutBatch, refuse_if_all_aborted
from repl_rl.rollout.custom import SamplerEngine, run_sampler
from repl_rl.rollout.episode import EpisodeMaker
from repl_rl.rollout.events import Event, Listener, event_stream
from repl_rl.rollout.execute import TrajectoryKernel, read_turn, run_turn
from repl_rl.rollout.guests import guests_of, trees_of
from repl_rl.rollout.scheduler import scheduled
from repl_rl.rollout.session import Episode, Request, Session, Start, Typed
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.rollout.state import Clock, Wait
from repl_rl.rollout.tree import Root
from repl_rl.trajectory import Line, LineKind, Task, Trajectory
from repl_rl.utils.user_code import Seam, boundary

_REMEMBERED_TEXTS = 1024
_SHORT_CHARS = 32


class Rollout:
    """The policy in `engine` at the keyboard of interpreters from `kernels`. One instance serves many tasks at once."""

    def __init__(self, engine: Engine, kernels: KernelSource, setup: RolloutSetup) -> None:
        self.engine = engine
        self.kernels = kernels
        self.setup = setup
        self._episodes = EpisodeMaker(setup, engine)
        self._encoder = ShownEncoder(setup.vocabulary)

    def stream(self, task: Task, sampling: SamplingConfig | None = None) -> AsyncGenerator[Event, None]:
        """What happens to one task (`repl_rl.rollout.events`), as it happens: each line before and after it runs.

        Raises what `as_completed` raises. Closing the iterator cancels what is still running.
        """
        batch = RolloutBatch([task], sampling)

        async def roll(listener: Listener) -> Trajectory:
            async with aclosing(self.as_completed(batch, listener)) as completed:
                [(_, trajectory)] = [pair async for pair in completed]
            return trajectory

        return event_stream(task, roll)

    async def many(
        self,
        tasks: Sequence[Task],
        sampling: SamplingConfig | None = None,
        branch: BranchConfig | None = None,
    ) -> list[Trajectory]:
        """The trajectories of a `RolloutBatch` of these, in the order of the tasks.

        Raises what `as_completed` raises, and KernelError if not a single trajectory could run.
        """
        trajectories, _ = await self.run(RolloutBatch(tasks, sampling, branch))
        refuse_if_all_aborted(trajectories)
        return trajectories

    async def run(
        self, batch: RolloutBatch, on_end: OnEnd = lambda index, trajectory: None
    ) -> tuple[list[Trajectory], float]:
        """The trajectories in the order of the tasks, and the CPU time of the event loop's thread over wall time.

        `on_end` is called with each as it ends. Raises what `as_completed` raises.
        """
        trajectories: dict[int, Trajectory] = {}
        began_s = time.monotonic()
        began_cpu_s = time.thread_time()
        async with aclosing(self.as_completed(batch)) as completed:
            async for index, trajectory in completed:
                trajectories[index] = trajectory
                with boundary(Seam.LISTENER, on_end):
                    on_end(index, trajectory)
        share = (time.thread_time() - began_cpu_s) / (time.monotonic() - began_s)
        return [trajectories[index] for index in range(len(batch.tasks))], share

    async def as_completed(
        self, batch: RolloutBatch, listener: Listener | None = None
    ) -> AsyncGenerator[tuple[int, Trajectory], None]:
        """Each task's index and trajectory as it ends, from the user's own loop if there is one, else from ours.

        `listener` is told of each line. Raises ConfigError before anything starts if a prompt is too long, and
        EngineError if the engine fails. Closing the iterator (`contextlib.aclosing`) cancels what is still running.
        """
        setup = self.setup
        tasks = batch.tasks
        sampling = batch.sampling or setup.sampling
        if setup.extensions.sampler is not None:
            engine = SamplerEngine(self.engine, setup.vocabulary, sampling, setup.context_tokens)
            trajectories = await run_sampler(setup.extensions.sampler, tasks, engine, self.kernels)
            for index, trajectory in enumerate(trajectories):
                yield index, trajectory
            return
        self._episodes.refuse(tasks)
        trees = trees_of(batch, setup, sampling)
        requested_at = time.monotonic()

        async def run(index: int) -> Trajectory:
            request = Request(
                tasks[index],
                sampling.of_trajectory(index) if isinstance(sampling, SeededSampling) else sampling,
                setup.budget,
                Clock(requested_at, batch.keeps_waits),
                index,
                listener,
                environments=batch.environments,
            )
            if trees is None:
                return await self._session_of_batch(request)
            return await trees.typed(request, self._session_of_batch)

        try:
            async with aclosing(scheduled(run, len(tasks), setup.at_once)) as completed:
                async for index, trajectory in completed:
                    yield index, trajectory
        finally:
            if trees is not None:
                await trees.close()

    async def _session_of_batch(
        self, request: Request, start: Start | None = None, root: Root | None = None
    ) -> Trajectory:
        """One of a batch, whatever happens: aborted if it can't begin. Raises ReplayDiffersError."""
        start = start or Start()
        try:
            return await self._type_session(request, start, root)
        except KernelError as failure:
            episode = self._episodes.bare(request.task)
            session = self._session(request, start, episode, AsyncExitStack())
            return session.aborted(failure)

    async def _type_session(self, request: Request, start: Start, root: Root | None = None) -> Trajectory:
        """A session from its beginning to its end, aborted if the machinery fails.

        Raises KernelError if it has no environment, and ReplayDiffersError if it can't begin where it should.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(start.held.aclose)
            if start.fork is not None:
                episode = start.fork.episode
            else:
                episode = await self._episodes.make(request.task, request.sampling, stack)
            session = self._session(request, start, episode, stack)
            session.guests = guests_of(session, root)
            try:
                await self._open(session, stack)
                await self.one(session)
                trajectory = await session.ended()
            except KernelError as failure:
                trajectory = session.aborted(failure)
        if episode.environment is not None:
            request.environments[request.index] = episode.environment.instance
        return trajectory

    def _session(self, request: Request, start: Start, episode: Episode, stack: AsyncExitStack) -> Session:
        """A session that has not been opened, without guests. `stack` will give its kernel back."""
        kernel = TrajectoryKernel(
            self.kernels,
            stack,
            request.clock,
            episode.setup,
            episode.toolbox.host_calls(),
            dialect_setup=episode.dialect.setup,
        )
        return Session(request, self.setup, episode, kernel, start, self.engine.version)

    async def _open(self, session: Session, stack: AsyncExitStack) -> None:
        """Take a slot and a kernel, which `stack` gives back. Raises KernelError and ReplayDiffersError."""
        most_tokens = min(len(session.transcript) + session.tokens_left, self.setup.context_tokens)
        with session.clock.waiting(Wait.QUEUE, "slot"):
            slot = await stack.enter_async_context(slot_of(self.engine, most_tokens))
        await session.open(slot)

    async def one(self, session: Session) -> None:
        """The line loop. What comes of it is kept in `session`, even if an exception ends it."""
        transcript = session.transcript
        vocabulary = self.setup.vocabulary
        while session.stop is None:
            allowed, reason = session.allowed()
            if allowed < 1:
                session.stop = reason
                break

            # Sample. The end-of-text token is a key, not text: it does not reach the terminal.
            with session.clock.waiting(Wait.ENGINE):
                sampled = await session.slot.sample_line(transcript.ids, allowed, session.sampling)
            start, end = transcript.append_sampled(sampled.ids, sampled.logprobs, sampled.versions)
            at_eos = sampled.finish is Finish.EOS
            typed = vocabulary.bytes_of(sampled.ids[:-1] if at_eos else sampled.ids)
            turn = await read_turn(session.reader, session.kernel, typed, at_eos)
            session.sampled(turn, sampled)
            if sampled.finish is Finish.LENGTH:
                session.stop = reason
                session.add(Line(start, end, turn.text, LineKind.OVERLONG, cells=()))
                break

            # Run.
            result = await run_turn(session.kernel, turn)
            result = await session.ran(turn, result, at_eos)
            session.turns.append(Typed(typed, at_eos, result))

            # Insert what the dialect shows.
            shown = session.show(result, goes_on=session.stop is None)
            ids, text = self._encoder.encoded(shown, at_eos)
            session.insert(ids)
            session.add(result.as_line(start, end, turn.text, text, session.episode.dialect))
            await session.after_line()


class ShownEncoder:
    """Ids of what a dialect shows. Those of short texts are remembered: prompts and small numbers come again."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._encode_short = lru_cache(_REMEMBERED_TEXTS)(vocabulary.encode_output)

    def encoded(self, shown: Sequence[Shown], at_eos: bool) -> tuple[list[int], str]:
        """The ids and the text of what is shown, without the end-of-turn token if the model has sampled it itself
        (`at_eos`)."""
        ids = list[int]()
        for part in shown:
            if part.is_frame:
                ids += self._vocabulary.encode_frame(part.text)
            elif len(part.text) <= _SHORT_CHARS:
                ids += self._encode_short(part.text)
            else:
                ids += self._vocabulary.encode_output(part.text)
        text = "".join(part.text for part in shown)
        if ids and at_eos and ids[0] in self._vocabulary.eos_ids:
            return ids[1:], text.removeprefix(self._vocabulary.decode(ids[:1]))
        return ids, text
