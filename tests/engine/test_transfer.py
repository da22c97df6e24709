"""New weights by vLLM's own transfer, to two real servers at once. Between GPUs it is NCCL; here it is a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tcp_transfer
import torch
from fake_vllm import FakeVLLM
from serving import RunningServer, servers
from transformers import AutoModelForCausalLM

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig
from repl_rl.engine import SampledLine, TensorFacts, Vocabulary, load_vocabulary
from repl_rl.engine.server import VLLMServerEngine, transfer
from repl_rl.engine.server.client import ServerTimeouts
from repl_rl.errors import EngineError
from repl_rl.models.nano import NANO_PATH

PATIENCE = ServerTimeouts(between_checks_s=0.2, backoff_s=0.01)


class Scaled:
    """nano's weights times a factor; `before` is called with each name as it is sent."""

    def __init__(self, factor: float, before: Callable[[str], None] = lambda name: None) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.mul_(factor)
        self._before = before

    def facts(self) -> list[TensorFacts]:
        return [TensorFacts(name, weight.dtype, tuple(weight.shape)) for name, weight in self.model.named_parameters()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self.model.named_parameters():
            self._before(name)
            yield name, weight.data

    def apart(self, ids: list[int], line: SampledLine) -> float:
        """The most that a log-probability of `line` differs from this model's."""
        with torch.no_grad():
            logits = self.model(torch.tensor([[*ids, *line.ids]])).logits[0, len(ids) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, torch.tensor(line.ids)[:, None])[:, 0]
        return float((own - torch.tensor(line.logprobs)).abs().max())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[RunningServer]]:
    tcp_transfer.register()
    program = Path(tcp_transfer.__file__).with_name("serve_with_tcp.py")
    with servers(tmp_path, 2, '--weight-transfer-config={"backend": "tcp"}', program=program) as both:
        yield both


def open_engine(servers: list[RunningServer], vocabulary: Vocabulary) -> VLLMServerEngine:
    config = EngineConfig(context_tokens=512, servers=tuple(server.url for server in servers))
    return VLLMServerEngine(str(NANO_PATH), vocabulary, ModelConfig(path="nano"), config, timeouts=PATIENCE)


async def sample(engine: VLLMServerEngine, ids: list[int]) -> SampledLine:
    async with engine.slot(300) as slot:
        return await slot.sample_line(ids, 40, SamplingConfig())


async def sample_of_each(engine: VLLMServerEngine, ids: list[int]) -> list[SampledLine]:
    return list(await asyncio.gather(*(sample(engine, ids) for _ in engine._fleet.servers)))


@pytest.mark.covers(
    "two vLLM servers, weights sent without files", "all servers get them, or none is used; sockets in place of NCCL"
)
@pytest.mark.slow
def test_all_servers_get_weights_without_files_or_none_is_used(running: list[RunningServer]) -> None:
    vocabulary = load_vocabulary(str(NANO_PATH))
    ids = list(vocabulary.encode_prompt("What is 3 * 4?"))
    engine = open_engine(running, vocabulary)
    try:
        for number, factor in enumerate((1.1, 0.95), start=1):
            tcp_transfer.Sender.sent.clear()
            weights = Scaled(factor)
            engine.load_weights(weights)
            assert engine.version == number
            assert tcp_transfer.Sender.sent == [each.name for each in weights.facts()]
            assert engine.weights.files == ()
            for line in asyncio.run(sample_of_each(engine, ids)):
                assert weights.apart(ids, line) < 1e-4

        def kill_one_in_the_middle(name: str) -> None:
            if "layers.1" in name:
                running[1].kill()

        with pytest.raises(EngineError, match=r"the transfer of new weights \(tcp\) to .* failed: .*; start these"):
            engine.load_weights(Scaled(1.05, kill_one_in_the_middle))
        assert engine.version == 2
        assert engine._fleet.up == []
        assert "on the way" in asyncio.run(label_of(engine))
    finally:
        engine.close()


async def label_of(engine: VLLMServerEngine) -> str:
    asked = engine._loop.submit(engine._fleet.servers[0].client.get("/weight_info"))
    return str((await asyncio.wrap_future(asked))["weight_version"])


def test_servers_of_an_unknown_backend_or_without_a_gpu_get_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not transfer.can_transfer(None)
    assert not transfer.can_transfer("ipc")
    assert transfer.can_transfer("nccl") == torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert transfer.can_transfer("nccl")


def test_each_server_has_ranks_of_its_own() -> None:
    fakes = [FakeVLLM(load_vocabulary(str(NANO_PATH))) for _ in range(2)]
    bodies = []
    for fake, size in zip(fakes, (4, 2), strict=True):
        fake.workers = size
        fake.on_transfer = lambda path, body: bodies.append((path, body))
    engine = open_engine(fakes, fakes[0].vocabulary)  # type: ignore[arg-type]
    try:
        clients = [server.client for server in engine._fleet.servers]
        asked = transfer.ServerGroup(clients, engine._loop.run, lambda: None)
        asked.init_weight_transfer_engine({"port": 5})
        asked.update_weights({"names": []})
        begun = [body["init_info"] for path, body in bodies if path == "/init_weight_transfer_engine"]
        assert sorted(info["rank_offset"] for info in begun) == [1, 5]
        assert {info["port"] for info in begun} == {5}
        fakes[1].refused["/update_weights"] = 500
        ended = []
        asked = transfer.ServerGroup(clients, engine._loop.run, lambda: ended.append(True))
        with pytest.raises(EngineError, match="HTTP 500"):
            asked.update_weights({"names": []})
        assert ended == [True]
    finally:
        engine.close()
        for fake in fakes:
            fake.close()
