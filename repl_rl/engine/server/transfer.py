"""New weights for servers by vLLM's own transfer, from GPU to GPU, without files.

    vllm serve ... --weight-transfer-config '{"backend": "nccl"}'

Both ends are vLLM's (`vllm.distributed.weight_transfer`), so vLLM has to be installed beside the trainer as well. The
trainer and the workers of all servers form one group, in which each tensor is broadcast once; a server's reload then
repacks what its kernels want packed. This module makes one group of several servers, and ends it if one of them fails.

Not covered: `ipc`, for which trainer and server share a GPU; the engine in the trainer's process is made for that.
"""

import asyncio
import importlib.util
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import torch

from repl_rl.engine.base import TensorFacts
from repl_rl.engine.server.client import ServerClient
from repl_rl.errors import EngineError
from repl_rl.utils.processes import free_port

logger = logging.getLogger(__name__)

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the engine's loop, from another thread, and returns its result."""


def _nccl(address: str, port: int, world_size: int) -> Any:
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=world_size, rank=0)


BACKENDS: dict[str, Callable[[str, int, int], Any]] = {"nccl": _nccl}
"""By the name that servers are started with: makes the settings of vLLM's trainer end, from the trainer's address, a
free port there and the size of the group."""


def can_transfer(backend: str | None) -> bool:
    """Whether this process can send weights to servers that were started with `backend`."""
    if backend not in BACKENDS or importlib.util.find_spec("vllm") is None:
        return False
    return backend != "nccl" or torch.cuda.is_available()


class Transfer:
    """Sends weights to the servers that take part, and forms a new group when these have changed."""

    def __init__(self, backend: str, run: Run) -> None:
        self._backend = backend
        self._run = run
        self._clients: list[ServerClient] = []
        self._source: Any = None
        self._sender: Any = None
        self._gpu = torch.cuda.current_device() if torch.cuda.is_available() else None

    def send(
        self,
        clients: Sequence[ServerClient],
        facts: Sequence[TensorFacts],
        named_weights: Iterable[tuple[str, torch.Tensor]],
    ) -> None:
        """Called from any thread but the loop's. Raises EngineError; the group is then gone."""
        if self._gpu is not None:
            torch.cuda.set_device(self._gpu)  # a new thread begins on the first one
        try:
            if self._clients != list(clients):
                self.close()
                self._form_group(list(clients))
            self._source.facts = facts
            self._source.named_weights = named_weights
            with torch.no_grad():
                self._sender.send_weights()
        except Exception as error:
            self.close()
            urls = ", ".join(client.url for client in clients)
            raise EngineError(
                f"the transfer of new weights ({self._backend}) to {urls} failed: {type(error).__name__}: {error}; "
                "start these servers again and resume the run, or start them without --weight-transfer-config, and "
                "weights go through files"
            ) from error

    def close(self) -> None:
        """Leave the group. Also ends a broadcast under way, which would wait for a failed server for ever."""
        sender = self._sender
        self._sender = None
        self._clients = []
        if sender is not None:
            sender.shutdown()

    def _form_group(self, clients: list[ServerClient]) -> None:
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        class Source(WeightSource):  # type: ignore[misc]
            """The weights to send next. They are read once, from the first to the last."""

            facts: Sequence[TensorFacts] = ()
            named_weights: Iterable[tuple[str, torch.Tensor]] = ()

            def metadata(self) -> list[ParamMeta]:
                return [ParamMeta(*tensor_facts) for tensor_facts in self.facts]

            def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
                return iter(self.named_weights)

        servers = ServerGroup(clients, self._run, self.close)
        parts = urlsplit(clients[0].url)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname, parts.port or 80))  # sends nothing
            address: str = probe.getsockname()[0]  # this machine's, as the server sees it
        group_size = 1 + sum(servers.workers)
        settings = BACKENDS[self._backend](address, free_port(), group_size)
        self._source = Source()
        self._sender = WeightTransferTrainerFactory.trainer_init(settings, client=servers, source=self._source)
        self._clients = clients


class ServerGroup:
    """Stands for one server before vLLM's trainer end (`VLLMWeightSyncClient`), and passes each call to all servers."""

    def __init__(self, clients: Sequence[ServerClient], run: Run, on_failure: Callable[[], None]) -> None:
        self._clients = clients
        self._run = run
        self._on_failure = on_failure
        answers = self._ask([client.get("/get_world_size") for client in clients])
        self.workers = [int(answer["world_size"]) for answer in answers]
        """The number of workers of each server."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        bodies = []
        first_rank = 1  # the trainer has rank 0
        for workers in self.workers:
            bodies.append({"init_info": {**init_info, "rank_offset": first_rank}})
            first_rank += workers
        self._post("/shutdown_weight_transfer_engine")
        self._post_each("/init_weight_transfer_engine", bodies)

    def start_weight_update(self) -> None:
        self._post("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        try:
            self._post("/update_weights", {"update_info": update_info})
        except Exception:
            self._on_failure()
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("/finish_weight_update")

    def _post(self, path: str, body: Any = None) -> None:
        """The same body to each server."""
        self._post_each(path, [body] * len(self._clients))

    def _post_each(self, path: str, bodies: Sequence[Any]) -> None:
        calls = []
        for client, body in zip(self._clients, bodies, strict=True):
            calls.append(client.post(path, body, client.timeouts.weights_s))
        self._ask(calls)

    def _ask(self, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """All answers. As soon as one call fails, the others are given up and its error is raised."""

        async def ask() -> list[Any]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(call) for call in calls]
            return [task.result() for task in tasks]

        try:
            return list(self._run(ask()))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
