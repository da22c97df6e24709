"""The index holds what the files hold: after they grew, were cut, were rewritten, went away, and with two at work."""

import json
import os
import shutil
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from repl_rl.errors import RunError
from repl_rl.trajectory import Trajectory, write_jsonl
from repl_rl.view.viewer import indexer, queries
from repl_rl.view.viewer.index import index_path, opened, question_of, revision, targets_of
from repl_rl.view.viewer.indexer import update
from tests.view.conftest import QUESTION, STEPS, failed_trajectory, solved_trajectory

BOTH = ["train-3-0", "train-3-1"]


def ids(folder: Path) -> list[str]:
    with opened(index_path(targets_of([folder]))) as connection:
        return [row["id"] for row in queries.rows(connection, queries.parse({"limit": "1000"}))["rows"]]


def refreshed(folder: Path) -> list[str]:
    assert update(targets_of([folder]), index_path(targets_of([folder])))
    return ids(folder)


def notes(folder: Path) -> list[str]:
    with opened(index_path(targets_of([folder]))) as connection:
        return queries.notes(connection, [""])


def state(folder: Path) -> tuple[int, dict[str, object]]:
    with opened(index_path(targets_of([folder]))) as connection:
        return revision(connection), queries.progress(connection)


def step_file(folder: Path, step: int) -> Path:
    return folder / "rollouts" / f"step_{step:05d}.jsonl"


def text_of(trajectories: Sequence[Trajectory]) -> str:
    return "".join(json.dumps(trajectory.to_dict()) + "\n" for trajectory in trajectories)


def write(path: Path, text: str, seconds_ago: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    when = os.stat(path).st_mtime - seconds_ago
    os.utime(path, (when, when))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A run of one step with two trajectories."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.yaml").write_text("name: small\n")
    write(step_file(folder, 3), text_of([solved_trajectory("a-1"), failed_trajectory("a-1")]))
    return folder


def test_every_trajectory_is_a_row_in_the_order_of_steps(run_folder: Path) -> None:
    found = refreshed(run_folder)
    heldout = [f"eval-0-{position}" for position in range(12)]
    after = [f"eval-{STEPS}-{position}" for position in range(12)]
    train = [[f"train-{step}-{position}" for position in range(3)] for step in (1, STEPS)]
    assert found == [*heldout, *train[0], *after, *train[1]]


