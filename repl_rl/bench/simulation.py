"""A model of rollouts on many machines, in simulated time: engines, workers, kernels and a trainer, and their queues.

What is modelled:

- An engine takes a step for all of its running lines at once. A step takes a fixed time, more for each line, and more
  for each token that is read. Lines wait for one of its places.
- A worker machine has cores. Its line loop runs at once, on one of them: if all are taken, a cell takes so much longer.
  Cells and the starts of kernels wait for a core. A cell may wait for something else besides (a tool), without one.
- The trainer takes batches of finished sessions, in the order in which they finish. None begin beyond so many batches
  ahead of it.
- A worker may be lost for a time: its sessions begin anew on the others.

What is not: the network (its time may be added to the wait of a cell), memory, and how long sequences slow a step down.
All times are in seconds.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

Then = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Rates:
    """What one of each takes, in seconds."""

    step: float
    """A step of an engine, whatever runs."""
    sequence: float
    """A step, more for each line that runs."""
    read: float
    """A step, more for each token that is read and not sampled."""
    loop: float
    """The line loop, per line, on a core."""
    cell: float
    """A kernel, per line, on a core."""
    session: float
    """A kernel's start and end, on a core."""


@dataclass(frozen=True, slots=True)
class Work:
    """What sessions are like: numbers of lines and tokens, and seconds, are drawn anew for each."""

    lines: Callable[[Random], int]
    tokens: Callable[[Random], int]
    """Sampled, of a line."""
    shown: int = 8
    """Tokens between two lines, which the engine reads."""
    prompt: int = 64
    """Tokens before the first line."""
    wait: Callable[[Random], float] = lambda rng: 0.0
    """What a cell takes longer, without a core."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What there is."""

    engines: int = 1
    places: int = 64
    """Lines that run in an engine at once."""
    workers: int = 1
    cores: int = 1
    """Of each worker."""
    kernels: int = 64
    """Sessions of each worker at once."""


@dataclass(frozen=True, slots=True)
class Training:
    """A trainer that takes `batch` sessions at a time, for `seconds`.

    Up to `ahead` further batches are rolled out meanwhile; with none, trainer and rollouts wait for each other.
    """

    batch: int
    seconds: float
    ahead: int = 0


@dataclass(slots=True)
class Simulated:
    """What came out of it."""

    seconds: float = 0.0
    sessions: int = 0
    lines: int = 0
    tokens: int = 0
    line_s: list[float] = field(default_factory=list)
    """Of each line, from the request to its output."""
    engine_busy: float = 0.0
    core_busy: float = 0.0
    loop_busy: float = 0.0
    trainer_busy: float = 0.0
    """Shares of the time."""
    waiting: dict[str, float] = field(default_factory=dict)
    """How many waited for engines, cores and loops, on average over time, all of them together."""
    begun_again: int = 0
    """Sessions that were lost with their worker."""

    @property
    def lines_per_s(self) -> float:
        return self.lines / self.seconds

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def line_percentile(self, percent: int) -> float:
        return statistics.quantiles(self.line_s, n=100)[percent - 1]


