"""A small run of the real thing writes every figure. No time is judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repl_rl.bench.profile import USES, ProfileSettings
from repl_rl.cli import main
from repl_rl.errors import ConfigError


@pytest.mark.slow
def test_a_small_run_of_the_default_profile_writes_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "profile.json"
    given = ["--profile", "default", "--sessions", "2", "--rounds", "1", "--json", str(out)]
    assert main(["bench", "profile", "--quick", *given]) == 0
    report = json.loads(out.read_text())
    assert (report["profile"], report["sessions"], report["rounds"]) == ("default", 2, 1)
    assert {"numpy", "sympy", "mpmath"} <= set(report["uses"]) <= set(USES)
    for use in report["uses"].values():
        assert use.keys() == {"first_ms", "later_ms"}
        assert min(use.values()) > 0
    assert min(report["start_ms_p50"], report["unique_mb"]) > 0
    printed = capsys.readouterr().out
    assert "default: a session starts in" in printed
    assert all(name in printed for name in report["uses"])


def test_what_measures_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="--rounds 0: give at least 1"):
        ProfileSettings(rounds=0)
    assert main(["bench", "profile", "--profile", "maths"]) == 2
