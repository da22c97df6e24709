"""A model of rollouts on many machines, in simulated time: engines, workers, kernels and a trainer, and their queues.

What is modelled:

- An engine takes a step for all of its running lines at once. A step takes a fixed time, more for each line, and more
  for each token that is read. Lines wait for one of its places.
- A worker has cores, which all that computes on them shares evenly: its line loop, cells, and kernels that start. The
  line loop is one process, and does one thing after another. So many kernels start at once, the others wait. A cell may
  wait for something else besides (a tool), without a core. Each session has a kernel of its own; those of the first
  sessions are there at the beginning.
- The trainer's process takes what finished sessions have sent, one after another. It may train on batches of them, in
  the order in which they finish. None begin beyond so many batches ahead of it.
- Workers and engines may be lost for a time. Sessions of a lost worker begin anew on the others; those of a lost engine
  go on at others, which read all that was written so far. A worker that is back starts its kernels.

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

_ROUNDING_S = 1e-9


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
    loop_session: float
    """The line loop, per session, on a core."""
    cell: float
    """A kernel, per line, on a core."""
    kernel: float
    """A kernel's start and end, on a core; what starts wait for one another in Linux included."""
    ending: float
    """A session's end, without a core: Linux takes its time to take a kernel's namespaces apart."""
    taking: float
    """The trainer's process, per session."""


@dataclass(frozen=True, slots=True)
class Work:
    """What sessions are like: numbers of lines and tokens, and seconds, are drawn anew for each. Simulations with the
    same seed have the same sessions."""

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
    cores: float = 1
    """Of each worker. Half a core is one that two workers share."""
    kernels: int = 64
    """Sessions of each worker at once."""
    starts: int = 2
    """Kernels that start at once, of each worker."""
    oldest_first: bool = False
    """Of the lines that wait for an engine, those of the session that began first go first, as in an engine of the
    trainer's process. In a server, it is the line that has waited longest."""


@dataclass(frozen=True, slots=True)
class Training:
    """A trainer that takes `batch` sessions at a time, for `seconds`.

    Up to `ahead` further batches are rolled out meanwhile; with none, trainer and rollouts wait for each other.
    """

    batch: int
    seconds: float
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Loss:
    """The first so many workers and engines are lost at `at_s`, for `for_s` seconds."""

    at_s: float
    workers: int = 1
    engines: int = 0
    for_s: float = 60.0


@dataclass(slots=True)
class Simulated:
    """What came out of it."""

    seconds: float = 0.0
    sessions: int = 0
    """That the trainer has taken."""
    lines: int = 0
    tokens: int = 0
    line_s: list[float] = field(default_factory=list)
    """Of each line, from the request to its output."""
    engine_busy: float = 0.0
    """The share of all places that were taken."""
    core_busy: float = 0.0
    loop_busy: float = 0.0
    trainer_busy: float = 0.0
    """Shares of the time. The trainer's is that in which it trains."""
    taking_busy: float = 0.0
    """What sessions that finished have for the trainer's process to do, as a share of the time: beyond 1, it can't keep
    up."""
    waiting: dict[str, float] = field(default_factory=dict)
    """How many wait for engines, cores, loops, kernels' starts and the trainer's process, on average over time, all of
    them together."""
    begun_again: int = 0
    lost_lines: int = 0
    """Sessions that were lost with their worker, and their lines so far."""

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


