"""Servers of two processes each, that share the model or repeat it: real `vllm serve` on the CPU."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from serving import servers
from test_transfer import Scaled, open_engine, sample

from repl_rl.engine import SampledLine, load_vocabulary
from repl_rl.engine.server import VLLMServerEngine
from repl_rl.models.nano import NANO_PATH

AT_ONCE = 8
"""Lines; vLLM spreads them over data-parallel ranks."""


async def sample_many(engine: VLLMServerEngine, ids: list[int]) -> list[SampledLine]:
    return list(await asyncio.gather(*(sample(engine, ids) for _ in range(AT_ONCE))))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.covers("a tensor-parallel or data-parallel vLLM server", "every rank samples with new weights")
@pytest.mark.parametrize("flag", ["--tensor-parallel-size=2", "--data-parallel-size=2"])
def test_every_rank_samples_with_new_weights(flag: str, tmp_path: Path) -> None:
    vocabulary = load_vocabulary(str(NANO_PATH))
    ids = list(vocabulary.encode_prompt("What is 3 * 4?"))
    with servers(tmp_path, 1, flag) as running:
        engine = open_engine(running, vocabulary)
        try:
            for factor in (1.1, 0.95):
                weights = Scaled(factor)
                engine.load_weights(weights)
                for line in asyncio.run(sample_many(engine, ids)):
                    assert weights.apart(ids, line) < 1e-4
        finally:
            engine.close()
