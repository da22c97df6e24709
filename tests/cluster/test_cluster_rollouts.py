"""Rollouts by workers of a real Ray cluster: real kernels, real line loops, a scripted engine in each worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import ray
from conftest import OpenService
from shared_engine import SharedScript

from repl_rl.cluster.rollouts import WorkerTimeouts
from repl_rl.config import KernelConfig, SamplingConfig
from repl_rl.engine import load_vocabulary
from repl_rl.errors import ConfigError, EngineError
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.batch import RolloutBatch, RolloutService
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import Task, Trajectory


def tasks(count: int, seconds: float = 0.0) -> list[Task]:
    wait = f"import time; time.sleep({seconds});;" if seconds else ""
    return [Task(f"t{n}", f"`{wait}x = {n};;x * 2;;submit_final_answer(x * 2)`", str(2 * n)) for n in range(count)]


def answers(trajectories: Sequence[Trajectory]) -> list[str | None]:
    return [trajectory.answer and trajectory.answer[0] for trajectory in trajectories]


def workers(service: RolloutService) -> list[Any]:
    return service._workers  # type: ignore[attr-defined]


def until(true: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_trajectories_are_those_of_one_machine(open_service: OpenService) -> None:
    service = open_service()
    sampling = SamplingConfig().seeded("a")
    found = service.generate(tasks(20), sampling)
    assert answers(found) == [str(2 * n) for n in range(20)]
    vocabulary = load_vocabulary(str(NANO_PATH))
    setup = RolloutSetup(vocabulary, context_tokens=512, chat=False, kernel=KernelConfig(size=4))
    with start_service(SharedScript(vocabulary), setup, apart=False) as alone:
        expected = alone.generate(tasks(20), sampling)
    assert [each.completion_ids for each in found] == [each.completion_ids for each in expected]
    numbers = service.kernel_numbers()
    assert numbers["workers"] == 2
    assert numbers["sessions"] == 20
    assert all(worker.under_way == 0 for worker in workers(service))
    assert service.at_once == 8


def test_a_worker_that_dies_loses_no_task(open_service: OpenService) -> None:
    service = open_service()
    under_way = [service.begin(RolloutBatch([task])) for task in tasks(12, seconds=0.5)]
    until(lambda: all(worker.under_way for worker in workers(service)))
    ray.kill(workers(service)[0].actor, no_restart=False)
    found = [trajectory for each in under_way for trajectory in each.result(300)]
    assert answers(found) == [str(2 * n) for n in range(12)]
    until(lambda: service.kernel_numbers()["workers"] == 2)
    again = service.generate(tasks(8, seconds=0.2))
    assert answers(again) == [str(2 * n) for n in range(8)]
    assert service.kernel_numbers()["sessions"] >= 8


def test_what_is_cancelled_ends(open_service: OpenService) -> None:
    service = open_service(workers=1)
    under_way = [service.begin(RolloutBatch([task])) for task in tasks(4, seconds=30)]
    until(lambda: service.kernel_numbers()["executions"] > 0 or workers(service)[0].under_way == 4)
    for each in under_way:
        each.cancel()
    until(lambda: workers(service)[0].under_way == 0)
    assert answers(service.generate(tasks(4))) == ["0", "2", "4", "6"]


def test_weights_travel_with_the_tasks(open_service: OpenService) -> None:
    service = open_service(workers=1)
    engine = service._engine  # type: ignore[attr-defined]
    engine.load_weights([])
    [trajectory] = service.generate(tasks(1))
    assert trajectory.version == 1


def test_what_a_rollout_raises_is_raised_here(open_service: OpenService) -> None:
    service = open_service(workers=1)
    with pytest.raises(ConfigError, match="context"):
        service.generate([Task("long", "`x`" + " word" * 600, "")])
    assert answers(service.generate(tasks(1))) == ["0"]


def test_without_workers_a_run_ends(open_service: OpenService) -> None:
    service = open_service(WorkerTimeouts(no_worker_s=1.0, between_tries_s=60.0), workers=1)
    under_way = service.begin(RolloutBatch(tasks(1, seconds=30)))
    until(lambda: workers(service)[0].under_way == 1)
    ray.kill(workers(service)[0].actor)
    with pytest.raises(EngineError, match=r"no worker came back within 1 s:\n  worker 0, begun on "):
        under_way.result(60)
    service.close()
    service.close()


def test_more_workers_than_there_is_room_for(open_service: OpenService) -> None:
    with pytest.raises(ConfigError, match=r"3 workers with 1 CPU each don't fit .* room for 2"):
        open_service(workers=3)
    with pytest.raises(ConfigError, match=r"1 workers with 1 CPU, 1 gold each don't fit"):
        open_service(resources={"CPU": 1.0, "gold": 1.0})
