"""What the page is told: of a run, a trajectory and its lines, of tokens; also of runs that are hostile or halves."""

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from repl_rl.models.nano import NANO_PATH
from repl_rl.trajectory import Line, LineKind, Trajectory, write_jsonl
from repl_rl.view.viewer import transcript as transcripts
from repl_rl.view.viewer.indexer import update
from repl_rl.view.viewer.queries import NotFound
from repl_rl.view.viewer.transcript import state_changes
from tests.made_trajectories import line
from tests.view.conftest import SESSIONS, STEPS, indexed, make_trajectory, solved_trajectory, train_row, write_metrics

STEP_1 = "rollouts/step_00001.jsonl"


def test_the_revision_changes_with_what_is_told_and_only_then(run_folder: Path) -> None:
    source = indexed(run_folder)
    seen = [source.run()["revision"]]
    assert source.run()["revision"] == seen[0]
    with (run_folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(train_row(STEPS + 1)) + "\n")
    seen.append(source.run()["revision"])
    with (run_folder / STEP_1).open("a") as file:
        file.write(json.dumps(solved_trajectory().to_dict()) + "\n")
    assert source.run()["revision"] == seen[-1]
    update(source.targets, source.index)
    seen.append(source.run()["revision"])
    (run_folder / "config.yaml").unlink()
    seen.append(source.run()["revision"])
    assert len(set(seen)) == 4
    assert source.run()["index"]["trajectories"] == 31


def test_a_run_is_live_while_steps_are_missing_and_its_metrics_are_fresh(run_folder: Path) -> None:
    source = indexed(run_folder)
    write_metrics(run_folder, [train_row(step) for step in range(1, STEPS)])
    assert source.run()["live"] is True
    before = time.time() - 3600
    for name in ("metrics.jsonl", "config.yaml"):
        os.utime(run_folder / name, (before, before))
    assert source.run()["live"] is False
    write_metrics(run_folder, [train_row(step) for step in range(1, STEPS + 1)])
    assert source.run()["live"] is False


def test_a_trajectory_on_its_screen(run_folder: Path) -> None:
    shown = indexed(run_folder).trajectory("train-1-0")
    assert shown["question"] == "What is the greatest common divisor of 12 and 18?"
    assert (shown["answer"], shown["error"], shown["screen_total"]) == (["12"], None, 7)
    assert shown["times"] == SESSIONS["times"]
    assert shown["row"] == SESSIONS["row"]
    assert shown["screen"][2] == SESSIONS["screen row"]
    assert [row["mark"] for row in shown["screen"]] == ["¶", "¶", "›", "‹", "‹", "‹", "›"]
    assert shown["lines"]["0"] == SESSIONS["line"]


def test_a_window_holds_its_rows_and_the_lines_that_begin_in_them(run_folder: Path) -> None:
    source = indexed(run_folder)
    whole = source.trajectory("train-1-0", 0, None)
    window = source.trajectory("train-1-0", 6, 3)
    assert window["screen"] == whole["screen"][6:]
    assert list(window["lines"]) == ["1"]
    assert source.trajectory("train-1-0", 3, 2)["lines"] == {}
    assert source.trajectory("train-1-0", 99, 2)["screen"] == []


def test_returns_are_discounted_by_the_run_s_own_gamma(run_folder: Path) -> None:
    (run_folder / "config.yaml").write_text("credit: {gamma: 0.5}\n")
    trajectory = make_trajectory("t", "q", [(f" {n}\n", LineKind.EXPRESSION, None, ">>>") for n in range(3)])
    rewarded = [replace(one, reward=reward) for one, reward in zip(trajectory.lines, (1.0, 2.0, 4.0), strict=True)]
    write_jsonl(run_folder / STEP_1, [replace(trajectory, lines=tuple(rewarded))])
    lines = indexed(run_folder).trajectory("train-1-0")["lines"]
    assert [lines[index]["return_to_go"] for index in "012"] == [3.0, 4.0, 4.0]


def test_a_line_changed_the_state_if_it_is_other_than_before() -> None:
    marks = [None, "a", None, "a", "b", "b", None, "a"]
    changes = [None, None, None, False, True, False, None, True]
    assert state_changes([line(fingerprint=mark) for mark in marks]) == changes


