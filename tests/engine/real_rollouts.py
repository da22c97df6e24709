"""Rollouts by real engines and kernels, and what has to hold for them."""

import re
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from engine.serving import CONTEXT_TOKENS, RunningServer
from exactness import largest_logprob_difference
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


def setup_of(vocabulary: Vocabulary, **changes: Any) -> RolloutSetup:
    """Of short sessions at `TEMPERATURE`."""
    setup = {
        "dialect": DialectConfig(max_output_chars=120),
        "context_tokens": CONTEXT_TOKENS,
        "budget": BudgetConfig(line_tokens=48, lines=8, tokens=256),
        "sampling": SamplingConfig(temperature=TEMPERATURE),
        "kernel": KernelConfig(size=16),
    }
    return RolloutSetup(vocabulary, **(setup | changes))


def roll_out(
    engine: Any,
    vocabulary: Vocabulary,
    samplings: Sequence[SamplingConfig | None] = (None,),
    count: int = 64,
    **changes: Any,
) -> list[list[Trajectory]]:
    """So many trajectories for each of the samplings, None being `TEMPERATURE`."""
    tasks = make_tasks(None, count, seed=3, split="heldout")
    with start_service(engine, setup_of(vocabulary, **changes)) as service:
        return [service.generate(tasks, sampling) for sampling in samplings]


def assert_logprobs(trajectories: Sequence[Trajectory], path: Path | str, temperature: float = 1.0) -> None:
    """Those of a forward pass in float32."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.lm_head.register_forward_hook(lambda module, arguments, logits: logits / temperature)
    assert max(largest_logprob_difference(trajectory, model) for trajectory in trajectories) < 1e-3


async def sample(engine: Any, ids: Sequence[int], max_tokens: int, temperature: float) -> SampledLine:
    async with engine.slot(CONTEXT_TOKENS) as slot:
        line: SampledLine = await slot.sample_line(ids, max_tokens, SamplingConfig(temperature=temperature))
        return line


def metric(server: RunningServer, name: str, rank: str = "[0-9]+") -> float:
    """The sum over its engines, or that of one."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=600) as response:
        text = response.read().decode()
    shown = rf'^{re.escape(name)}\{{[^}}]*engine="{rank}"[^}}]*\}} (\S+)$'
    return sum(float(value) for value in re.findall(shown, text, re.MULTILINE))


def line_difference(model: Any, ids: Sequence[int], line: SampledLine) -> float:
    """|sampler - forward pass| over a line at temperature 1, at most."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*ids, *line.ids]])).logits[0, len(ids) - 1 : -1]  # (T, V)
    own = torch.log_softmax(logits.float(), dim=-1)[range(len(line.ids)), line.ids]  # (T,)
    return float((own - torch.tensor(line.logprobs)).abs().max())
