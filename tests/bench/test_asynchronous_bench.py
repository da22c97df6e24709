"""The comparison of steps that wait with steps that don't: its figures from made-up runs, and one real run."""

from __future__ import annotations

from pathlib import Path

import pytest

from repl_rl.bench.asynchronous import ARMS, AsynchronousSettings, _rows, measure, table
from repl_rl.errors import ConfigError


def test_arms_are_compared_by_seed() -> None:
    figures = {"before": 0.1, "after": 0.9, "seconds": 60.0, "idle_share": 0.5, "staleness": 0.0, "dropped_share": 0.0}
    runs = [
        {"arm": arm, "seed": seed, "steps_per_minute": 10.0 * (1 + seed) * (2 if arm != "waiting" else 1), **figures}
        for arm in ARMS
        for seed in (0, 1)
    ]
    rows = list(_rows(runs))
    assert [row["arm"] for row in rows] == list(ARMS)
    assert rows[0]["ratio"] == [1.0, 1.0]
    assert all(row["ratio"] == [2.0, 2.0] for row in rows[1:])
    assert table({"steps": 3, "seeds": 2, "line_ms": 50.0, "sessions": 64, "rows": rows}).row_count == len(ARMS)


@pytest.mark.parametrize("values", [{"seeds": 0}, {"steps": 2}, {"line_ms": -1.0}, {"sessions": 0}])
def test_invalid_settings_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="give"):
        AsynchronousSettings(**values)  # type: ignore[arg-type]


@pytest.mark.slow
def test_real_runs_of_each_arm(tmp_path: Path) -> None:
    report = measure(AsynchronousSettings(seeds=1, steps=3, line_ms=5.0, runs=tmp_path), lambda text: None)
    by_arm = {row["arm"]: row for row in report["rows"]}
    assert by_arm["waiting"]["staleness"] == by_arm["staleness 0"]["staleness"] == [0.0]
    assert all(0 < share < 1 for row in report["rows"] for share in row["idle_share"])
    assert len(list(tmp_path.iterdir())) == len(ARMS)
    again: list[str] = []
    measure(AsynchronousSettings(seeds=1, steps=3, line_ms=5.0, runs=tmp_path), again.append)
    assert again == []