class _Cores:
    """Cores that all that computes shares evenly, none of it more than one core."""

    def __init__(self, clock: _Clock, count: float) -> None:
        self._clock = clock
        self._count = count
        self._given = 0.0
        """What each job that has been here from the beginning has got, in seconds of a core."""
        self._since = 0.0
        self._jobs: list[tuple[float, int, Then]] = []
        """A heap: how much is given when each is done."""
        self._numbers = itertools.count()
        self._look_at = float("inf")
        """When the next look is planned. It may come early, for jobs that were added have slowed the others down."""
        self.busy = 0.0
        self.waited = 0.0
        """Jobs beyond the cores, times seconds."""

    def use(self, seconds: float, then: Then) -> None:
        """Compute for so long, were there nothing else."""
        self._advance()
        heapq.heappush(self._jobs, (self._given + seconds, next(self._numbers), then))
        self._plan()

    def _advance(self) -> None:
        passed, self._since = self._clock.now - self._since, self._clock.now
        if self._jobs and passed:
            taken = min(len(self._jobs), self._count)
            self._given += passed * min(1.0, self._count / len(self._jobs))
            self.busy += passed * taken
            self.waited += passed * (len(self._jobs) - taken)

    def _plan(self) -> None:
        """Plan a look at the time when the next job is done, unless one comes before."""
        if not self._jobs:
            return
        left = max(0.0, self._jobs[0][0] - self._given) / min(1.0, self._count / len(self._jobs))
        if self._clock.now + left < self._look_at:
            self._look_at = self._clock.now + left
            self._clock.after(left, self._look)

    def _look(self) -> None:
        if self._clock.now < self._look_at:  # this look was planned before another one that came first
            return
        self._look_at = float("inf")
        self._advance()
        done = []
        while self._jobs and self._jobs[0][0] <= self._given + _ROUNDING_S:
            done.append(heapq.heappop(self._jobs)[2])
        self._plan()
        for then in done:
            then()


class _Queue:
    """What is done on cores, `at_once` at a time, in order: by a process (one), or by starts of kernels."""

    def __init__(self, clock: _Clock, cores: _Cores, at_once: int = 1) -> None:
        self._clock = clock
        self._cores = cores
        self._free = at_once
        self._waiting: deque[tuple[float, float, Then]] = deque()
        self.busy = 0.0
        self.asked = 0.0
        """Seconds of a core that were asked for."""
        self._waited = 0.0
        self._since_sum = 0.0

    @property
    def waited(self) -> float:
        """How many have waited, times seconds; those that wait now included."""
        return self._waited + len(self._waiting) * self._clock.now - self._since_sum

    def use(self, seconds: float, then: Then) -> None:
        self.asked += seconds
        self._waiting.append((self._clock.now, seconds, then))
        self._since_sum += self._clock.now
        self._next()

    def _next(self) -> None:
        if not self._free or not self._waiting:
            return
        since, seconds, then = self._waiting.popleft()
        self._waited += self._clock.now - since
        self._since_sum -= since
        self._free -= 1
        began = self._clock.now

        def done() -> None:
            self.busy += self._clock.now - began
            self._free += 1
            self._next()
            then()

        self._cores.use(seconds, done)


class _Engine:
    def __init__(self, clock: _Clock, rates: Rates, fleet: Fleet) -> None:
        self._clock = clock
        self._rates = rates
        self._places = fleet.places
        self._oldest_first = fleet.oldest_first
        self._waiting: list[tuple[int, int, float, int, int, Then]] = []
        """A heap, by the number of the session or of the line."""
        self._running: list[tuple[int, int, Then]] = []
        """A heap: the step after which each line ends."""
        self._steps = 0
        self._is_stepping = False
        self._numbers = itertools.count()
        self.is_up = True
        self.sessions = 0
        self.busy = 0.0
        self.waited = 0.0

    def lose_all(self) -> None:
        self._waiting.clear()
        self._running.clear()
        self.is_up = False

    def sample(self, session: int, tokens: int, read: int, then: Then) -> None:
        number = next(self._numbers)
        order = session if self._oldest_first else number
        heapq.heappush(self._waiting, (order, number, self._clock.now, tokens, read, then))
        if not self._is_stepping:
            self._step()

    def _step(self) -> None:
        read = 0
        while self._waiting and len(self._running) < self._places:
            _, number, since, tokens, new, then = heapq.heappop(self._waiting)
            self.waited += self._clock.now - since
            read += new
            heapq.heappush(self._running, (self._steps + tokens, number, then))
        self._is_stepping = bool(self._running)
        if not self._running:
            return
        seconds = self._rates.step + self._rates.sequence * len(self._running) + self._rates.read * read
        self.busy += seconds * len(self._running) / self._places
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
    def __init__(self, clock: _Clock, fleet: Fleet, ready: int) -> None:
        self.cores = _Cores(clock, fleet.cores)
        self.loop = _Queue(clock, self.cores)
        self.starts = _Queue(clock, self.cores, fleet.starts)
        self.ready = ready
        """Kernels without a session."""
        self.starting = 0
        self.is_up = True
        self.sessions: dict[_Session, None] = {}


