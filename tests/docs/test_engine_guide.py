"""The guide to engines: its own engine is taken from the page and used."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from vocabularies import nano

import repl_rl
from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig
from repl_rl.engine import Engine, Finish, SampledLine, TrainableEngine, make_engine
from repl_rl.models.nano import NANO_PATH
from repl_rl.trajectory import StopReason, Task

GUIDE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
BACKEND = "guide_engine:PlainEngine"
GREEDY = SamplingConfig(temperature=0)


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What the page's engine is named by."""
    [code] = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) < 40
    (tmp_path / "guide_engine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield BACKEND
    sys.modules.pop("guide_engine", None)


def opened(backend: str) -> Engine:
    return make_engine(str(NANO_PATH), nano(), ModelConfig(), EngineConfig(backend=backend))


async def line(engine: Engine, ids: list[int], sampling: SamplingConfig = GREEDY, max_tokens: int = 40) -> SampledLine:
    async with engine.slot(200) as slot:
        return await slot.sample_line(ids, max_tokens, sampling)


def test_it_samples_what_the_shipped_engines_sample(backend: str) -> None:
    ids = list(nano().encode_prompt(">>> # What is 12 * 17?\n>>>"))
    plain, shipped = opened(backend), opened("transformers")
    try:
        found, expected = asyncio.run(line(plain, ids)), asyncio.run(line(shipped, ids))
        assert (found.ids, found.finish) == (expected.ids, expected.finish)
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        assert asyncio.run(line(plain, ids, max_tokens=1)).finish is Finish.LENGTH
        sampled = asyncio.run(line(plain, ids, SamplingConfig(temperature=1.0)))
        assert len(sampled.logprobs) == len(sampled.ids)
    finally:
        plain.close()
        shipped.close()


def test_it_takes_new_weights(backend: str) -> None:
    engine = opened(backend)
    assert isinstance(engine, TrainableEngine)
    ids = list(nano().encode_prompt(">>>"))
    before = asyncio.run(line(engine, ids, max_tokens=1))
    weights = engine._model.state_dict()  # type: ignore[attr-defined]
    engine.load_weights((name, weight * 0) for name, weight in weights.items())
    after = asyncio.run(line(engine, ids, max_tokens=1))
    assert engine.version == 1
    assert after.logprobs != before.logprobs


def test_it_rolls_out_by_its_name_in_a_config(backend: str) -> None:
    async def go() -> repl_rl.Trajectory:
        overrides = [f"engine.backend={backend}", "engine.context_tokens=256", "kernel.size=2", "budget.lines=3"]
        async with repl_rl.open_rollout("nano", overrides) as rollout:
            [trajectory] = await rollout.many([Task("t", "What is 6 * 7?", "42")])
            return trajectory

    trajectory = asyncio.run(go())
    assert trajectory.lines
    assert trajectory.stop_reason is not StopReason.ABORTED
