"""A machine without vLLM: the package imports, rolls out and trains with the transformers engine."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

HIDE = """
import importlib.util, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "vllm":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "vllm" else found(name, package)
sys.meta_path.insert(0, Hidden())
"""
ROLLOUT = """
from repl_rl.config import parse_config
from repl_rl.engine.factory import engine_backend
from repl_rl.rollout.service import open_service
from repl_rl.tasks import make_tasks

config = parse_config({"engine": {"context_tokens": 384}, "kernel": {"size": 4}, "budget": {"lines": 3, "tokens": 96}})
with open_service(config) as service:
    trajectories = service.generate(make_tasks(None, 4, seed=1, split="heldout"))
"""
TRAINING = """
import torch
from repl_rl import ReplGRPOConfig, ReplGRPOTrainer
from repl_rl.models.nano import NANO_PATH
from repl_rl.tasks import make_tasks

args = ReplGRPOConfig(
    output_dir=sys.argv[1], per_device_train_batch_size=8, num_generations=4, max_steps=2, learning_rate=1e-3,
    bf16=False, model_init_kwargs={"dtype": "float32"}, gradient_checkpointing=False, logging_steps=1,
    save_strategy="no", report_to="none", disable_tqdm=True, kernel={"size": 8},
    engine={"context_tokens": 384, "backend": "transformers"},
    budget={"lines": 3, "tokens": 96, "line_tokens": 32},
)
trainer = ReplGRPOTrainer(str(NANO_PATH), args, make_tasks(["product"], 16, seed=1, split="train"))
trainer.train()
versions = trainer.engine.version
trainer.vllm_generation.sync_weights()
own = dict(trainer.engine._model._model.named_parameters())
equal = [torch.equal(weight, own[name]) for name, weight in trainer.model.named_parameters()]
steps = [row for row in trainer.state.log_history if "reward" in row]
trainer.close()
"""


REPORT = """
import json

assert "vllm" not in sys.modules
print(json.dumps({
    "engine": engine_backend(config.engine), "lines": [len(trajectory.lines) for trajectory in trajectories],
    "steps": len(steps), "version": versions, "equal": sum(equal), "weights": len(equal),
    "drift": steps[-1]["sampling/sampling_logp_difference/max"],
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process without vLLM reports of a rollout and of two training steps."""
    program = [sys.executable, "-c", HIDE + ROLLOUT + TRAINING + REPORT, str(tmp_path_factory.mktemp("run"))]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.more
def test_it_rolls_out_and_trains_and_the_engine_has_the_trainers_weights(found: dict[str, Any]) -> None:
    assert found["engine"] == "transformers"
    assert len(found["lines"]) == 4
    assert min(found["lines"]) >= 1
    assert found["steps"] == found["version"] == 2
    assert found["equal"] == found["weights"] == 38
    assert found["drift"] == pytest.approx(0.0, abs=1e-3)