class _Session:
    """One session, as it goes from engine to worker and back."""

    def __init__(self, simulation: _Simulation, number: int, worker: _Worker, engine: _Engine) -> None:
        self._simulation = simulation
        self._rng = Random(simulation.seed + number)
        self.number = number
        self.lines = 0
        """That have run."""
        self._all_lines = simulation.work.lines(self._rng)
        self._length = self._new = simulation.work.prompt
        """Tokens so far, and those that the engine has not read."""
        self._tokens = 0
        """Of the line that is being sampled."""
        self._asked = 0.0
        self.worker = worker
        self.engine = engine
        worker.loop.use(simulation.rates.loop_session, self._ask)

    def _ask(self) -> None:
        if not self.worker.is_up:
            return
        self._tokens = self._simulation.work.tokens(self._rng)
        self._asked = self._simulation.clock.now
        self.engine.sample(self.number, self._tokens, self._new, self._sampled)

    def move(self, engine: _Engine) -> None:
        """Go on at another engine, from the beginning of the line that was being sampled."""
        self.engine, self._new = engine, self._length
        if self._tokens:
            engine.sample(self.number, self._tokens, self._new, self._sampled)

    def _sampled(self) -> None:
        if not self.worker.is_up:
            return
        self._simulation.tokens += self._tokens
        self._length += self._tokens + self._simulation.work.shown
        self._tokens, self._new = 0, self._simulation.work.shown
        self.worker.loop.use(self._simulation.rates.loop, self._run)

    def _run(self) -> None:
        wait = self._simulation.work.wait(self._rng)
        self.worker.cores.use(self._simulation.rates.cell, lambda: self._simulation.clock.after(wait, self._ran))

    def _ran(self) -> None:
        if not self.worker.is_up:
            return
        self._simulation.line_s.append(self._simulation.clock.now - self._asked)
        self.lines += 1
        if self.lines < self._all_lines:
            self._ask()
        else:
            self._simulation.ended(self)


