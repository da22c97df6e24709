import json
from pathlib import Path

import pytest

from repl_rl.errors import RunError
from repl_rl.trajectory import write_jsonl
from repl_rl.view.run import read_run
from tests.view.conftest import STEPS, solved_trajectory, train_row, write_metrics

TRAIN = '{"kind": "train"'
TOO_MUCH = [f'{TRAIN}, "step": 1{"0" * 400}}}', "[" * 100_000]
NO_ROWS = ["[1, 2]", "null", '{"step": 3}', f"{TRAIN}}}", f'{TRAIN}, "step": true}}', *TOO_MUCH]


def test_a_whole_run_is_read_without_notes(run_folder: Path) -> None:
    run = read_run(run_folder)
    assert run.notes == ()
    assert [row["step"] for row in run.train] == list(range(1, STEPS + 1))
    assert [row and row["step"] for row in (run.before, run.after)] == [0, STEPS]
    assert [rollouts.step for rollouts in run.rollouts] == [1, STEPS]
    assert run.evaluations[0].trajectories[1].task_id == "gcd-heldout-0"
    names = ("name", "train.steps", "train.nothing.here")
    assert [run.setting(name) for name in names] == ["quickstart", 24, None]
    assert run.train_seconds == 11.5 * STEPS


@pytest.mark.parametrize("line", NO_ROWS, ids=range(7))
def test_what_is_json_but_no_row_or_was_cut_off_is_left_out_with_a_note(tmp_path: Path, line: str) -> None:
    (tmp_path / "config.yaml").write_text("name: x\n")
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n{json.dumps(train_row(2))}\n" + TRAIN + ', "step": 25, "rew')
    run = read_run(tmp_path)
    assert [row["step"] for row in run.train] == [2]
    assert run.notes == (
        "metrics.jsonl, line 1, is not a row and is left out",
        "metrics.jsonl, line 3, is not a row and is left out (cut off, as a crash leaves it)",
    )


def test_of_two_rows_for_one_step_the_later_counts(run_folder: Path) -> None:
    rows = [train_row(1), train_row(2), {**train_row(1), "solve_rate": 0.99}]
    write_metrics(run_folder, rows)
    run = read_run(run_folder)
    assert [(row["step"], row["solve_rate"]) for row in run.train] == [(1, 0.99), (2, rows[1]["solve_rate"])]


def test_a_resumed_runs_clock_starts_again_and_is_added_up(run_folder: Path) -> None:
    seconds = [10.0, 20.0, 7.0, 15.0]
    write_metrics(run_folder, [{"kind": "train", "step": n, "seconds": s} for n, s in enumerate(seconds)])
    assert read_run(run_folder).train_seconds == 35.0


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", "\x00", "[" * 10_000])
def test_an_unusable_config_is_a_note(run_folder: Path, text: str) -> None:
    (run_folder / "config.yaml").write_text(text)
    run = read_run(run_folder)
    assert run.setting("model.path") is None
    assert len(run.notes) == 1
    assert run.notes[0].startswith("config.yaml ")


def test_a_rollout_file_without_a_trajectory_gives_way_to_the_next(run_folder: Path) -> None:
    write_jsonl(run_folder / "rollouts" / "step_00007.jsonl", [solved_trajectory()])
    (run_folder / "rollouts" / f"step_{STEPS:05d}.jsonl").write_text("{")
    (run_folder / "rollouts" / "step_last.jsonl").write_text("{")
    assert [rollouts.step for rollouts in read_run(run_folder).rollouts] == [1, 7]


def test_what_is_no_run_folder_says_what_a_run_holds(tmp_path: Path, run_folder: Path) -> None:
    for path, message in (
        (tmp_path / "absent", "nothing is there"),
        (run_folder / "config.yaml", "it is a file"),
        (run_folder.parent, "neither config.yaml nor metrics.jsonl; it holds runs, name one of them: quickstart"),
    ):
        with pytest.raises(RunError, match=message):
            read_run(path)
