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
    assert [(row["engine"], row["call"]) for row in report["rows"]] == [
        *(("vllm serve", call) for call in ("alone", "batch", "groups")),
        *(("script", call) for call in ("batch", "groups")),
    ]
    for row in report["rows"]:
        assert row["lines"]["ray"] == row["lines"]["process"] > 0
        assert row["process_ms"] > 0
        assert row["ray_ms"] - row["process_ms"] == pytest.approx(row["more_ms"])
        assert row["ray_ms"] / row["process_ms"] == pytest.approx(row["ratios"][0])


def test_a_plan_that_measures_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="--rounds 0: give at least 1"):
        ClusterSettings(rounds=0)
