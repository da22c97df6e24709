"""vLLM servers that a run starts in its cluster, and ends with itself.

Each is a `vllm serve` process that a Ray actor keeps running: one that ends is started again on the same port, where
the engine finds it. If its machine is lost, Ray starts the actor again on another one as soon as one has room, and
engines ask the actor where its server is now (`Replicas.locate`).
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from repl_rl.cluster.connection import actor_at, alive_nodes, nodes_for, require_usable
from repl_rl.config import Config
from repl_rl.engine.environment import has_gpu_driver, prepare_environment
from repl_rl.engine.server.client import ServerClient, ServerTimeouts, ServerUnreachable, serve_flags
from repl_rl.errors import ConfigError, EngineError
from repl_rl.utils.processes import dying_with_parent, free_port

logger = logging.getLogger(__name__)

_MODULE = "vllm.entrypoints.launchers.api_server.entry"
"""What `vllm serve` runs. The CPU package's command looks for another package's metadata."""
_CPU_FLAGS = ("--block-size=32", "--enforce-eager")
_START_S = 900.0
_STOP_S = 30.0
_LOCATE_S = 10.0
_RESTARTS = 5
"""How often a server that ends is started again."""
_LOG_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Replicas:
    """The servers of a run. Other processes of the cluster can be given them as well."""

    actors: Mapping[str, Any] = field(default_factory=dict)
    """By the URLs at which the servers began. Ray finds an actor wherever it is."""

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self.actors)

    async def locate(self, url: str) -> str:
        """The present URL of the server that began at `url`. Raises ServerUnreachable if no machine has it now."""
        import ray

        answer = self.actors[url].url.remote()
        try:
            async with asyncio.timeout(_LOCATE_S):
                location: str | EngineError = await answer
        except TimeoutError as error:
            ray.cancel(answer)
            raise ServerUnreachable(f"the machine of {url} does not say where it is") from error
        except ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ServerUnreachable(f"{url} is gone, and Ray has not started it elsewhere yet: {reason}") from error
        if isinstance(location, EngineError):
            raise ServerUnreachable(str(location))
        return location


@contextmanager
def open_replicas(config: Config, path: str) -> Iterator[Replicas]:
    """Start the servers of `config.cluster` with the model at `path`; they end with the block.

    Raises ConfigError if they don't fit into the cluster, and EngineError with the end of its log if one doesn't start.
    """
    cluster = config.cluster
    if cluster is None or not cluster.replicas:
        yield Replicas()
        return
    import ray

    nodes = nodes_for(cluster.replica_resources, cluster.replicas, "vLLM servers")
    folder = config.engine.weights_folder
    if folder is not None:  # a worker has a home and a working folder of its own
        folder = str(Path(folder).expanduser().absolute())
    this_machine = alive_nodes()[0].address
    other_machines = [node.address for node in nodes if node.address != this_machine]
    if folder is None and other_machines:
        raise ConfigError(
            f"cluster.replicas: servers on {', '.join(other_machines)} can't read new weights from a temporary "
            "folder of this machine; name a folder that all share in engine.weights_folder"
        )
    if folder is not None:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"engine.weights_folder {folder} can't be made: {error}") from error
    require_usable(nodes, {"weights_folder": folder, "model": path})
    arguments = [
        f"--model={path}",
        *serve_flags(config.model.dtype, config.engine.context_tokens),
        f"--max-num-seqs={config.engine.places}",
        "--disable-uvicorn-access-log",
        *cluster.replica_arguments,
    ]
    replicas = []
    try:
        for node in nodes:
            actor = actor_at(node, ReplicaActor, cluster.replica_resources)
            replicas.append(actor.remote(config.engine.kv_cache_gib, arguments))
        starts = [replica.start.remote() for replica in replicas]
        try:
            urls: list[str | EngineError] = ray.get(starts, timeout=_START_S + _STOP_S)
        except ray.exceptions.RayError as error:
            raise EngineError(f"cluster.replicas: a vLLM server did not start: {error}") from error
        for url in urls:
            if isinstance(url, EngineError):
                raise url
        yield Replicas({str(url): replica for url, replica in zip(urls, replicas, strict=True)})
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            stops = [replica.stop.remote() for replica in replicas]
            ray.wait(stops, num_returns=len(stops), timeout=_STOP_S)
        for replica in replicas:
            ray.kill(replica)


class ReplicaActor:
    """Keeps one server running on the machine that Ray puts it on. Ray runs its methods on one event loop.

    An actor that Ray has started again on another machine begins a new server there once it is asked for its URL.
    """

    def __init__(self, kv_cache_gib: int, arguments: Sequence[str]) -> None:
        prepare_environment(kv_cache_gib)
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def url(self) -> str | EngineError:
        """Where the server is, or will be once it answers; why it isn't, if it won't be started again."""
        if self._keeping is None:
            import ray

            address = ray.util.get_node_ip_address()
            port = free_port(address)
            self._url = f"http://{address}:{port}"
            handle, name = tempfile.mkstemp(prefix="repl-rl-vllm-", suffix=".log")
            os.close(handle)
            self._log = Path(name)
            flags = () if has_gpu_driver() else _CPU_FLAGS
            command = [sys.executable, "-m", _MODULE, f"--host={address}", f"--port={port}", *flags, *self._arguments]
            self._keeping = asyncio.create_task(self._keep(command))
        if self._keeping.done():
            return self._failure("ended for good")
        return self._url

    async def start(self) -> str | EngineError:
        """Wait until the server answers for the first time. Its URL, or why it does not."""
        url = await self.url()
        if isinstance(url, EngineError):
            return url
        try:
            async with asyncio.timeout(_START_S), aiohttp.ClientSession() as session:
                client = ServerClient(url, session, ServerTimeouts())
                while self._process is None or self._process.returncode is None:
                    with contextlib.suppress(ServerUnreachable):
                        await client.get("/health")
                        return url
                    await asyncio.sleep(0.5)
        except TimeoutError:
            return self._failure(f"did not answer within {_START_S:g} s")
        return self._failure("ended")

    async def stop(self) -> None:
        """End the server, and its log."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_S / 2)
            _kill_group(self._process.pid)
        self._log.unlink(missing_ok=True)

    async def _keep(self, command: Sequence[str]) -> None:
        """Run the server, and again if it ends, but not for ever."""
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        if "--enable-lora" in self._arguments:
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        for _ in range(1 + _RESTARTS):
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *dying_with_parent(command),  # the parent is Ray's thread for this actor, which lives as long
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            status = await self._process.wait()
            _kill_group(self._process.pid)  # its engine, a child, may live on and hold the memory
            logger.warning("the vLLM server has ended (exit status %d): %s", status, self._log)
            await asyncio.sleep(1)

    def _failure(self, event: str) -> EngineError:
        log_end = self._log.read_text(errors="replace")[-_LOG_CHARS:]
        return EngineError(f"a vLLM server on {socket.gethostname()} {event} (log: {self._log}):\n{log_end}")


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
