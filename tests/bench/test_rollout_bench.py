"""`repl-rl bench rollout` in its smallest form: real vLLM, real kernels, TRL's own tool loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from repl_rl.bench.rollout import LineCost, RolloutSettings, Timing, cost_of
from repl_rl.cli import main
from repl_rl.errors import ConfigError

KEYS = (
    "concurrency", "sampled_tokens", "plain_tok_s", "repl_tok_s", "ratio", "lines_per_s", "tool_latency_ms",
    "trl_rollouts_s", "repl_rollouts_s", "trl_ratio",
)  # fmt: skip


@pytest.mark.slow
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


def test_only_lines_of_one_length_are_compared() -> None:
    def timing(tokens: int, seconds: float) -> Timing:
        return Timing(tokens, seconds, plain_token_s=0.0015, context_tokens=100)

    cost = cost_of([timing(8, 0.020), timing(8, 0.024), timing(8, 0.021), timing(30, 0.090)], tokens=8.0)
    assert cost == LineCost(own_ms=pytest.approx(9.0), whole_ms=21.0, plain_ms=12.0, tokens=8, context_tokens=100)
    assert cost_of([timing(30, 0.090)], tokens=8.0) is None


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
        RolloutSettings(**changes)
