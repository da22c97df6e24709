"""A backend of vLLM's weight transfer for CPUs: the trainer sends each tensor to every worker over a socket.

`serve_with_tcp.py` registers the workers' end in a server; a test calls `register` for the trainer's.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from repl_rl.engine.server import transfer

NAME = "tcp"


@dataclass
class Meeting(WeightTransferInitInfo):  # type: ignore[misc]
    address: str
    port: int
    rank_offset: int


@dataclass
class Announced(WeightTransferUpdateInfo):  # type: ignore[misc]
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class Receiver(WeightTransferEngine[Meeting, Announced]):  # type: ignore[misc]
    """The worker's end."""

    init_info_cls = Meeting
    update_info_cls = Announced
    _connection: socket.socket | None = None

    def init_transfer_engine(self, init_info: Meeting) -> None:
        self._connection = socket.create_connection((init_info.address, init_info.port), timeout=60)

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))  # vLLM's own waits for an accelerator

    def receive_weights(self, update_info: Announced) -> None:
        self.model.load_weights(self._tensors(update_info))

    def _tensors(self, update_info: Announced) -> Iterator[tuple[str, torch.Tensor]]:
        assert self._connection is not None
        announced = zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        for name, dtype, shape in announced:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            missing = memoryview(tensor.view(-1).view(torch.uint8).numpy())
            while missing:
                count = self._connection.recv_into(missing)
                if not count:
                    raise ConnectionError(f"the trainer went away before {name}")
                missing = missing[count:]
            yield name, tensor

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass
class Begin(TrainerInitInfo):  # type: ignore[misc]
    backend: ClassVar[str] = NAME

    address: str
    port: int
    world_size: int


class Sender(TrainerWeightTransferEngine[Begin]):  # type: ignore[misc]
    """The trainer's end."""

    init_info_cls = Begin
    sent: ClassVar[list[str]] = []
    """The names of all tensors that have been sent, in order."""

    @classmethod
    def trainer_init(cls, init_info: Begin, *, client: Any, source: Any = None) -> Self:
        made = cls(client=client, source=source)
        with socket.create_server((init_info.address, init_info.port)) as listening, ThreadPoolExecutor(1) as thread:
            listening.settimeout(60)
            asking = thread.submit(
                client.init_weight_transfer_engine, {"address": init_info.address, "port": init_info.port}
            )
            made.connections = [listening.accept()[0] for _ in range(init_info.world_size - 1)]
            asking.result()
        return made

    def send_weights(self) -> None:
        facts = self.source.metadata()
        announced = Announced(
            [each.name for each in facts],
            [str(each.dtype).removeprefix("torch.") for each in facts],
            [list(each.shape) for each in facts],
        )
        self.client.start_weight_update()
        with ThreadPoolExecutor(1) as thread:
            asking = thread.submit(self.client.update_weights, asdict(announced))
            for name, tensor in self.source:
                for connection in self.connections:
                    connection.sendall(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
                self.sent.append(name)
            asking.result()
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        for connection in self.connections:
            connection.close()


def register_workers_end() -> None:
    WeightTransferEngineFactory.register_engine(NAME, Receiver)


def register() -> None:
    """In a trainer's process, for good."""
    if NAME not in transfer.BACKENDS:
        WeightTransferTrainerFactory.register_engine(NAME, Sender)
        transfer.BACKENDS[NAME] = lambda address, port, world_size: Begin(address, port, world_size, rank=0)
