"""The trainer's side of rollouts by workers on many machines.

A group (or tree) is the unit: one worker rolls it out, as a whole. If that worker or its machine dies, the group begins
anew at another one, and what was done of it is dropped. A worker that Ray has started again is used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import statistics
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from repl_rl.cluster.connection import Node, actor_at, nodes_for, require_usable
from repl_rl.cluster.worker import RolloutActor, RolloutResult, WorkerSetup, require_shared
from repl_rl.config import ClusterConfig, Config, SeededSampling
from repl_rl.engine import Engine, SharedEngine
from repl_rl.errors import EngineError, ReplRLError
from repl_rl.rollout import OnEnd, RolloutBatch, RolloutService, RolloutSetup, packed
from repl_rl.trajectory import Trajectory
from repl_rl.utils.admission import Admission, Reservation, Room
from repl_rl.utils.threads import BackgroundLoop

if TYPE_CHECKING:
    from repl_rl.engine.server.fleet import Locate

logger = logging.getLogger(__name__)

_MOST_CALLS = 10_000
"""That one actor answers at a time."""
_TRIES = 16
"""Workers that may be lost while they roll out the same group. After that, the group must be at fault."""


@dataclass(frozen=True, slots=True)
class WorkerTimeouts:
    """How long the trainer waits, in seconds."""

    open_s: float = 600.0
    """For all workers to be placed, to import what they need, and to have kernels."""
    no_worker_s: float = 300.0
    """For any worker to come back, once all are gone."""
    between_tries_s: float = 1.0
    """From one attempt to reach a lost worker to the next."""
    close_s: float = 60.0
    """For all workers to end their kernels."""


@dataclass(eq=False, slots=True, kw_only=True)
class _RemoteWorker(Room):
    """Room for as many trajectories as it has kernels; closed while it is lost."""

    number: int
    actor: Any
    node: Node
    trouble: str = ""
    loop_share: float = 0.0

    def __str__(self) -> str:
        return f"worker {self.number}, begun on {self.node.address}"


class RolloutCluster(RolloutService):
    """Workers on the machines of the cluster that this process is connected to, as `config.cluster` says. Their engines
    find servers by `locate` (`Replicas.locate`), and the model at `path`.

    Raises ConfigError if `engine` has its weights in this process, if a machine can't run sessions, or if the cluster
    is too small.
    """

    def __init__(
        self,
        engine: Engine,
        setup: RolloutSetup,
        *,
        config: Config,
        path: str,
        locate: Locate | None = None,
        timeouts: WorkerTimeouts | None = None,
    ) -> None:
        super().__init__(setup)
        require_shared(engine, config.engine)
        assert isinstance(engine, SharedEngine)
        cluster = config.cluster
        assert cluster is not None
        self._engine = engine
        self._timeouts = timeouts or WorkerTimeouts()
        self._workers: list[_RemoteWorker] = []
        self._revivals: set[asyncio.Task[None]] = set()
        kernels = cluster.kernels_per_worker or setup.kernel.size
        pool_config = setup.kernel.model_copy(update={"size": kernels})
        worker_rollout = replace(setup, kernel=pool_config, at_once=kernels)
        nodes = nodes_for(cluster.resources, cluster.workers, "workers")
        self.at_once = kernels * len(nodes)
        require_usable(nodes, {"backend": setup.kernel.backend, "sandbox": setup.kernel.sandbox})
        self._loop = BackgroundLoop()
        try:
            rollout = packed(worker_rollout, worker_rollout)
            worker_setup = WorkerSetup(config, path, rollout, engine.weights, locate)
            self._loop.run(self._open(nodes, cluster, kernels, worker_setup))
        except BaseException:
            self.close()
            raise

    def begin(self, batch: RolloutBatch, on_end: OnEnd = lambda index, trajectory: None) -> Future[list[Trajectory]]:
        """As `RolloutService.begin`; consecutive equal tasks go to one worker."""

        async def roll_out_all() -> list[Trajectory]:
            trajectories = await self._all(_units(batch))
            for index, trajectory in enumerate(trajectories):
                on_end(index, trajectory)
            return trajectories

        return self._loop.submit(roll_out_all())

    def kernel_numbers(self) -> dict[str, float]:
        """The pools' counters, added up, the median of medians, the greatest p99, and how many workers are up, and
        lost for now."""
        return self._loop.run(self._numbers())

    def close(self) -> None:
        """End all workers with their kernels. A second call does nothing."""
        if not self._loop.is_closed:
            self._loop.run(self._close())
            self._loop.close()

    async def _open(self, nodes: Sequence[Node], config: ClusterConfig, kernels: int, setup: WorkerSetup) -> None:
        import ray

        self._setup = ray.put(setup)
        for number, node in enumerate(nodes):
            actor = actor_at(node, RolloutActor, config.resources, max_concurrency=_MOST_CALLS)
            self._workers.append(_RemoteWorker(kernels, number=number, actor=actor.remote(), node=node))
        self._admission = Admission(*self._workers)
        opening = [self._open_worker(worker) for worker in self._workers]
        try:
            async with asyncio.timeout(self._timeouts.open_s):
                await asyncio.gather(*opening)
        except TimeoutError as error:
            raise EngineError(
                f"cluster: {len(nodes)} workers did not come up within {self._timeouts.open_s:g} s; `ray status` says "
                "what is free"
            ) from error

    async def _open_worker(self, worker: _RemoteWorker) -> None:
        import ray

        try:
            error = await worker.actor.open.remote(self._setup)
        except ray.exceptions.RayError as failure:
            raise EngineError(f"{worker} did not start: {failure}") from failure
        if error is not None:
            error.add_note(f"({worker})")
            raise error

    async def _all(self, units: Sequence[RolloutBatch]) -> list[Trajectory]:
        calls = [asyncio.create_task(self._roll_out(unit)) for unit in units]
        try:
            groups = await asyncio.gather(*calls)
            return [trajectory for group in groups for trajectory in group]
        finally:
            for call in calls:
                call.cancel()

    async def _roll_out(self, unit: RolloutBatch) -> list[Trajectory]:
        for _ in range(_TRIES):
            may_begin = asyncio.Event()
            reservation = self._admission.ask(len(unit.tasks), may_begin.set)
            try:
                worker = await self._worker_of(reservation, may_begin)
                result = await self._call(worker, unit)
            finally:
                self._admission.leave(reservation)
            if result is not None:
                trajectories, worker.loop_share = result
                self.loop_share = max(peer.loop_share for peer in self._workers)
                return trajectories
        raise EngineError(
            f"cluster: {_TRIES} workers were lost, one after another, while they rolled out {unit.tasks[0].id!r}:\n"
            f"{self._troubles()}"
        )

    async def _worker_of(self, reservation: Reservation, may_begin: asyncio.Event) -> _RemoteWorker:
        """The worker that has room, once there is one. Raises EngineError if all are lost and none comes back."""
        while not may_begin.is_set():
            try:
                await asyncio.wait_for(may_begin.wait(), self._timeouts.no_worker_s)
            except TimeoutError:
                if not any(worker.is_open for worker in self._workers):
                    raise EngineError(
                        f"cluster: no worker came back within {self._timeouts.no_worker_s:g} s:\n{self._troubles()}"
                    ) from None
        assert isinstance(reservation.room, _RemoteWorker)
        return reservation.room

    async def _call(self, worker: _RemoteWorker, unit: RolloutBatch) -> RolloutResult | None:
        """What the worker returns; None if it is lost. Raises what was raised there."""
        import ray

        answer = worker.actor.roll_out.remote(unit, self._engine.weights)
        result: RolloutResult | Exception | None = None
        trouble = "it was started anew"  # then the actor is not open, and returns None
        try:
            result = await answer
        except asyncio.CancelledError:
            ray.cancel(answer)
            raise
        except ray.exceptions.RayError as error:
            trouble = str(error).strip().partition("\n")[0]
        if result is None:
            self._lose(worker, trouble)
        elif isinstance(result, Exception):
            raise result
        return result

    def _lose(self, worker: _RemoteWorker, trouble: str) -> None:
        worker.trouble = trouble
        if worker.is_open:
            worker.is_open = False
            logger.warning("%s is lost, and others begin its %d trajectories anew: %s", worker, worker.taken, trouble)
            revival = asyncio.create_task(self._revive(worker))
            self._revivals.add(revival)
            revival.add_done_callback(self._revivals.discard)

    async def _revive(self, worker: _RemoteWorker) -> None:
        while not worker.is_open:
            await asyncio.sleep(self._timeouts.between_tries_s)
            try:
                await self._open_worker(worker)
            except ReplRLError as error:
                worker.trouble = str(error).partition("\n")[0]
            else:
                logger.warning("%s is back", worker)
                self._admission.reopen(worker)

    def _troubles(self) -> str:
        return "\n".join(f"  {worker}: {worker.trouble or 'up'}" for worker in self._workers)

    async def _numbers(self) -> dict[str, float]:
        """The numbers of all workers together: sums, but medians of medians (p50) and the largest tails (p99)."""
        up = [worker for worker in self._workers if worker.is_open]
        calls = [_answer(worker.actor.kernel_numbers.remote()) for worker in up]
        values_by_name: dict[str, list[float]] = {}
        for numbers in await asyncio.gather(*calls):
            if numbers is None:
                continue
            for name, value in numbers.items():
                values_by_name.setdefault(name, []).append(value)
        merged: dict[str, float] = {}
        for name, values in values_by_name.items():
            if name.endswith("_p50"):
                merged[name] = statistics.median(values)
            elif name.endswith("_p99"):
                merged[name] = max(values)
            else:
                merged[name] = sum(values)
        merged["workers"] = float(len(up))
        merged["workers_lost"] = float(len(self._workers) - len(up))
        return merged

    async def _close(self) -> None:
        import ray

        for revival in self._revivals:
            revival.cancel()
        calls = [_answer(worker.actor.close.remote()) for worker in self._workers if worker.is_open]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.close_s):
                await asyncio.gather(*calls)
        for worker in self._workers:
            ray.kill(worker.actor)


def _units(batch: RolloutBatch) -> list[RolloutBatch]:
    """The parts of a batch that one worker rolls out as a whole: equal tasks that follow each other; with `branch`,
    groups of its size."""
    if batch.branch is None:
        groups = [tuple(group) for _, group in itertools.groupby(batch.tasks, key=lambda task: task.id)]
    else:
        size = batch.branch.group_size
        groups = [tuple(batch.tasks[start : start + size]) for start in range(0, len(batch.tasks), size)]
    units = []
    start = 0
    for group in groups:
        sampling = batch.sampling
        if isinstance(sampling, SeededSampling):  # random numbers depend on a trajectory's index in the whole batch
            sampling = sampling.model_copy(update={"first": sampling.first + start})
        units.append(replace(batch, tasks=group, sampling=sampling))
        start += len(group)
    return units


async def _answer(call: Any) -> Any:
    """What a worker answers; None if it is lost."""
    import ray

    try:
        return await call
    except ray.exceptions.RayError:
        return None
