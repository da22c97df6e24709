"""`repl-rl bench rollout` in its smallest form: real vLLM, real kernels, TRL's own tool loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from repl_rl.bench.depth import LineCost, TimedLine, _summary
from repl_rl.bench.rollout import Plan
from repl_rl.cli import main
from repl_rl.errors import ConfigError

KEYS = (
    "concurrency", "sampled_tokens", "plain_tok_s", "repl_tok_s", "ratio", "lines_per_s", "tool_latency_ms",
    "trl_rollouts_s", "repl_rollouts_s", "trl_ratio",
)  # fmt: skip


def test_the_figures_hang_together(tmp_path: Path) -> None:
    file = tmp_path / "rollout.json"
    assert main(["bench", "rollout", "--quick", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert not set(KEYS) - set(report)
    assert report["lines"] == report["trajectories"] * 4
    assert report["sampled_tokens"] >= report["lines"]
    assert report["ratio"] == report["ratio_per_round"][0]
    assert report["ratio"] == pytest.approx(report["repl_tok_s"] / report["plain_tok_s"])
    assert report["tool_latency_ms"] == [0.0, 5.0]
    assert report["trl_tool_executions"] == [16, 16]  # 8 trajectories of 3 turns, the last of which calls no tool
    assert all(16 <= cells <= 24 for cells in report["repl_tool_executions"])
    assert all(tokens > 8 * 3 for tokens in report["trl_sampled_tokens"] + report["repl_sampled_tokens"])
    in_tools = list(zip(report["trl_in_tools_s"], report["trl_rollouts_s"], strict=True))
    assert all(0 < tools_s < whole_s for tools_s, whole_s in in_tools)
    pairs: Sequence[tuple[float, float]] = list(zip(report["trl_rollouts_s"], report["repl_rollouts_s"], strict=True))
    assert report["trl_ratio"] == pytest.approx([trl / ours for trl, ours in pairs])
    assert report["trl_rollouts_s"][1] > 16 * 0.005


def test_what_a_line_costs_is_what_plain_generation_leaves() -> None:
    rows = [(0.002, 0.010, 0.008, 100), (0.004, 0.010, 0.006, 110), (0.003, 0.012, 0.009, 120)]
    assert _summary(rows) == LineCost(own_ms=3.0, whole_ms=10.0, plain_ms=8.0, context_tokens=110)
    assert TimedLine(1, 0.01, 8).tokens == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trajectories": 0}, "--trajectories 0: give at least 1"),
        ({"concurrency": -1}, "--concurrency -1: give at least 1"),
        ({"trl_lines": 1}, "--trl-lines 1: give at least 2"),
    ],
)
def test_a_plan_that_measures_nothing_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(**changes)
