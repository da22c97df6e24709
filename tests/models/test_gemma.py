"""A model that nobody here made: Gemma 3 270M from its package, through the same code in float32 on a CPU."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import RecordingEngine, assert_exact, largest_logprob_difference

from repl_rl.config import (
    BudgetConfig,
    DialectConfig,
    EngineConfig,
    KernelConfig,
    ModelConfig,
    load_config,
)
from repl_rl.engine import load_vocabulary, make_engine
from repl_rl.models import resolve_model
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.run.dryrun import dry_run
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import read_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CONTEXT_TOKENS = 640
BUDGET = {"line_tokens": 40, "lines": 10, "tokens": 256}


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package's quantised weights as an ordinary float32 checkpoint, converted into a cache of these tests."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Path(resolve_model("gemma-270m"))


def test_the_conversion_keeps_the_checkpoint_and_nothing_else(
    gemma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in gemma.iterdir()}
    assert list(gemma.glob("*.gguf")) == []
    assert "quantization_config" not in json.loads((gemma / "config.json").read_text())
    assert [path.name for path in gemma.parent.iterdir() if path.is_dir()] == [gemma.name]
    vocabulary = load_vocabulary(str(gemma))
    assert vocabulary.encode_prompt("1 + 1")[0] == vocabulary.tokenizer.bos_token_id == 2
    assert vocabulary.tokenizer.encode("1", add_special_tokens=False)[0] != 2
    written = (gemma / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("gemma-270m") == str(gemma)
    assert (gemma / "model.safetensors").stat().st_mtime_ns == written

    rows = dict(dry_run(load_config("gemma-270m"), tmp_path).rows)
    assert ": 268.1 million parameters, sampled in float32, trained in float32" in rows["model"]
    assert "GiB to train: 3.99 for weights, gradients and AdamW, 0.00 for copies" in rows["memory"]
    assert "beside 64 of completion, in a context of 256" in rows["prompts"]


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
    with start_service(
        engine,
        RolloutSetup(
            vocabulary,
            DialectConfig(examples=2),
            context_tokens=CONTEXT_TOKENS,
            budget=BudgetConfig(**BUDGET),
            chat=False,
            kernel=KernelConfig(size=16),
        ),
    ) as service:
        trajectories = service.generate(tasks)
    seconds = time.perf_counter() - started
    engine.close()

    assert sum(len(trajectory.lines) for trajectory in trajectories) > 32
    assert all(len(trajectory.lines) <= 10 for trajectory in trajectories)
    assert_exact(trajectories, engine, vocabulary)
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
