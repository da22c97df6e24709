"""`repl-rl bench conventions` in its smallest form: one real run, and the figures read off it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_trajectories import line, made

from repl_rl.bench import conventions
from repl_rl.bench.conventions import CONVENTIONS, ConventionsSettings, failed_share, measure, read_run, table
from repl_rl.cli import main
from repl_rl.config import load_config
from repl_rl.errors import ConfigError, RunError
from repl_rl.models.nano.writers import WRITERS
from repl_rl.run.folder import RunFolder
from repl_rl.trajectory import LineKind, write_jsonl

SMALL = (
    "engine.backend=transformers",
    "kernel.size=4",
    "engine.places=8",
    "eval.problems=4",
    "train.prompts_per_step=2",
    "train.group_size=2",
    "tasks.train=64",
)


def step(number: int, solve_rate: float, tokens_per_s: float) -> dict[str, object]:
    per_session = {"tokens_per_trajectory": 40.0, "lines_per_trajectory": 4.0}
    own = {"solve_rate": solve_rate, "tokens_per_s": tokens_per_s}
    return {"kind": "train", "step": number, "seconds": 10.0 * number, **own, **per_session}


def evaluation(number: int, solve_rate: float) -> dict[str, object]:
    return {"kind": "eval", "step": number, "solve_rate": solve_rate, "problems": 2, "seconds": 1.0}


def folder_of(path: Path, rows: list[dict[str, object]]) -> RunFolder:
    folder = RunFolder(path)
    for row in rows:
        folder.append(row)
    failing = made([line(kind=LineKind.EXCEPTION), line(kind=LineKind.EXPRESSION), line(kind=LineKind.ANSWER)])
    write_jsonl(path / "eval" / "step_00000.jsonl", [failing, made([line(kind=LineKind.ANSWER)])])
    write_jsonl(path / "eval" / "step_00003.jsonl", [made([line(kind=LineKind.ANSWER)])])
    return folder


def test_the_figures_of_a_run(tmp_path: Path) -> None:
    rows = [evaluation(0, 0.25), step(1, 0.5, 100.0), step(2, 0.75, 300.0), step(3, 1.0, 200.0), evaluation(3, 0.75)]
    measured = read_run(folder_of(tmp_path, rows), "inline")
    assert (measured.steps, measured.train_s, measured.problems) == (3, 30.0, 2)
    assert (measured.tokens_per_s, measured.turns_per_s) == (200.0, 20.0)
    assert measured.solve_rates == (0.5, 0.75, 1.0)
    assert measured.before == conventions.Heldout(0.25, sampled_tokens=2.0, turns=2.0, failed_calls=0.5)
    assert measured.after == conventions.Heldout(0.75, sampled_tokens=1.0, turns=1.0, failed_calls=None)


def test_a_run_that_did_not_get_to_its_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no training steps between two evaluations"):
        read_run(folder_of(tmp_path, [evaluation(0, 0.25), step(1, 0.5, 100.0)]), "inline")


def test_submissions_and_prose_are_no_calls() -> None:
    kinds = [LineKind.STATEMENT, LineKind.TIMEOUT, LineKind.COMMENT, LineKind.OPEN, LineKind.ANSWER, LineKind.OVERLONG]
    assert failed_share([made([line(kind=kind) for kind in kinds])]) == 0.5
    assert failed_share([made([line(kind=LineKind.COMMENT)])]) is None


def test_runs_differ_in_their_dialect_alone() -> None:
    configs = [
        load_config("conventions", ConventionsSettings(minutes=2.0, seed=3).overrides(name)) for name in CONVENTIONS
    ]
    assert [config.dialect.name for config in configs] == list(CONVENTIONS) == list(WRITERS)
    alike = [config.model_copy(update={"name": "", "dialect": configs[0].dialect}) for config in configs]
    assert all(config == alike[0] for config in alike)
    assert (alike[0].train.max_minutes, alike[0].seed) == (2.0, 3)


@pytest.mark.parametrize("minutes", ["0", "-1", "inf", "nan"])
def test_no_time_to_train_in_is_refused(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "conventions", "--minutes", minutes]) == 2
    assert "give the minutes of training" in capsys.readouterr().err


def test_what_nano_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="nano has not learnt ipython; it knows python, fenced"):
        ConventionsSettings(conventions=("python", "ipython"))
    with pytest.raises(ConfigError, match=r"unknown key 'train\.stps'"):
        ConventionsSettings(settings=("train.stps=3",))


@pytest.mark.slow
def test_a_real_run_of_one_convention_stops_in_time_and_is_measured() -> None:
    said: list[str] = []
    report = measure(ConventionsSettings(conventions=("tool_call",), minutes=0.02, settings=SMALL), said.append)
    (row,) = json.loads(json.dumps(report))["conventions"]
    assert row["convention"] == "tool_call"
    assert 1 <= row["steps"] < 1000
    assert row["train_s"] >= 1.2
    assert row["problems"] == 4
    assert row["before"]["sampled_tokens"] > 0
    assert row["turns_per_s"] > 0
    assert len(row["solve_rates"]) == row["steps"]
    assert [column.header for column in table(report).columns][:3] == ["", "solved %", "tokens"]
    assert said[0] == "training in tool_call for 0.02 minutes"


@pytest.mark.slow
def test_a_run_that_fails_says_what_it_printed() -> None:
    with pytest.raises(RunError, match=r"training in text ended with exit code 2:(.|\n)*no-such-model"):
        measure(ConventionsSettings(conventions=("text",), settings=("model.path=no-such-model",)), lambda text: None)
