"""The same policy behind every engine: the numbers of a float32 forward pass, and the same greedy sessions.

The policy is a random one (`random_checkpoint`) whose tokens hold newlines with text on both sides; it makes errors,
long outputs and blocks, and types ahead. Kernels are real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import (
    RecordingEngine,
    assert_masked_text_is_the_outputs,
    assert_the_engine_was_given_the_sequence_so_far,
    largest_logprob_difference,
)
from random_checkpoint import make_random_checkpoint
from serving import start_server
from transformers import AutoModelForCausalLM

from repl_rl.config import BudgetConfig, DialectConfig, EngineConfig, KernelConfig, ModelConfig, SamplingConfig
from repl_rl.engine import Vocabulary, load_vocabulary, make_engine
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import LineKind, Trajectory

CONTEXT_TOKENS = 768
TEMPERATURE = 1.3
SERVER = pytest.param("server", marks=pytest.mark.slow)
ENGINES = ["vllm", "transformers", SERVER]


@dataclass(frozen=True)
class Rollouts:
    """64 sampled and 64 greedy trajectories of one engine, and what it was asked for the former."""

    sampled: list[Trajectory]
    greedy: list[Trajectory]
    engine: RecordingEngine


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def vocabulary(checkpoint: Path) -> Vocabulary:
    return load_vocabulary(str(checkpoint))


@pytest.fixture(scope="module")
def rollouts(checkpoint: Path, vocabulary: Vocabulary) -> Callable[[str], Rollouts]:
    """Of an engine by name, made once."""
    made: dict[str, Rollouts] = {}

    def of(name: str) -> Rollouts:
        if name not in made:
            with _config(name, checkpoint) as config:
                made[name] = _roll_out(checkpoint, vocabulary, config)
        return made[name]

    return of


@contextmanager
def _config(name: str, checkpoint: Path) -> Iterator[EngineConfig]:
    if name != "server":
        yield EngineConfig(backend=name, context_tokens=CONTEXT_TOKENS)
        return
    running = start_server(checkpoint / "server.log", f"--model={checkpoint}", f"--max-model-len={CONTEXT_TOKENS}")
    try:
        running.wait_until_up()
        yield EngineConfig(servers=(running.url,), context_tokens=CONTEXT_TOKENS)
    finally:
        running.kill()


def _roll_out(checkpoint: Path, vocabulary: Vocabulary, config: EngineConfig) -> Rollouts:
    model = ModelConfig(path=str(checkpoint))
    engine = RecordingEngine(make_engine(str(checkpoint), vocabulary, model, config, seed=5))
    tasks = make_tasks(None, 64, seed=3, split="heldout")
    try:
        with start_service(
            engine,
            RolloutSetup(
                vocabulary,
                DialectConfig(max_output_chars=120),
                context_tokens=CONTEXT_TOKENS,
                budget=BudgetConfig(line_tokens=48, lines=8, tokens=600),
                sampling=SamplingConfig(temperature=TEMPERATURE),
                kernel=KernelConfig(size=16),
            ),
        ) as service:
            sampled = service.generate(tasks)
            engine.calls, calls = [], engine.calls
            greedy = service.generate(tasks, SamplingConfig(temperature=0))
            engine.calls = calls
    finally:
        engine.close()
    return Rollouts(sampled, greedy, engine)


def _largest_difference(trajectories: list[Trajectory], checkpoint: Path, temperature: float) -> float:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    model.lm_head.register_forward_hook(lambda module, arguments, logits: logits / temperature)
    return max(largest_logprob_difference(trajectory, model) for trajectory in trajectories)


@pytest.mark.parametrize("name", ENGINES)
def test_64_rollouts_hold_errors_truncated_outputs_typed_ahead_newlines_and_blocks(
    rollouts: Callable[[str], Rollouts], name: str
) -> None:
    trajectories = rollouts(name).sampled
    assert len(trajectories) == 64
    assert not any(trajectory.is_void for trajectory in trajectories)
    lines = [line for trajectory in trajectories for line in trajectory.lines]
    kinds = [line.kind for line in lines]
    assert kinds.count(LineKind.EXCEPTION) >= 5
    assert kinds.count(LineKind.SYNTAX_ERROR) >= 5
    assert kinds.count(LineKind.OPEN) >= 5
    assert sum("characters left out" in line.output for line in lines) >= 5
    typed_ahead = [line.text.split("\n", 1)[1] for line in lines if "\n" in line.text[:-1]]
    assert sum(text.strip(" ") != "" for text in typed_ahead) >= 5
    assert sum(text.startswith("\n") or text == "\n" for text in typed_ahead) >= 5
    assert sum(not line.output for trajectory in trajectories for line in trajectory.lines[:-1]) >= 5


@pytest.mark.parametrize("name", ENGINES)
def test_sequences_are_exact(rollouts: Callable[[str], Rollouts], name: str, vocabulary: Vocabulary) -> None:
    made = rollouts(name)
    assert_the_engine_was_given_the_sequence_so_far(made.sampled, made.engine.calls)
    for trajectory in made.sampled + made.greedy:
        assert_masked_text_is_the_outputs(trajectory, vocabulary)


@pytest.mark.parametrize("name", ENGINES)
def test_logprobs_agree_with_a_float32_forward_pass(
    rollouts: Callable[[str], Rollouts], name: str, checkpoint: Path
) -> None:
    assert _largest_difference(rollouts(name).sampled, checkpoint, TEMPERATURE) < 1e-3
    assert _largest_difference(rollouts(name).greedy, checkpoint, temperature=1.0) < 1e-3


@pytest.mark.parametrize("name", ["vllm", SERVER])
def test_greedy_rollouts_are_those_of_transformers_token_by_token(
    rollouts: Callable[[str], Rollouts], name: str
) -> None:
    ours, theirs = (_without_times(rollouts(engine).greedy) for engine in (name, "transformers"))
    assert ours == theirs
    assert len({tuple(trajectory["completion_ids"]) for trajectory in ours}) > 32


def _without_times(trajectories: list[Trajectory]) -> list[dict[str, Any]]:
    return [
        {
            "completion_ids": trajectory.completion_ids,
            "sampled_mask": trajectory.sampled_mask,
            "stop_reason": trajectory.stop_reason,
            "lines": [(line.start, line.end, line.text, line.kind, line.output) for line in trajectory.lines],
        }
        for trajectory in trajectories
    ]
