"""Two trainer processes on one server: the main one loads weights for both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_vllm import FakeVLLM

from repl_rl.engine import load_vocabulary
from repl_rl.models.nano import NANO_PATH
from repl_rl.utils.processes import free_port

PROGRAM = """
import asyncio, sys
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer
from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig
from repl_rl.engine import load_vocabulary, make_engine
from repl_rl.models.nano import NANO_PATH
from repl_rl.trainer import EngineGeneration

async def sample(engine):
    async with engine.slot(300) as slot:
        return await slot.sample_line([1, 2], 40, SamplingConfig())

path = str(NANO_PATH)
accelerator = Accelerator(cpu=True)
config = EngineConfig(servers=(sys.argv[1],), context_tokens=512)
engine = make_engine(path, load_vocabulary(path), ModelConfig(), config)
generation = EngineGeneration(
    engine, model=AutoModelForCausalLM.from_pretrained(path), accelerator=accelerator,
    processing_class=AutoTokenizer.from_pretrained(path),
)
for _ in range(2):
    accelerator.wait_for_everyone()
    generation.sync_weights()
    asyncio.run(sample(engine))
accelerator.wait_for_everyone()
print("sampled with", accelerator.process_index, engine.version, engine.weights.label)
engine.close()
accelerator.end_training()
"""


@pytest.fixture
def server() -> Iterator[FakeVLLM]:
    fake = FakeVLLM(load_vocabulary(str(NANO_PATH)))
    yield fake
    fake.close()


def start(rank: int, port: int, url: str, log: Path) -> subprocess.Popen[bytes]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = os.environ | {name: str(value) for name, value in place.items()} | {"ACCELERATE_USE_CPU": "true"}
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, "-c", PROGRAM, url], stdout=output, stderr=output, env=environment)


@pytest.mark.covers("two processes, one server", "the main process loads the weights for both")
@pytest.mark.slow
def test_the_main_process_loads_weights_for_all(server: FakeVLLM, tmp_path: Path) -> None:
    port = free_port()
    logs = [tmp_path / f"rank{rank}.log" for rank in range(2)]
    processes = [start(rank, port, server.url, log) for rank, log in enumerate(logs)]
    try:
        codes = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
    assert [f"sampled with {rank} 2 {server.label}\n" in log.read_text() for rank, log in enumerate(logs)] == [True] * 2
    assert server.events.count("repl_rl_load_weights") == 2
    assert len(server.requests) == 4
    assert {request["cache_salt"] for request in server.requests[2:]} == {server.label}
