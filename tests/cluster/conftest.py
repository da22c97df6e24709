"""A real Ray cluster of several nodes on this machine."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import vocabularies
from cluster.shared_engine import SharedScript

from repl_rl.cluster import RolloutCluster, connect
from repl_rl.cluster.rollouts import WorkerTimeouts
from repl_rl.config import BudgetConfig, ClusterConfig, Config, EngineConfig, KernelConfig
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.batch import RolloutService
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup

BACKEND = "cluster.shared_engine:make"
OpenService = Callable[..., RolloutService]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Two nodes with room for a worker each; the head has none."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture(scope="session")
def cluster_config(ray_cluster: Any) -> ClusterConfig:
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    return ClusterConfig(
        address=ray_cluster.address, kernels_per_worker=4, runtime_env={"env_vars": {"PYTHONPATH": paths}}
    )


@pytest.fixture(scope="session")
def connection(cluster_config: ClusterConfig) -> Iterator[None]:
    with connect(cluster_config):
        yield


@pytest.fixture
def engine() -> SharedScript:
    """The trainer's."""
    return SharedScript(vocabularies.nano())


@pytest.fixture
def setup() -> RolloutSetup:
    return RolloutSetup(
        vocabularies.nano(),
        context_tokens=512,
        chat=False,
        budget=BudgetConfig(line_tokens=128, tokens=400),
        kernel=KernelConfig(size=4),
    )


@pytest.fixture
def open_service(
    connection: None, cluster_config: ClusterConfig, engine: SharedScript, setup: RolloutSetup
) -> Iterator[OpenService]:
    """Makes a service whose rollouts are made by workers of the cluster; all are closed after the test."""
    with ExitStack() as stack:

        def make(timeouts: WorkerTimeouts | None = None, **changes: Any) -> RolloutService:
            make_runner = partial(
                RolloutCluster,
                config=Config(engine=EngineConfig(backend=BACKEND)).model_copy(
                    update={"cluster": cluster_config.model_copy(update=changes)}
                ),
                path=str(NANO_PATH),
                timeouts=timeouts or WorkerTimeouts(between_tries_s=0.1),
            )
            return stack.enter_context(start_service(engine, setup, make_runner=make_runner))

        yield make
