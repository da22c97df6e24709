"""`repl-rl bench` in its smallest form: real kernels, engines and trainers. No time is judged here."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from repl_rl.bench.kernels import descendants
from repl_rl.bench.settings import TrainSettings
from repl_rl.bench.train import make_batch
from repl_rl.cli import main

pytestmark = pytest.mark.more


def report_of(tmp_path: Path, *command: str) -> dict[str, Any]:
    file = tmp_path / "report.json"
    assert main(["bench", *command, "--quick", "--json", str(file)]) == 0
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def numbers(found: Any) -> Iterator[float]:
    if isinstance(found, dict):
        for value in found.values():
            yield from numbers(value)
    elif isinstance(found, int | float):
        yield found


def test_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = descendants()
    sizes = ("--sessions", "2", "--rounds", "1", "--stock-kernels", "1", "--many", "17")
    report = report_of(tmp_path, "kernels", *sizes)
    assert descendants() <= before
    side = {"start_ms_p50", "line_ms_p50", "line_ms_p99", "raise_ms_p50", "lines_per_s", "unique_mb"}
    about = {"cores", "rounds", "duration_s", "date", "python", "versions"}
    assert report.keys() == side | about | {"kernels", "stock_kernels", "ratio_lines_per_s", "stock", "many", "fork"}
    assert report["stock"].keys() == side
    assert report["many"].keys() == {"sessions", "total_mb", "lines_per_s_16", "lines_per_s_many", "cost_ratio"}
    assert report["fork"].keys() == {"lines", "fork_ms_p50", "again_ms_p50"}
    assert all(math.isfinite(number) and number > 0 for number in numbers(report))
    assert (report["kernels"], report["stock_kernels"], report["many"]["sessions"]) == (2, 1, 17)
    shown = capsys.readouterr().out
    assert re.search(r"lines_per_s +│ [\d,.]+ +│ [\d,.]+ ", shown), "ours and theirs"
    assert re.search(r"many.sessions +│ 17 ", shown)


def test_rollout(tmp_path: Path) -> None:
    report = report_of(tmp_path, "rollout")
    assert 0 < report["lines"] <= report["trajectories"] * 4  # fewer where a session reaches another of its limits
    assert report["sampled_tokens"] >= report["lines"]
    assert report["ratio"] == report["ratio_per_round"][0]
    assert report["ratio"] == pytest.approx(report["repl_tok_s"] / report["plain_tok_s"])


def test_train(tmp_path: Path) -> None:
    report = report_of(tmp_path, "train", "--group-size", "2")
    assert report["vocab"] == [640, 2000]
    assert report["loss"] == pytest.approx(report["trl_loss"], abs=1e-6)
    assert report["loss"][0] != 0
    ratios = [trl / ours for trl, ours in zip(report["trl_step_s"], report["step_s"], strict=True)]
    assert report["ratio"] == pytest.approx(ratios)
    assert all(typed < whole for typed, whole in zip(report["typed_tokens"], report["completion_tokens"], strict=True))


def test_the_batch_is_half_outputs_spreads_over_a_factor_of_four_and_a_group_has_one_prompt() -> None:
    inputs = make_batch(TrainSettings(trajectories=7, group_size=3), vocabulary=100)
    lengths = inputs["completion_mask"].sum(dim=1)
    assert lengths.max() == 4 * lengths.min() == 256
    typed = (inputs["completion_mask"] * inputs["tool_mask"]).sum() / inputs["completion_mask"].sum()
    assert 0.5 <= typed < 0.55
    assert torch.equal(inputs["completion_ids"] > 0, inputs["completion_mask"] > 0)
    prompts = [tuple(row) for row in inputs["prompt_ids"].tolist()]
    assert prompts == [prompts[0]] * 3 + [prompts[3]] * 3 + [prompts[6]]
    assert len(set(prompts)) == 3
