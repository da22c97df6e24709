"""Run folders: names, what a crash leaves, and what a resumed run does again."""

from __future__ import annotations

from pathlib import Path

from repl_rl.config import load_config
from repl_rl.run.folder import RunFolder, new_run


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    config = load_config("quickstart")
    assert [new_run(config, tmp_path).path.name for _ in range(3)] == ["quickstart", "quickstart-2", "quickstart-3"]
    assert RunFolder(tmp_path / "quickstart-2").config() == config


def test_a_line_that_a_crash_cut_off_loses_only_itself(tmp_path: Path) -> None:
    folder = new_run(load_config("quickstart"), tmp_path)
    folder.append({"kind": "train", "step": 1})
    with folder.metrics_path.open("a") as file:
        file.write('{"kind": "train", "st\n')
    folder.append({"kind": "eval", "step": 2, "solve_rate": 0.5})
    assert [row["step"] for row in folder.rows()] == [1, 2]
    assert folder.evaluation(2) == {"kind": "eval", "step": 2, "solve_rate": 0.5}
    assert folder.evaluation(1) is None


def test_what_came_after_the_checkpoint_is_forgotten(tmp_path: Path) -> None:
    folder = new_run(load_config("quickstart"), tmp_path)
    folder.rollouts.mkdir()
    for step in (1, 2, 3):
        folder.append({"kind": "train", "step": step})
        (folder.rollouts / f"step_{step:05d}.jsonl").write_text("")
    folder.forget_after(2)
    assert [row["step"] for row in folder.rows()] == [1, 2]
    assert sorted(path.name for path in folder.rollouts.iterdir()) == ["step_00001.jsonl", "step_00002.jsonl"]


def test_the_newest_evaluation_with_these_settings_counts(tmp_path: Path) -> None:
    folder = new_run(load_config("quickstart"), tmp_path)
    few, many = ({"kind": "eval", "step": 0, "settings": {"problems": count}} for count in (2, 3))
    for row in (few, {"kind": "train", "step": 1}, many):
        folder.append(row)
    assert folder.evaluation(0, {"problems": 2}) == few
    assert folder.evaluation(0) == many
    assert folder.evaluation(0, {"problems": 4}) is None