class _Clock:
    """Calls what is due, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Then]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, then: Then) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), then))

    def run(self, is_over: Callable[[], bool]) -> None:
        while self._due and not is_over():
            self.now, _, then = heapq.heappop(self._due)
            then()


class _Servers:
    """So many of something, and a queue in front of them."""

    def __init__(self, clock: _Clock, count: int) -> None:
        self._clock = clock
        self._free = count
        self._waiting: deque[tuple[float, Then]] = deque()
        self.busy = 0.0
        self.waited = 0.0

    @property
    def are_all_taken(self) -> bool:
        return not self._free

    def take(self, then: Then) -> None:
        if self._free:
            self._free -= 1
            then()
        else:
            self._waiting.append((self._clock.now, then))

    def give_back(self) -> None:
        if self._waiting:
            since, then = self._waiting.popleft()
            self.waited += self._clock.now - since
            then()
        else:
            self._free += 1

    def use(self, seconds: float, then: Then) -> None:
        """Take one for so long."""

        def over() -> None:
            self.busy += seconds
            self.give_back()
            then()

        self.take(lambda: self._clock.after(seconds, over))


class _Engine:
    def __init__(self, clock: _Clock, rates: Rates, places: int) -> None:
        self._clock = clock
        self._rates = rates
        self._places = places
        self._waiting: deque[tuple[float, int, int, Then]] = deque()
        self._running: list[tuple[int, int, Then]] = []
        """A heap: the step after which each line ends."""
        self._steps = 0
        self._is_stepping = False
        self._numbers = itertools.count()
        self.sessions = 0
        self.busy = 0.0
        self.waited = 0.0

    def sample(self, tokens: int, read: int, then: Then) -> None:
        self._waiting.append((self._clock.now, tokens, read, then))
        if not self._is_stepping:
            self._step()

    def _step(self) -> None:
        read = 0
        while self._waiting and len(self._running) < self._places:
            since, tokens, new, then = self._waiting.popleft()
            self.waited += self._clock.now - since
            read += new
            heapq.heappush(self._running, (self._steps + tokens, next(self._numbers), then))
        self._is_stepping = bool(self._running)
        if not self._running:
            return
        seconds = self._rates.step + self._rates.sequence * len(self._running) + self._rates.read * read
        self.busy += seconds
        self._clock.after(seconds, self._end_of_step)

    def _end_of_step(self) -> None:
        self._steps += 1
        ended = []
        while self._running and self._running[0][0] <= self._steps:
            ended.append(heapq.heappop(self._running)[2])
        for then in ended:
            then()
        self._step()


class _Worker:
    def __init__(self, clock: _Clock, fleet: Fleet) -> None:
        self.cores = _Servers(clock, fleet.cores)
        self.loop = _Servers(clock, 1)
        self.owed = 0.0
        """What the loop has taken from cells on a core."""
        self.free = fleet.kernels
        self.is_up = True
        self.sessions: set[_Session] = set()


class _Session:
    """One session, as it goes from engine to worker and back."""

    def __init__(self, simulation: _Simulation, worker: _Worker, engine: _Engine) -> None:
        self._simulation = simulation
        self._worker = worker
        self._engine = engine
        self._left = simulation.work.lines(simulation.rng)
        self._read = simulation.work.prompt
        self._asked = 0.0
        self.is_lost = False
        worker.cores.use(simulation.rates.session, self._ask)

    def _ask(self) -> None:
        if self.is_lost:
            return
        tokens = self._simulation.work.tokens(self._simulation.rng)
        self._asked = self._simulation.clock.now
        self._simulation.result.tokens += tokens
        self._engine.sample(tokens, self._read, self._sampled)
        self._read = self._simulation.work.shown

    def _sampled(self) -> None:
        if self.is_lost:
            return
        self._worker.loop.use(self._simulation.rates.loop, self._run)

    def _run(self) -> None:
        worker, rates = self._worker, self._simulation.rates
        if worker.cores.are_all_taken:
            worker.owed += rates.loop
        else:
            worker.cores.busy += rates.loop
        owed, worker.owed = worker.owed, 0.0
        wait = self._simulation.work.wait(self._simulation.rng)
        worker.cores.use(rates.cell + owed, lambda: self._simulation.clock.after(wait, self._ran))

    def _ran(self) -> None:
        if self.is_lost:
            return
        result = self._simulation.result
        result.lines += 1
        result.line_s.append(self._simulation.clock.now - self._asked)
        self._left -= 1
        if self._left:
            self._ask()
        else:
            self._simulation.ended(self, self._worker, self._engine)


class _Simulation:
    def __init__(
        self, rates: Rates, fleet: Fleet, work: Work, sessions: int, training: Training | None, seed: int
    ) -> None:
        self.rates, self.work, self.rng = rates, work, Random(seed)
        self.clock = _Clock()
        self.result = Simulated()
        self._fleet = fleet
        self._engines = [_Engine(self.clock, rates, fleet.places) for _ in range(fleet.engines)]
        self._workers = [_Worker(self.clock, fleet) for _ in range(fleet.workers)]
        self._training = training
        self._to_begin = sessions
        self._sessions = sessions
        self._trained = self._finished = 0
        self._is_training = False

    def run(self, lose_one_at: float | None, lost_for: float) -> Simulated:
        if lose_one_at is not None:
            self.clock.after(lose_one_at, lambda: self._lose(self._workers[0], lost_for))
        self._begin()
        self.clock.run(lambda: self.result.sessions == self._sessions and not self._is_training)
        found, fleet = self.result, self._fleet
        found.seconds = self.clock.now
        found.engine_busy = sum(engine.busy for engine in self._engines) / (fleet.engines * found.seconds)
        found.core_busy = sum(worker.cores.busy for worker in self._workers)
        found.core_busy /= fleet.workers * fleet.cores * found.seconds
        found.loop_busy = sum(worker.loop.busy for worker in self._workers) / (fleet.workers * found.seconds)
        if self._training is not None:
            found.trainer_busy = self._trained / self._training.batch * self._training.seconds / found.seconds
        found.waiting = {
            "engines": sum(engine.waited for engine in self._engines) / found.seconds,
            "cores": sum(worker.cores.waited for worker in self._workers) / found.seconds,
            "loops": sum(worker.loop.waited for worker in self._workers) / found.seconds,
        }
        return found

    def _begin(self) -> None:
        """Let sessions begin where there is room for them."""
        while self._to_begin and self._may_begin():
            worker = max((each for each in self._workers if each.is_up), key=lambda each: each.free, default=None)
            if worker is None or not worker.free:
                return
            engine = min(self._engines, key=lambda each: each.sessions)
            self._to_begin -= 1
            worker.free -= 1
            engine.sessions += 1
            worker.sessions.add(_Session(self, worker, engine))

    def _may_begin(self) -> bool:
        if self._training is None:
            return True
        not_trained = self._sessions - self._to_begin - self._trained
        return not_trained < (1 + self._training.ahead) * self._training.batch

    def ended(self, session: _Session, worker: _Worker, engine: _Engine) -> None:
        worker.sessions.discard(session)
        worker.free += 1
        engine.sessions -= 1
        self.result.sessions += 1
        self._finished += 1
        self._train()
        self._begin()

    def _train(self) -> None:
        plan = self._training
        if plan is None or self._is_training or self._finished < plan.batch:
            return
        self._finished -= plan.batch
        self._is_training = True
        self.clock.after(plan.seconds, self._step_is_over)
        self._begin()

    def _step_is_over(self) -> None:
        assert self._training is not None
        self._is_training = False
        self._trained += self._training.batch
        self._train()
        self._begin()

    def _lose(self, worker: _Worker, seconds: float) -> None:
        worker.is_up = False
        for session in worker.sessions:
            session.is_lost = True
            session._engine.sessions -= 1
        self._to_begin += len(worker.sessions)
        self.result.begun_again += len(worker.sessions)
        worker.sessions.clear()
        worker.free = self._fleet.kernels

        def back() -> None:
            worker.is_up = True
            self._begin()

        self.clock.after(seconds, back)
        self._begin()


def simulate(
    rates: Rates,
    fleet: Fleet,
    work: Work,
    sessions: int,
    training: Training | None = None,
    seed: int = 0,
    lose_one_at: float | None = None,
    lost_for: float = 60.0,
) -> Simulated:
    """Run so many sessions. With `lose_one_at`, the first worker is lost at that time, for `lost_for` seconds."""
    return _Simulation(rates, fleet, work, sessions, training, seed).run(lose_one_at, lost_for)
