"""One trainer process rolls out for several, where the workers, servers or engine can have one caller only.

A cluster has one set of workers. A server that samples while the trainer trains answers with weights whose version only
the process that sent them knows. So the main process asks for the tasks of all processes, as a single process with the
whole batch would, and gives each process its share. Groups stay whole, and seeds are those of a single process. Where
several processes hold one model in shards (tensor parallelism), the first of each such team rolls out for its team.
"""

from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from repl_rl.engine import Engine, SharedEngine, Slot
from repl_rl.engine.factory import EngineMaker
from repl_rl.errors import EngineError
from repl_rl.rollout import MakeRunner, OnEnd, RolloutBatch, RolloutService, RolloutSetup, start_service
from repl_rl.trainer.arguments import ReplGRPOConfig
from repl_rl.trajectory import Trajectory
from repl_rl.utils.distributed import gather_to_main, is_main_process, process_count, process_rank, share_of_main


def _is_for_all(args: ReplGRPOConfig, make_runner: MakeRunner | None) -> bool:
    """Whether the main process rolls out for all: with `make_runner`, and with servers beside `asynchronous`."""
    has_one_caller = make_runner is not None or (args.asynchronous is not None and args.engine.servers)
    return process_count() > 1 and bool(has_one_caller)


def engine_maker(args: ReplGRPOConfig, make_runner: MakeRunner | None, make_engine: EngineMaker) -> EngineMaker:
    """`make_engine` where this process has an engine of its own, or a shard of one."""
    if _is_for_all(args, make_runner) and not is_main_process():
        return EngineOfMain
    return make_engine


class EngineOfMain(SharedEngine):
    """What the other processes have for an engine: it knows how the main one's weights are called, and loads none."""

    weights: Any = None
    version = 0

    def __init__(self, *arguments: Any) -> None:
        """`arguments` are those of `make_engine`."""

    def slot(self, tokens: int, is_subcall: bool = False) -> AbstractAsyncContextManager[Slot]:
        raise EngineError("only the main process samples")

    def adopt(self, weights: Any) -> None:
        self.weights = weights
        self.version += 1


def start(engine: Engine, setup: RolloutSetup, args: ReplGRPOConfig, make_runner: MakeRunner | None) -> RolloutService:
    """As `start_service`; if one process rolls out for several, its service in all of them."""
    team = process_count() if _is_for_all(args, make_runner) else args.engine.shards
    service = None
    if process_rank() % team == 0:
        service = start_service(engine, setup, make_runner=make_runner)
        if team == 1:
            return service
    return RolloutsOfMain(setup, service, team)


class RolloutsOfMain(RolloutService):
    """The main process's `service` for all processes, which call `roll_out` together; the others have None. Or that of
    the first process of each `team` of so many, for its team.

    `begin` is the main process's alone.
    """

    is_shared = True

    def __init__(self, setup: RolloutSetup, service: RolloutService | None, team: int) -> None:
        super().__init__(setup)
        self._service = service
        self._team = team
        if service is not None:
            self.at_once = service.at_once

    def roll_out(self, batch: RolloutBatch, on_end: OnEnd = lambda index, trajectory: None) -> list[Trajectory]:
        """This process's share of the batches of all, whose sampling is the main one's. What fails there is raised in
        all of them. `on_end` is told of the main one's own trajectories."""
        tasks_of_processes = gather_to_main([tuple(batch.tasks)], self._team)

        def on_end_of_main(index: int, trajectory: Trajectory) -> None:
            if index < len(batch.tasks):  # the main process's tasks are the first
                on_end(index, trajectory)

        def shares() -> list[list[Trajectory]]:
            assert self._service is not None
            self._service.watched = self.watched
            tasks = [task for share in tasks_of_processes for task in share]
            trajectories = self._service.roll_out(replace(batch, tasks=tasks), on_end_of_main)
            self.loop_share = self._service.loop_share
            shares = []
            start = 0
            for share in tasks_of_processes:
                shares.append(trajectories[start : start + len(share)])
                start += len(share)
            return shares

        return share_of_main(shares, self._team)

    def begin(self, batch: RolloutBatch, on_end: OnEnd = lambda index, trajectory: None) -> Future[list[Trajectory]]:
        assert self._service is not None
        return self._service.begin(batch, on_end)

    def kernel_numbers(self) -> dict[str, float]:
        return {} if self._service is None else self._service.kernel_numbers()

    def close(self) -> None:
        if self._service is not None:
            self._service.close()
