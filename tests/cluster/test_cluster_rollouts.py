"""Rollouts on a real Ray cluster: real kernels, real line loops, a scripted engine in each worker."""

from collections.abc import Sequence

import psutil
import pytest
from cluster.conftest import OpenService
from cluster.shared_engine import SharedScript
from waiting import until

from repl_rl.cluster.rollouts import RolloutCluster, WorkerTimeouts
from repl_rl.config import SamplingConfig
from repl_rl.errors import ConfigError, EngineError
from repl_rl.rollout.batch import RolloutBatch, RolloutService
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import Task, Trajectory

pytestmark = pytest.mark.more


def tasks(count: int, seconds: float = 0.0) -> list[Task]:
    wait = f"import time; time.sleep({seconds});;" if seconds else ""
    return [Task(f"t{n}", f"`{wait}x = {n};;x * 2;;submit_final_answer(x * 2)`", str(2 * n)) for n in range(count)]


def answers(trajectories: Sequence[Trajectory]) -> list[str | None]:
    return [trajectory.answer and trajectory.answer[0] for trajectory in trajectories]


def under_way(service: RolloutService) -> list[int]:
    """How many trajectories each worker has."""
    assert isinstance(service, RolloutCluster)
    return [worker.taken for worker in service._workers]


def worker_processes() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [each for each in found if each.is_running() and each.name().startswith("ray::RolloutAct")]


def test_trajectories_are_those_of_one_machine(
    open_service: OpenService, engine: SharedScript, setup: RolloutSetup
) -> None:
    service = open_service()
    engine.load_weights([])
    sampling = SamplingConfig().seeded("a")
    found = service.generate(tasks(20), sampling)
    assert answers(found) == [str(2 * n) for n in range(20)]
    assert {each.version for each in found} == {1}, "weights travel with the tasks"
    with start_service(engine, setup, apart=False) as alone:
        expected = alone.generate(tasks(20), sampling)
    assert [each.completion_ids for each in found] == [each.completion_ids for each in expected]
    numbers = service.kernel_numbers()
    assert (numbers["workers"], numbers["sessions"]) == (2, 20)
    assert (under_way(service), service.at_once) == ([0, 0], 8)
    with pytest.raises(ConfigError, match="context"):  # what a rollout raises is raised here
        service.generate([Task("long", "`x`" + " word" * 600, "")])
    assert answers(service.generate(tasks(1))) == ["0"]


def test_a_worker_that_dies_loses_no_task(open_service: OpenService) -> None:
    service = open_service()
    ended: list[None] = []
    calls = [service.begin(RolloutBatch([task]), lambda *_: ended.append(None)) for task in tasks(12, seconds=0.5)]
    until(lambda: all(under_way(service)))
    worker_processes()[0].kill()
    found = [trajectory for call in calls for trajectory in call.result(300)]
    assert answers(found) == [str(2 * n) for n in range(12)]
    assert len(ended) == 12
    until(lambda: service.kernel_numbers()["workers"] == 2)
    assert answers(service.generate(tasks(8, seconds=0.2))) == [str(2 * n) for n in range(8)]
    assert service.kernel_numbers()["sessions"] >= 8


def test_what_is_cancelled_ends(open_service: OpenService) -> None:
    service = open_service(workers=1)
    calls = [service.begin(RolloutBatch([task])) for task in tasks(4, seconds=30)]
    until(lambda: under_way(service) == [4])
    for call in calls:
        call.cancel()
    until(lambda: under_way(service) == [0])
    assert answers(service.generate(tasks(4))) == ["0", "2", "4", "6"]


def test_without_workers_a_run_ends(open_service: OpenService) -> None:
    service = open_service(WorkerTimeouts(no_worker_s=1.0, between_tries_s=600.0), workers=1)
    call = service.begin(RolloutBatch(tasks(1, seconds=600)))
    until(lambda: service.kernel_numbers()["alive"] > 0 and under_way(service) == [1])
    for process in worker_processes():
        process.kill()
    with pytest.raises(EngineError, match=r"no worker came back within 1 s:\n  worker 0, begun on "):
        call.result(300)
    service.close()
    service.close()


def test_more_workers_than_there_is_room_for(open_service: OpenService) -> None:
    with pytest.raises(ConfigError, match=r"3 workers with 1 CPU each don't fit .* room for 2"):
        open_service(workers=3)
    with pytest.raises(ConfigError, match=r"1 workers with 1 CPU, 1 gold each don't fit"):
        open_service(resources={"CPU": 1.0, "gold": 1.0})
