"""Killed and resumed, a deterministic run ends in the bits of one that was never stopped."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from commands import CONFIGS, begin, finish, is_complete, rollouts, wait_until
from safetensors.torch import load_file
from small import without_times

assert_same_bits = partial(torch.testing.assert_close, rtol=0, atol=0)


@pytest.mark.covers(
    "one process, vLLM or transformers", "killed and resumed, a run equals one that ran through, to the bit"
)
@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("tiny", id="vllm"), pytest.param("inside a batch", id="transformers")])
def test_a_killed_and_resumed_run_equals_one_run_through(name: str, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(CONFIGS[name]))
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
    for file in ("optimizer.pt", "scheduler.pt", "position_0.pt"):
        stored = [torch.load(run / "checkpoints" / "checkpoint-4" / file) for run in (killed, through)]
        assert_same_bits(*stored)
    before, after = (load_file(killed / "checkpoints" / f"checkpoint-{step}" / "model.safetensors") for step in (2, 4))
    assert any(not torch.equal(before[key], after[key]) for key in before), "steps 3 and 4 have to learn something"
