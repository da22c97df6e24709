"""Run folders: names, what a crash leaves, and what a resumed run does again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repl_rl.config import load_config
from repl_rl.errors import RunError
from repl_rl.run.folder import RunFolder, new_run, open_run


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


def test_only_checkpoints_that_were_written_to_the_end_count(tmp_path: Path) -> None:
    folder = new_run(load_config("quickstart"), tmp_path)
    assert folder.last_checkpoint() is None
    for step, state in ((5, "{}"), (10, "{}"), (15, '{"global'), (20, None)):
        checkpoint = folder.checkpoints / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        if state is not None:
            (checkpoint / "trainer_state.json").write_text(state)
    assert folder.last_checkpoint() == folder.checkpoints / "checkpoint-10"


def test_what_came_after_the_checkpoint_is_forgotten(tmp_path: Path) -> None:
    folder = new_run(load_config("quickstart"), tmp_path)
    folder.rollouts.mkdir()
    for step in (1, 2, 3):
        folder.append({"kind": "train", "step": step})
        (folder.rollouts / f"step_{step:05d}.jsonl").write_text("")
    folder.forget_after(2)
    assert [row["step"] for row in folder.rows()] == [1, 2]
    assert sorted(path.name for path in folder.rollouts.iterdir()) == ["step_00001.jsonl", "step_00002.jsonl"]


def test_another_config_is_refused_with_the_keys_that_differ_and_both_values(tmp_path: Path) -> None:
    folder = new_run(load_config("quickstart"), tmp_path)
    assert open_run(folder.path, None)[1] == load_config("quickstart")
    other = load_config(
        "quickstart", ("train.steps=7", "train.save_steps=3", "seed=4", "rewards.kinds={timeout: -0.2, killed: -1}")
    )
    with pytest.raises(RunError) as caught:
        open_run(folder.path, other)
    assert str(caught.value).splitlines()[:-1] == [
        f"{folder.path} was started from another config. These keys differ:",
        "  rewards.kinds.exception: -0.05 in the run, absent now",
        "  rewards.kinds.killed: -0.2 in the run, -1.0 now",
        "  rewards.kinds.overlong: -0.1 in the run, absent now",
        "  rewards.kinds.syntax_error: -0.1 in the run, absent now",
        "  seed: 0 in the run, 4 now",
        "  train.steps: 60 in the run, 7 now",
    ]
    assert "with schedule linear, not train.steps" in str(caught.value)


def test_a_longer_run_with_other_means_is_still_the_run(tmp_path: Path) -> None:
    constant = "train.schedule=constant_with_warmup"
    folder = new_run(load_config("quickstart", (constant, "train.steps=8")), tmp_path)
    changed = load_config("quickstart", (constant, "train.steps=9", "train.save_steps=2", "kernel.size=3"))
    assert open_run(folder.path, changed) == (folder, changed)
    assert folder.config().train.steps == 8, "opening writes nothing"
    folder.keep_config(changed)
    assert folder.config() == changed
    assert sorted(path.name for path in folder.path.iterdir()) == ["config.yaml"]


def test_a_run_is_not_resumed_to_a_step_behind_it(tmp_path: Path) -> None:
    constant = "train.schedule=constant"
    folder = new_run(load_config("quickstart", (constant,)), tmp_path)
    checkpoint = folder.checkpoints / "checkpoint-20"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text("{}")
    with pytest.raises(RunError, match=r"has reached step 20, and train\.steps is 19 now"):
        open_run(folder.path, load_config("quickstart", (constant, "train.steps=19")))


def test_metrics_stay_one_json_object_per_line(tmp_path: Path) -> None:
    folder = new_run(load_config("quickstart"), tmp_path)
    folder.append({"kind": "train", "step": 1, "note": "line\u2028separator"})
    assert [json.loads(line) for line in folder.metrics_path.read_text().split("\n")[:-1]] == list(folder.rows())
