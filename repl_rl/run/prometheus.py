"""A run's metrics for Prometheus, at `http://ADDRESS:PORT/metrics`: the last step's, and those of the pools now.

Names are those of metrics.jsonl with `repl_rl_` before them and `_` for `/`. docs/grafana.json is a dashboard for them.
"""

from __future__ import annotations

import importlib.util
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from repl_rl.config import TrainConfig
from repl_rl.errors import ConfigError, DependencyError, ReplRLError
from repl_rl.utils.distributed import is_main_process

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

    from repl_rl.rollout.batch import RolloutService


class ServeMetrics:
    """Keeps the numbers of the last step, and collects them whenever Prometheus asks."""

    def __init__(self, service: RolloutService, run: str) -> None:
        self._service = service
        self._run = run
        self._numbers: dict[str, float] = {}

    def step(self, row: dict[str, Any]) -> None:
        """Take a step's row of metrics.jsonl."""
        self._numbers = {key: value for key, value in row.items() if key != "kind"} | {"step_ended_at": time.time()}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by prometheus_client, in a thread of its own."""
        numbers = dict(self._numbers)
        try:
            numbers |= {f"kernels/{name}": value for name, value in self._service.kernel_numbers().items()}
        except (ReplRLError, RuntimeError):
            numbers["kernels/workers"] = 0.0  # the rollouts' process is gone, or being closed
        for name, value in numbers.items():
            if math.isfinite(value):
                yield self._gauge(name, value)
        for name in ("up", "under_way"):
            workers = self._gauge(f"worker_{name}", None, "worker", "node")
            for worker in self._service.workers:
                workers.add_metric([self._run, str(worker["worker"]), str(worker["node"])], float(worker[name]))
            if workers.samples:
                yield workers

    def _gauge(self, name: str, value: float | None, *labels: str) -> GaugeMetricFamily:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily("repl_rl_" + re.sub(r"\W", "_", name), name, labels=["run", *labels])
        if value is not None:
            family.add_metric([self._run], value)
        return family


@contextmanager
def serve(config: TrainConfig) -> Iterator[Any]:
    """Listen where the config says, and yield the registry that is served there; without a port, None.

    Raises DependencyError without prometheus_client, and ConfigError if that can't be listened on.
    """
    port, address = config.metrics_port, config.metrics_address
    if port is None or not is_main_process():
        yield None
        return
    if importlib.util.find_spec("prometheus_client") is None:
        raise DependencyError("train.metrics_port needs prometheus_client: pip install prometheus_client")
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        asked = f"train.metrics_port {port} of train.metrics_address {address}"
        raise ConfigError(f"{asked} can't be listened on ({error}); take another one") from error
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
