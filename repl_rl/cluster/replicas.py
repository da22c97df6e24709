"""vLLM servers that a run starts in its cluster, and ends with itself.

Each is a `vllm serve` process that a Ray actor keeps running: one that ends is started again on the same port, where
the engine finds it. A server whose machine is lost stays away, and the others take its lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from repl_rl.cluster.connection import Connection, Node, actor_at
from repl_rl.config import Config
from repl_rl.engine.environment import has_gpu_driver, prepare_environment
from repl_rl.engine.server.client import SCHEDULER, WORKER_EXTENSION
from repl_rl.errors import ConfigError, EngineError
from repl_rl.utils.processes import die_with_parent

logger = logging.getLogger(__name__)

_MODULE = "vllm.entrypoints.launchers.api_server.entry"
"""What `vllm serve` runs. The CPU package's command looks for another package's metadata."""
_ON_CPU = ("--block-size=32", "--enforce-eager")
_START_S = 900.0
_STOP_S = 30.0
_RESTARTS = 5
"""How often a server that ends is started again."""
_LOG_CHARS = 2000


@contextmanager
def open_replicas(connection: Connection, config: Config, path: str) -> Iterator[tuple[str, ...]]:
    """Start the servers of `config.cluster` with the model at `path`, and yield their URLs; they end with the block.

    Raises ConfigError if they don't fit into the cluster, and EngineError with the end of its log if one doesn't start.
    """
    cluster = config.cluster
    if cluster is None or not cluster.replicas:
        yield ()
        return
    import ray

    nodes = connection.places(cluster.replica_resources, cluster.replicas, "vLLM servers")
    _require_folders(connection, nodes, config, path)
    arguments = [*serve_arguments(config, path), *cluster.replica_arguments]
    replicas = []
    try:
        for node in nodes:
            actor = actor_at(node, ReplicaActor, cluster.replica_resources, soft=False)
            replicas.append(actor.remote(config.engine.kv_cache_gib))
        begun = [replica.start.remote(node.address, arguments) for replica, node in zip(replicas, nodes, strict=True)]
        try:
            urls: list[str | EngineError] = ray.get(begun, timeout=_START_S + _STOP_S)
        except ray.exceptions.RayError as error:
            raise EngineError(f"cluster.replicas: a vLLM server did not start: {error}") from error
        for url in urls:
            if isinstance(url, EngineError):
                raise url
        yield tuple(str(url) for url in urls)
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait([replica.stop.remote() for replica in replicas], num_returns=len(replicas), timeout=_STOP_S)
        for replica in replicas:
            ray.kill(replica)


def _require_folders(connection: Connection, nodes: Sequence[Node], config: Config, path: str) -> None:
    folder = config.engine.weights_folder
    here = connection.nodes()[0].address
    others = [node.address for node in nodes if node.address != here]
    if folder is None and others:
        raise ConfigError(
            f"cluster.replicas: servers on {', '.join(others)} can't read new weights from a temporary folder of this "
            "machine; name a folder that all share in engine.weights_folder"
        )
    if folder is not None:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"engine.weights_folder {folder} can't be made: {error}") from error
    connection.require(nodes, {"weights_folder": folder, "model": path})


def serve_arguments(config: Config, path: str) -> list[str]:
    """The flags that a server of this run needs (docs/servers.md)."""
    return [
        f"--model={path}",
        f"--dtype={config.model.dtype}",
        f"--max-model-len={config.engine.context_tokens}",
        f"--max-num-seqs={config.engine.places}",
        "--enable-scale-out",
        "--logprobs-mode=processed_logprobs",
        f"--worker-extension-cls={WORKER_EXTENSION}",
        f"--scheduler-cls={SCHEDULER}",
        "--disable-uvicorn-access-log",
    ]


class ReplicaActor:
    """Keeps one server running. Ray runs its methods on one event loop."""

    def __init__(self, kv_cache_gib: int) -> None:
        prepare_environment(kv_cache_gib)
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self, address: str, arguments: Sequence[str]) -> str | EngineError:
        """Start the server on a free port; its URL once it answers, or why it does not."""
        port = _free_port(address)
        flags = () if has_gpu_driver() else _ON_CPU
        command = [sys.executable, "-m", _MODULE, f"--host={address}", f"--port={port}", *flags, *arguments]
        handle, name = tempfile.mkstemp(prefix="repl-rl-vllm-", suffix=".log")
        os.close(handle)
        self._log = Path(name)
        self._process = await self._begin(command)
        self._keeping = asyncio.create_task(self._keep(command))
        url = f"http://{address}:{port}"
        try:
            async with asyncio.timeout(_START_S):
                while not await _answers(url):
                    if self._process.returncode is not None:
                        return self._failure("ended")
                    await asyncio.sleep(0.5)
        except TimeoutError:
            return self._failure(f"did not answer within {_START_S:g} s")
        return url

    async def stop(self) -> None:
        """End the server, and its log."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_S / 2)
            except TimeoutError:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._log.unlink(missing_ok=True)

    async def _begin(self, command: Sequence[str]) -> asyncio.subprocess.Process:
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    async def _keep(self, command: Sequence[str]) -> None:
        for _ in range(_RESTARTS):
            assert self._process is not None
            status = await self._process.wait()
            logger.warning("the vLLM server has ended (exit status %d), and is started again: %s", status, self._log)
            await asyncio.sleep(1)
            self._process = await self._begin(command)

    def _failure(self, what: str) -> EngineError:
        end = self._log.read_text(errors="replace")[-_LOG_CHARS:]
        return EngineError(f"a vLLM server on {socket.gethostname()} {what} (log: {self._log}):\n{end}")


async def _answers(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError):
        return False


def _free_port(address: str) -> int:
    with socket.socket() as listening:
        listening.bind((address, 0))
        port: int = listening.getsockname()[1]
        return port