def test_only_what_is_new_in_a_file_is_read(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed(small)
    read: list[bytes] = []
    real = indexer.read_record
    monkeypatch.setattr(indexer, "read_record", lambda line: (read.append(line), real(line))[1])
    before = state(small)[0]
    with step_file(small, 3).open("a") as file:
        file.write(text_of([failed_trajectory("a-2")]))
    assert refreshed(small) == [*BOTH, "train-3-2"]
    assert len(read) == 1
    assert state(small)[0] > before


def test_a_file_that_was_written_anew_is_read_anew(small: Path) -> None:
    refreshed(small)
    longer = [replace(solved_trajectory(f"b-{number}"), version=9) for number in range(3)]
    write(step_file(small, 3), text_of(longer), 0)
    assert refreshed(small) == [*BOTH, "train-3-2"]
    with opened(index_path(targets_of([small]))) as connection:
        rows = queries.rows(connection, queries.parse({}))["rows"]
        assert queries.choices(connection)["errors"] == []
    assert [(row["task_id"], row["version"]) for row in rows] == [("b-0", 9), ("b-1", 9), ("b-2", 9)]


def test_a_file_that_is_gone_is_forgotten(small: Path) -> None:
    write(step_file(small, 4), text_of([solved_trajectory()]))
    assert refreshed(small) == [*BOTH, "train-4-0"]
    step_file(small, 4).unlink()
    assert refreshed(small) == BOTH
    step_file(small, 3).unlink()
    assert refreshed(small) == []


def test_a_line_in_the_writing_waits_until_it_is_complete(small: Path) -> None:
    whole = text_of([failed_trajectory("a-3")])
    path = step_file(small, 3)
    before = path.read_text()
    write(path, before + whole[:100], 0)
    assert (refreshed(small), notes(small)) == (BOTH, [])
    write(path, before + whole[:100])
    refreshed(small)
    assert notes(small) == ["rollouts/step_00003.jsonl: the last line is cut off, as a crash leaves it, and left out"]
    write(path, before + whole)
    assert (refreshed(small), notes(small)) == ([*BOTH, "train-3-2"], [])


def test_a_whole_last_line_needs_no_newline(small: Path) -> None:
    path = step_file(small, 3)
    write(path, path.read_text().rstrip("\n"))
    assert (refreshed(small), notes(small)) == (BOTH, [])
    with path.open("a") as file:
        file.write("\n\n" + text_of([solved_trajectory()]))
    assert refreshed(small) == [*BOTH, "train-3-2"]


def test_garbage_keeps_its_place_and_becomes_a_note(small: Path) -> None:
    first, second = step_file(small, 3).read_text().splitlines()
    write(step_file(small, 3), f"{first}\nnonsense \x1b[2J\n[1]\n{second}\n")
    assert refreshed(small) == ["train-3-0", "train-3-3"]
    (note,) = notes(small)
    assert note.startswith("rollouts/step_00003.jsonl: 2 lines are left out; the first: trajectory 1:")
    assert "\x1b" not in note


def test_the_index_is_in_the_cache_and_goes_after_a_month(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lone = tmp_path / "x.jsonl"
    write_jsonl(lone, [solved_trajectory(), failed_trajectory()])
    assert refreshed(lone) == ["train-0-0", "train-0-1"]
    assert index_path(targets_of([lone])).is_relative_to(tmp_path / "cache")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "small", "x.jsonl"]
    assert refreshed(step_file(small, 3)) == BOTH
    assert refreshed(small) == BOTH
    assert sorted(path.name for path in small.iterdir()) == ["config.yaml", "rollouts"]
    os.utime(index_path(targets_of([lone])).with_name("lock"), (0, 0))
    assert refreshed(small) == BOTH
    assert len(list((tmp_path / "cache" / "repl-rl" / "view").iterdir())) == 2
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    with pytest.raises(RunError, match=r"can.t be kept: .*XDG_CACHE_HOME names another folder"):
        index_path(targets_of([small]))


@pytest.mark.parametrize("damage", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_index_is_made_again(small: Path, damage: bytes) -> None:
    refreshed(small)
    index = index_path(targets_of([small]))
    for suffix in ("-wal", "-shm"):
        index.with_name(index.name + suffix).unlink(missing_ok=True)
    index.write_bytes(damage)
    with pytest.raises(sqlite3.DatabaseError):
        ids(small)
    assert refreshed(small) == BOTH


def test_a_run_that_was_deleted_does_not_come_back_for_its_index(small: Path) -> None:
    refreshed(small)
    index = index_path(targets_of([small]))
    shutil.rmtree(small)
    assert update(targets_of([small]), index, wait=False)
    assert not small.exists()


def test_while_one_works_the_other_passes(small: Path) -> None:
    index = index_path(targets_of([small]))
    with FileLock(index.with_name("lock")):
        assert not update(targets_of([small]), index, wait=False)
    assert update(targets_of([small]), index, wait=False)


def test_what_a_killed_indexer_left_is_gone_on_with(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line is committed by itself here; after the first it is told to end, and the third kills."""
    write(step_file(small, 3), text_of([solved_trajectory(f"a-{number}") for number in range(5)]))
    monkeypatch.setattr(indexer, "_COMMIT_AFTER_S", -1.0)
    read: list[bytes] = []
    real = indexer.read_record

    def dying(line: bytes) -> object:
        read.append(line)
        if len(read) == 3:
            raise KeyboardInterrupt
        return real(line)

    monkeypatch.setattr(indexer, "read_record", dying)
    assert update(targets_of([small]), index_path(targets_of([small])), is_over=lambda: len(read) == 1)
    assert ids(small) == BOTH[:1]
    with pytest.raises(KeyboardInterrupt):
        update(targets_of([small]), index_path(targets_of([small])))
    assert ids(small) == BOTH
    assert state(small)[1]["complete"] is False
    assert refreshed(small) == [f"train-3-{position}" for position in range(5)]
    assert len(read) == 3 + 3


def test_two_at_once_index_each_trajectory_once(run_folder: Path) -> None:
    index = index_path(targets_of([run_folder]))
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: update(targets_of([run_folder]), index), range(2))) == [True, True]
    assert len(ids(run_folder)) == len(set(ids(run_folder))) == 30
    assert state(run_folder)[1] == {"trajectories": 30, "files_done": 4, "files": 4, "complete": True}


def test_a_prompt_stands_for_a_question_that_nobody_said() -> None:
    made = replace(solved_trajectory(), question=None, prompt="x" * 500)
    assert question_of(made) == "…" + "x" * 400
    assert question_of(solved_trajectory()) == QUESTION
