"""`repl-rl bench cluster` in its smallest form: a real Ray, a real `vllm serve`, real kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repl_rl.bench.cluster import ClusterSettings
from repl_rl.cli import main
from repl_rl.errors import ConfigError


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_paths_type_the_same(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    assert main(["bench", "cluster", "--quick", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert [row["call"] for row in report["rows"]] == ["alone", "batch", "groups"]
    for row in report["rows"]:
        assert row["lines"]["ray"] == row["lines"]["process"] == 3
        for figures in (row["wall_ms"], row["cpu_ms"]):
            assert figures["process"] > 0
            assert figures["ray"] - figures["process"] == pytest.approx(figures["more"])
            assert figures["ray"] / figures["process"] == pytest.approx(figures["ratios"][0])


def test_a_plan_that_measures_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="--rounds 0: give at least 1"):
        ClusterSettings(rounds=0)
