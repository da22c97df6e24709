"""Rollouts over real vLLM servers, and what has to hold for them."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from exactness import (
    RecordingEngine,
    assert_masked_text_is_the_outputs,
    assert_the_engine_was_given_the_sequence_so_far,
    largest_logprob_difference,
)
from serving import CONTEXT_TOKENS, RunningServer
from transformers import AutoModelForCausalLM

from repl_rl.config import BudgetConfig, DialectConfig, EngineConfig, KernelConfig, ModelConfig, SamplingConfig
from repl_rl.engine import SampledLine, Vocabulary, make_engine
from repl_rl.engine.server import VLLMServerEngine
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Trajectory

TEMPERATURE = 1.3


@contextmanager
def opened(running: Sequence[RunningServer], vocabulary: Vocabulary) -> Iterator[VLLMServerEngine]:
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, servers=tuple(server.url for server in running))
    engine = make_engine(str(NANO_PATH), vocabulary, ModelConfig(), config)
    assert isinstance(engine, VLLMServerEngine)
    try:
        yield engine
    finally:
        engine.close()


def nano() -> Any:
    return AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32).eval()


def roll_out(engine: Any, vocabulary: Vocabulary) -> list[Trajectory]:
    with start_service(
        engine,
        RolloutSetup(
            vocabulary,
            DialectConfig(max_output_chars=120),
            context_tokens=CONTEXT_TOKENS,
            budget=BudgetConfig(line_tokens=48, lines=8, tokens=256),
            sampling=SamplingConfig(temperature=TEMPERATURE),
            kernel=KernelConfig(size=16),
        ),
    ) as service:
        return service.generate(make_tasks(None, 64, seed=3, split="heldout"))


def assert_exact(trajectories: Sequence[Trajectory], recorded: RecordingEngine, vocabulary: Vocabulary) -> None:
    """64 trajectories, every line given and entered once, masks on the outputs, logprobs those of a forward pass."""
    assert len(trajectories) == len({trajectory.task_id for trajectory in trajectories}) == 64
    assert not any(trajectory.is_void for trajectory in trajectories)
    assert_the_engine_was_given_the_sequence_so_far(trajectories, recorded.calls)
    for trajectory in trajectories:
        assert_masked_text_is_the_outputs(trajectory, vocabulary)
    model = nano()
    model.lm_head.register_forward_hook(lambda module, arguments, logits: logits / TEMPERATURE)
    assert max(largest_logprob_difference(trajectory, model) for trajectory in trajectories) < 1e-3


async def sample(engine: VLLMServerEngine, ids: Sequence[int], max_tokens: int, temperature: float) -> SampledLine:
    async with engine.slot(CONTEXT_TOKENS) as slot:
        return await slot.sample_line(ids, max_tokens, SamplingConfig(temperature=temperature))


def metric(server: RunningServer, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=600) as response:
        text = response.read().decode()
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE))


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
