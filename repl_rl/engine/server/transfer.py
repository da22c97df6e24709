"""New weights for servers by vLLM's own transfer, from GPU to GPU, without files.

    vllm serve ... --weight-transfer-config '{"backend": "nccl"}'

Both ends are vLLM's (`vllm.distributed.weight_transfer`): so it has to be installed beside the trainer as well. Trainer
and the workers of all servers form one group, in which each tensor is broadcast once; a server's reload then repacks
what its kernels want packed. What is here: one group for several servers, and its end if one of them fails.

Not covered: `ipc`, for which trainer and server share a GPU; the engine in the trainer's process is made for that.
"""

import asyncio
import importlib.util
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import accumulate
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
"""By the name that servers are started with: from the trainer's address, a free port there and the size of the group,
what vLLM's trainer end begins with."""


def can_transfer(backend: str | None) -> bool:
    """Whether this process can send weights to servers that were started with `backend`."""
    if backend not in BACKENDS or importlib.util.find_spec("vllm") is None:
        return False
    return backend != "nccl" or torch.cuda.is_available()


class Transfer:
    """Sends weights to whichever servers take part; forms the group anew when they are others than before."""

    def __init__(self, backend: str, run: Run) -> None:
        self._backend = backend
        self._run = run
        self._clients: list[ServerClient] = []
        self._source: Any = None
        self._sender: Any = None
        self._gpu = torch.cuda.current_device() if torch.cuda.is_available() else None

    def send(
        self, clients: Sequence[ServerClient], facts: Sequence[TensorFacts], named: Iterable[tuple[str, torch.Tensor]]
    ) -> None:
        """Called from any thread but the loop's. Raises EngineError; the group is then gone."""
        if self._gpu is not None:
            torch.cuda.set_device(self._gpu)  # a new thread begins on the first one
        try:
            if self._clients != list(clients):
                self.close()
                self._form_group(list(clients))
            self._source.facts, self._source.named = facts, named
            with torch.no_grad():
                self._sender.send_weights()
        except Exception as error:
            self.close()
            raise EngineError(
                f"the transfer of new weights ({self._backend}) to {', '.join(client.url for client in clients)} "
                f"failed: {type(error).__name__}: {error}; start these servers again and resume the run, or start them "
                "without --weight-transfer-config, and weights go through files"
            ) from error

    def close(self) -> None:
        """Leave the group. Also ends a broadcast under way, which would wait for a failed server for ever."""
        sender, self._sender, self._clients = self._sender, None, []
        if sender is not None:
            sender.shutdown()

    def _form_group(self, clients: list[ServerClient]) -> None:
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        class Source(WeightSource):  # type: ignore[misc]
            """What is sent next: read once, from the first to the last."""

            facts: Sequence[TensorFacts] = ()
            named: Iterable[tuple[str, torch.Tensor]] = ()

            def metadata(self) -> list[ParamMeta]:
                return [ParamMeta(*each) for each in self.facts]

            def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
                return iter(self.named)

        servers = ServerGroup(clients, self._run, self.close)
        parts = urlsplit(clients[0].url)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname, parts.port or 80))  # sends nothing
            address: str = probe.getsockname()[0]  # this machine's, as the server sees it
        begin = BACKENDS[self._backend](address, free_port(), 1 + sum(servers.workers))
        self._source = Source()
        self._sender = WeightTransferTrainerFactory.trainer_init(begin, client=servers, source=self._source)
        self._clients = clients


class ServerGroup:
    """What vLLM's trainer end asks of one server (`VLLMWeightSyncClient`), asked of all servers at once."""

    def __init__(self, clients: Sequence[ServerClient], run: Run, on_failure: Callable[[], None]) -> None:
        self._clients = clients
        self._run = run
        self._on_failure = on_failure
        answers = self._ask([client.get("/get_world_size") for client in clients])
        self.workers = [int(answer["world_size"]) for answer in answers]
        """Of each server."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        firsts = accumulate(self.workers, initial=1)  # the trainer is the first of all
        bodies = [{"init_info": {**init_info, "rank_offset": first}} for first in firsts][: len(self._clients)]
        self._post("/shutdown_weight_transfer_engine", [None] * len(bodies))
        self._post("/init_weight_transfer_engine", bodies)

    def start_weight_update(self) -> None:
        self._post("/start_weight_update", [None] * len(self._clients))

    def update_weights(self, update_info: Any) -> None:
        try:
            self._post("/update_weights", [{"update_info": update_info}] * len(self._clients))
        except Exception:
            self._on_failure()
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("/finish_weight_update", [None] * len(self._clients))

    def _post(self, path: str, bodies: Sequence[Any]) -> None:
        calls = zip(self._clients, bodies, strict=True)
        self._ask([client.post(path, body, client.timeouts.weights_s) for client, body in calls])

    def _ask(self, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """All answers; as soon as one call fails, its error, and the others are given up."""

        async def ask() -> list[Any]:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(call) for call in calls]
            return [task.result() for task in asked]

        try:
            return list(self._run(ask()))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