def test_tokens_of_a_line_and_of_all(run_folder: Path) -> None:
    source = indexed(run_folder)
    everything = source.tokens("train-1-0")["tokens"]
    assert [token["id"] for token in everything] == list(range(8))
    assert [token["sampled"] for token in everything] == [True] * 3 + [False] * 2 + [True] * 3
    assert [token["logprob"] for token in everything] == [-0.5] * 3 + [None] * 2 + [-0.5] * 3
    assert [token["text"] for token in everything] == [None] * 8, "these tokens spell something else"
    assert source.tokens("train-1-0", 1)["tokens"] == everything[5:]
    assert source.tokens("train-1-0", 0)["tokens"] == everything[:5]
    assert source.tokens("train-1-0", 7)["tokens"] == []


def in_nano_s_tokens(texts: list[str]) -> Trajectory:
    """Lines as nano's vocabulary writes them, with no output between them."""
    tokenizer = Tokenizer.from_file(str(NANO_PATH / "tokenizer.json"))
    ids: list[int] = []
    lines: list[Line] = []
    for text in texts:
        start, ids = len(ids), [*ids, *tokenizer.encode(text, add_special_tokens=False).ids]
        lines.append(Line(start, len(ids), text, LineKind.STATEMENT))
    tokens: Any = {"completion_ids": tuple(ids), "sampled_mask": (True,) * len(ids), "logprobs": (-0.5,) * len(ids)}
    return replace(solved_trajectory(), **tokens, lines=tuple(lines))


def test_tokens_are_spelled_by_the_run_s_own_vocabulary(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" x = 12\n", " submit_final_answer(x)\n"]
    write_jsonl(run_folder / STEP_1, [in_nano_s_tokens(texts)])
    source = indexed(run_folder)
    for number, text in enumerate(texts):
        shown = source.tokens("train-1-0", number)["tokens"]
        assert "".join(token["text"] for token in shown) == text
        assert {token["line"] for token in shown} == {number}
    monkeypatch.setattr(transcripts, "MOST_TOKENS", 3)
    cut = source.tokens("train-1-0")["tokens"]
    assert (len(cut), " x = 12\n".startswith("".join(token["text"] for token in cut))) == (3, True)


def test_tokens_are_spelled_by_a_checkpoint_where_the_model_is_gone(run_folder: Path) -> None:
    (run_folder / "config.yaml").write_text("model: {path: /no/such/model}\n")
    checkpoint = run_folder / "checkpoints" / "checkpoint-10"
    checkpoint.mkdir(parents=True)
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(NANO_PATH / name, checkpoint)
    write_jsonl(run_folder / STEP_1, [in_nano_s_tokens([" x\n"])])
    assert "".join(token["text"] for token in indexed(run_folder).tokens("train-1-0")["tokens"]) == " x\n"


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda run: (run / "metrics.jsonl").unlink(), "there is no metrics.jsonl yet"),
        (lambda run: (run / "config.yaml").write_bytes(b"\xff\xfe\x00"), "config.yaml can't be read"),
        (lambda run: (run / STEP_1).write_bytes(b"\xff\n{}\n"), f"{STEP_1}: 2 lines are left out; the first: traj"),
        (lambda run: (run / "rollouts/step_00009.jsonl").mkdir(), "rollouts/step_00009.jsonl: it can't be"),
    ],
)
def test_what_is_broken_is_a_note_and_the_rest_is_shown(run_folder: Path, change: Any, note: str) -> None:
    change(run_folder)
    source = indexed(run_folder)
    run = source.run()
    assert [sentence for sentence in run["notes"] if sentence.startswith(note)], run["notes"]
    assert run["index"]["complete"] is True
    assert source.rows({"split": "eval"})["total"] == 24


def test_a_trajectory_whose_file_is_other_than_indexed_is_said_to_be_so(run_folder: Path) -> None:
    source = indexed(run_folder)
    path = run_folder / STEP_1
    write_jsonl(path, [make_trajectory("other-1", "q", [(" x\n", LineKind.STATEMENT, None, ">>>")])] * 3)
    with pytest.raises(NotFound, match="is not what it was when train-1-2 was indexed"):
        source.trajectory("train-1-2")
    path.unlink()
    with pytest.raises(NotFound, match="is not what it was"):
        source.trajectory("train-1-0")
