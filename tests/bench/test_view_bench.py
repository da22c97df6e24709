"""The benchmark of the viewer starts the real command on a run of its own; figures are not judged here."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from repl_rl.bench import view
from repl_rl.trajectory import read_jsonl, read_record

pytestmark = pytest.mark.slow


def test_a_made_run_is_a_whole_one_of_real_sizes(tmp_path: Path) -> None:
    written = view.make_run(tmp_path / "run", 600)
    files = sorted((tmp_path / "run" / "rollouts").iterdir())
    assert [sum(1 for _ in read_jsonl(path)) for path in files] == [512, 88]
    assert written == sum(path.stat().st_size for path in files)
    assert 2000 < written / 600 < 3500
    lines = files[1].read_bytes().splitlines()
    assert all(read_record(line).note is None for line in lines)


def test_it_measures_a_cold_and_a_warm_start() -> None:
    said: list[str] = []
    report = view.measure(view.ViewSettings(trajectories=700, rounds=1), said.append)
    assert [report[name]["indexed"] for name in ("cold", "warm")] == [700, 700]
    assert report["warm"]["rows_at_first"] == 700
    for start in (report["cold"], report["warm"]):
        assert 0 < start["usable_s"] <= start["complete_s"]
        assert 20 < start["peak_rss_mb"] < 1000
        assert len(start["queries_ms"]) == 4
    console = Console(width=120, record=True, quiet=False)
    console.print(view.table(report))
    assert "700 trajectories" in console.export_text()
    assert len(said) == 3
