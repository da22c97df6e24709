"""`repl-rl bench train` in its smallest form: both trainers, one batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from repl_rl.bench.train import TrainSettings, make_batch
from repl_rl.cli import main
from repl_rl.errors import ConfigError


@pytest.mark.slow
@pytest.mark.parametrize("group", ["1", "2"])
def test_both_sides_compute_one_loss_and_the_figures_hang_together(tmp_path: Path, group: str) -> None:
    file = tmp_path / "train.json"
    assert main(["bench", "train", "--quick", "--group-size", group, "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert report["vocab"] == [640, 2000]
    assert report["loss"] == pytest.approx(report["trl_loss"], abs=1e-6)
    assert report["loss"][0] != 0
    ratios = [trl / ours for trl, ours in zip(report["trl_step_s"], report["step_s"], strict=True)]
    assert report["ratio"] == pytest.approx(ratios)
    assert all(typed < whole for typed, whole in zip(report["typed_tokens"], report["completion_tokens"], strict=True))


def test_the_batch_is_half_outputs_and_spreads_over_a_factor_of_four() -> None:
    inputs = make_batch(TrainSettings(), vocabulary=100)
    lengths = inputs["completion_mask"].sum(dim=1)
    assert lengths.max() == 4 * lengths.min() == 256
    typed = (inputs["completion_mask"] * inputs["tool_mask"]).sum() / inputs["completion_mask"].sum()
    assert 0.5 <= typed < 0.55
    assert torch.equal(inputs["completion_ids"] > 0, inputs["completion_mask"] > 0)


def test_a_group_has_one_prompt() -> None:
    inputs = make_batch(TrainSettings(trajectories=7, group_size=3), vocabulary=100)
    prompts = [tuple(row) for row in inputs["prompt_ids"].tolist()]
    assert prompts == [prompts[0]] * 3 + [prompts[3]] * 3 + [prompts[6]]
    assert len(set(prompts)) == 3


def test_a_plan_that_measures_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="--tokens 10: give at least 40"):
        TrainSettings(tokens=10)
    with pytest.raises(ConfigError, match="--rounds 0: give at least 1"):
        TrainSettings(rounds=0)
