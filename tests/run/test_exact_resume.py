"""Killed and resumed, a deterministic run ends in the bits of one that was never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import begin, finish, is_complete, rollouts, wait_until
from safetensors.torch import load_file
from small import without_times

# Three problems and two a step: an epoch is one step, so that the order has to be right behind the first epoch too.
TINY: dict[str, Any] = {
    "name": "tiny",
    "seed": 5,
    "tasks": {"train": 3},
    "engine": {"context_tokens": 384, "places": 8, "deterministic": True},
    "kernel": {"size": 4},
    "budget": {"line_tokens": 24, "lines": 4, "tokens": 96},
    "rewards": {"kinds": {"exception": -0.1, "syntax_error": -0.1}},
    "train": {"steps": 4, "prompts_per_step": 2, "group_size": 2, "save_steps": 2, "schedule": "linear"},
    "eval": {"problems": 1},
}
# Sampled batches last for three updates of two parts each, and the checkpoint of step 2 lies within the first one.
INSIDE_A_BATCH: dict[str, Any] = {
    **TINY,
    "engine": {**TINY["engine"], "backend": "transformers"},
    "tasks": {"train": 5},
    "train": {**TINY["train"], "micro_batch": 2, "trl": {"num_iterations": 3}},
}


def assert_same_bits(one: object, other: object, where: str = "") -> None:
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor)
        assert torch.equal(one, other), where
    elif isinstance(one, Mapping):
        assert isinstance(other, Mapping)
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            assert_same_bits(value, other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert isinstance(other, list)
        for index, (value, its) in enumerate(zip(one, other, strict=True)):
            assert_same_bits(value, its, f"{where}.{index}")
    else:
        assert one == other, where


@pytest.mark.covers(
    "one process, vLLM or transformers", "killed and resumed, a run equals one that ran through, to the bit"
)
@pytest.mark.slow
@pytest.mark.parametrize("config", [TINY, INSIDE_A_BATCH], ids=["vllm", "transformers, inside a batch"])
def test_a_killed_and_resumed_run_equals_one_run_through(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config))
    through, killed = tmp_path / "runs" / "tiny", tmp_path / "runs" / "tiny-2"
    finish(begin(tmp_path, "train", "tiny.yaml"))
    process = begin(tmp_path, "train", "tiny.yaml")
    wait_until(lambda: is_complete(killed / "checkpoints" / "checkpoint-2"), process)
    process.kill()
    process.communicate()
    assert "resuming from step 2" in finish(begin(tmp_path, "train", "--resume", str(killed)))

    kept, expected = ({path.name for path in (run / "rollouts").iterdir()} for run in (killed, through))
    assert kept == expected
    for step in (step for step in range(1, 5) if f"step_{step:05d}.jsonl" in expected):  # some train on the last batch
        assert [*map(without_times, rollouts(killed, step))] == [*map(without_times, rollouts(through, step))]
    assert_same_bits(*(load_file(run / "model" / "model.safetensors") for run in (killed, through)))
    for name in ("optimizer.pt", "scheduler.pt", "position_0.pt"):
        stored = [torch.load(run / "checkpoints" / "checkpoint-4" / name) for run in (killed, through)]
        assert_same_bits(*stored, where=name)
    before, after = (load_file(killed / "checkpoints" / f"checkpoint-{step}" / "model.safetensors") for step in (2, 4))
    assert any(not torch.equal(before[name], after[name]) for name in before), "steps 3 and 4 have to learn something"
