"""The file and the config of docs/tasks.md give the problems that the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repl_rl.cli import main
from repl_rl.config import load_config
from repl_rl.run.held_out import heldout_tasks
from repl_rl.tasks import load_tasks

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's file and config, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    [rows] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    [config] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    Path("problems.jsonl").write_text(rows)
    Path("own.yaml").write_text(config)
    return tmp_path


def test_a_file_with_its_own_columns(here: Path) -> None:
    config = load_config("own.yaml")
    train, heldout = load_tasks(config.tasks, "train", config.seed, config.tasks.train), heldout_tasks(config)
    assert (len(train), len(heldout)) == (5, 3)
    assert {(task.id, task.answer, task.family) for task in [*train, *heldout]} == {
        ("problems-train-pens", "84", "products"),
        ("problems-train-eggs", "300", "products"),
        ("problems-train-steps", "1250", "differences"),
        ("problems-train-rope", "11.25", "quotients"),
        ("problems-train-tiles", "486", "products"),
        ("problems-train-change", "6.40", "differences"),
        ("problems-train-share", "3/4", "quotients"),
        ("problems-train-weeks", "52", "quotients"),
    }
    other = load_config("own.yaml", ("tasks.dataset=null", "tasks.folder=problems.jsonl"))
    assert load_tasks(other.tasks, "train", other.seed, other.tasks.train) == train


@pytest.mark.slow
def test_a_dry_run_of_the_config(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "own.yaml", "--dry-run"]) == 0
    assert "5 to train on; 3 held out, for before and after training" in " ".join(capsys.readouterr().out.split())