class _Simulation:
    def __init__(
        self, rates: Rates, fleet: Fleet, work: Work, sessions: int, training: Training | None, seed: int
    ) -> None:
        self.rates, self.work, self.seed = rates, work, seed << 32
        self.clock = _Clock()
        self.tokens = 0
        self.line_s: list[float] = []
        self._fleet = fleet
        self._engines = [_Engine(self.clock, rates, fleet) for _ in range(fleet.engines)]
        self._workers = [_Worker(self.clock, fleet, ready=fleet.kernels) for _ in range(fleet.workers)]
        self._gone: list[_Worker] = []
        self._trainer = _Queue(self.clock, _Cores(self.clock, 1))
        self._training = training
        self._sessions = sessions
        self._to_begin = deque(range(sessions))
        self._taken = self._trained = self._to_train = 0
        self._training_s = 0.0
        self._is_training = False
        self._begun_again = self._lost_lines = 0

    def run(self, loss: Loss | None, steady: bool) -> Simulated:
        if loss is not None:
            self.clock.after(loss.at_s, lambda: self._lose(loss))
        self._begin()
        before: dict[str, float] = {}
        lines = 0
        if steady:
            self.clock.run(lambda: len(self._to_begin) <= self._sessions // 2)
            before, lines = self._totals(), len(self.line_s)
            self.clock.run(lambda: not self._to_begin)
        else:
            self.clock.run(lambda: self._taken == self._sessions and not self._is_training)
        passed = {name: total - before.get(name, 0.0) for name, total in self._totals().items()}
        seconds, fleet = passed["seconds"], self._fleet
        return Simulated(
            seconds,
            int(passed["sessions"]),
            len(self.line_s) - lines,
            int(passed["tokens"]),
            self.line_s[lines:],
            engine_busy=passed["engine"] / (fleet.engines * seconds),
            core_busy=passed["cores"] / (fleet.workers * fleet.cores * seconds),
            loop_busy=passed["loop"] / (fleet.workers * seconds),
            trainer_busy=passed["training"] / seconds,
            taking_busy=passed["taking"] / seconds,
            waiting={
                name.removeprefix("waited "): waited / seconds
                for name, waited in passed.items()
                if name.startswith("waited ")
            },
            begun_again=self._begun_again,
            lost_lines=self._lost_lines,
        )

    def _totals(self) -> dict[str, float]:
        """What has come together since the beginning, of seconds and counts."""
        workers = [*self._workers, *self._gone]
        return {
            "seconds": self.clock.now,
            "sessions": self._taken,
            "tokens": self.tokens,
            "engine": sum(engine.busy for engine in self._engines),
            "cores": sum(worker.cores.busy for worker in workers),
            "loop": sum(worker.loop.busy for worker in workers),
            "training": self._training_s,
            "taking": self._trainer.asked,
            "waited engines": sum(engine.waited for engine in self._engines),
            "waited cores": sum(worker.cores.waited for worker in workers),
            "waited loops": sum(worker.loop.waited for worker in workers),
            "waited starts": sum(worker.starts.waited for worker in workers),
            "waited trainer": self._trainer.waited,
        }

    def _begin(self) -> None:
        """Let sessions begin where kernels are ready for them."""
        while self._to_begin and self._may_begin():
            worker = max((each for each in self._workers if each.is_up), key=lambda each: each.ready, default=None)
            if worker is None or not worker.ready:
                return
            worker.ready -= 1
            worker.sessions[_Session(self, self._to_begin.popleft(), worker, self._engine())] = None

    def _engine(self) -> _Engine:
        """For one more session."""
        engine = min((each for each in self._engines if each.is_up), key=lambda each: each.sessions)
        engine.sessions += 1
        return engine

    def _may_begin(self) -> bool:
        if self._training is None:
            return True
        not_trained = self._sessions - len(self._to_begin) - self._trained
        return not_trained < (1 + self._training.ahead) * self._training.batch

    def _start_kernel(self, worker: _Worker) -> None:
        """If there are sessions that it will be for."""
        if sum(each.ready + each.starting for each in self._workers) >= len(self._to_begin):
            return
        worker.starting += 1

        def is_up() -> None:
            if worker.is_up:
                worker.starting -= 1
                worker.ready += 1
                self._begin()

        worker.starts.use(self.rates.kernel, is_up)

    def ended(self, session: _Session) -> None:
        def is_gone() -> None:
            if session.worker.is_up:
                del session.worker.sessions[session]
                session.engine.sessions -= 1
                self._start_kernel(session.worker)
                self._trainer.use(self.rates.taking, self._take)

        self.clock.after(self.rates.ending, is_gone)

    def _take(self) -> None:
        self._taken += 1
        self._to_train += 1
        self._train()

    def _train(self) -> None:
        plan = self._training
        if plan is None or self._is_training or self._to_train < plan.batch:
            return
        self._to_train -= plan.batch
        self._is_training = True

        def is_over() -> None:
            self._is_training = False
            self._trained += plan.batch
            self._training_s += plan.seconds
            self._train()
            self._begin()

        self.clock.after(plan.seconds, is_over)

    def _lose(self, loss: Loss) -> None:
        workers, engines = self._workers[: loss.workers], self._engines[: loss.engines]
        for worker in workers:
            worker.is_up = False
            worker.ready = worker.starting = 0
            for session in worker.sessions:
                session.engine.sessions -= 1
                self._lost_lines += session.lines
            self._to_begin.extendleft(session.number for session in worker.sessions)
            self._begun_again += len(worker.sessions)
            worker.sessions.clear()
        for engine in engines:
            engine.lose_all()
            engine.sessions = 0
        for session in [each for worker in self._workers for each in worker.sessions if not each.engine.is_up]:
            session.move(self._engine())

        def are_back() -> None:
            self._gone += workers
            self._workers[: len(workers)] = [_Worker(self.clock, self._fleet, ready=0) for _ in workers]
            for engine in engines:
                engine.is_up = True
            self._fill()

        self.clock.after(loss.for_s, are_back)
        self._fill()

    def _fill(self) -> None:
        """Start kernels where there is room for them, and let sessions begin."""
        for worker in self._workers:
            room = self._fleet.kernels - len(worker.sessions) - worker.ready - worker.starting
            for _ in range(room if worker.is_up else 0):
                self._start_kernel(worker)
        self._begin()


def simulate(
    rates: Rates,
    fleet: Fleet,
    work: Work,
    sessions: int,
    training: Training | None = None,
    seed: int = 0,
    loss: Loss | None = None,
    steady: bool = False,
) -> Simulated:
    """Run so many sessions. With `steady`, what is told is from when half of them have begun to when the last one
    begins; without, it is all of it."""
    return _Simulation(rates, fleet, work, sessions, training, seed).run(loss, steady)
