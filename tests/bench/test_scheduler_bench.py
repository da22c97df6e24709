"""The fakes of the scheduler's measurement do what they say; what they measure is for BENCHMARKS.md."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from repl_rl.bench import scheduler
from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect


def test_each_line_of_the_script_completes_a_cell_where_it_says_so() -> None:
    reader = make_dialect(DialectConfig()).reader()
    completed = [len(reader.read(typed).cells) for typed, _ in scheduler.SCRIPT]
    assert completed == [0 if printed is None else 1 for _, printed in scheduler.SCRIPT]
    assert reader.next_prompt() == ">>>"


def test_a_small_measurement_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = scheduler.measure(few=8, many=20, at_once=4, lines=5)
    monkeypatch.setattr(scheduler, "measure", lambda: small)
    scheduler.main(["--json", str(tmp_path / "x.json")])
    report = json.loads((tmp_path / "x.json").read_text())
    assert (report["trajectories"], report["at_once"], report["lines"]) == (20, 4, 100)
    assert math.isclose(report["own_ms_per_line"], report["whole_ms_per_line"] - report["fakes_ms_per_line"])
    assert report["peak_traced_mib"].keys() == report["peak_rss_mib"].keys() == {"8", "20"}
    assert "own_ms_per_line" in capsys.readouterr().out


def test_a_session_that_ends_early_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_TOKENS_PER_LINE", 1)
    with pytest.raises(AssertionError, match="lines and not 5: max_tokens"):
        scheduler.measure(few=1, many=1, at_once=1, lines=5)
