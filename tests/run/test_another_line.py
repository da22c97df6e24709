"""Going on from recorded sessions on the command line: by hand, by a model, and to see what lines were worth.

Real interpreters run the recorded lines again, and the stored model of a run goes on.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_trajectories import line, made

from repl_rl.config import load_config
from repl_rl.run.recorded import RecordedSession, beside_the_recorded
from repl_rl.tasks import load_tasks
from repl_rl.trajectory import Branch, Compaction, Task, Trajectory, read_jsonl, whole_session, write_jsonl
from repl_rl.view.viewer.api import RunApi
from repl_rl.view.viewer.indexer import update

Said = Callable[..., str]
ASKED = "product-train-3704-8719"
FILE = "run/rollouts/step_00001.jsonl"
pytestmark = [pytest.mark.more, pytest.mark.usefixtures("stored")]


@pytest.fixture
def model(stored: Path) -> None:
    """The run's checkpoint, which is stored without the tokenizer that it began with."""
    for file in (stored / "model").glob("tokenizer*"):
        shutil.copy(file, stored / "run/checkpoints/checkpoint-2")


def typed(text: str, *arguments: str) -> str:
    """What `repl-rl play` shows to a person who types this."""
    command = [sys.executable, "-m", "repl_rl.cli", "play", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_person_goes_on_from_a_line() -> None:
    """Line 2 comes after an error and a comment; the person sees both, and types what comes next."""
    asked = "--from", f"{FILE}#2", "--line", "2"
    shown = typed(" 3704 * 8719\n submit_final_answer(_)\n", *asked, "--out", "other.jsonl")
    assert "ValueError: invalid literal for int() with base 10: 'a'\n" in shown
    assert f"{FILE}#2: its first 2 lines came out as recorded" in shown
    assert "graded 1" in shown
    recorded = list(read_jsonl(FILE))[2]
    first, other = read_jsonl("other.jsonl")
    assert first == recorded
    assert [line.text for line in other.lines] == [" 3704 * 8719\n", " submit_final_answer(_)\n"]
    assert (other.branch.parent, other.branch.line) == (0, 2)  # type: ignore[union-attr]
    whole = whole_session(other, [first, other])
    assert [line.text for line in whole.lines[:2]] == [line.text for line in recorded.lines[:2]]


@pytest.mark.usefixtures("model")
def test_the_model_goes_on_from_a_line_and_the_page_has_both(said: Said, tmp_path: Path) -> None:
    asked = "--from", f"{FILE}#2", "--line", "2"
    shown = said("rollout", *asked, "-n", "3", "--out", "other.jsonl")
    assert shown.startswith("3 sessions of ")
    assert f"{FILE}#2: its first 2 lines came out as recorded\n" in shown
    assert "from line 2 on: 0 of 3 right, 0% (0% to 56%); the recorded session was wrong\n" in shown
    assert "beside each other: repl-rl view other.jsonl --serve\n" in shown
    _, *others = read_jsonl("other.jsonl")
    assert [session.branch.line for session in others] == [2, 2, 2]  # type: ignore[union-attr]
    assert [session.outcome_reward for session in others] == [0.0, 0.0, 0.0]
    assert len({session.completion_ids for session in others}) == 3

    # A branch is gone on from as well: its lines are counted from its own first one.
    again = said("rollout", "run/config.yaml", "--from", "other.jsonl#1", "--line", "1", "--model", "run")
    assert "other.jsonl#1: its first 3 lines came out as recorded\n" in again
    assert "from line 3 on: 0 of 1 right" in again

    api = RunApi(Path(FILE), index=tmp_path / "index.sqlite")
    update(api.targets, api.index)
    assert api.trajectory("train-1-2")["address"] == f"{FILE}#2"


@pytest.mark.usefixtures("model")
def test_what_lines_were_worth(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    shown = said("value", f"{FILE}#2", "-n", "2", "--out", "values.jsonl")
    assert shown.startswith("2 sessions of ")
    rows = [" ".join(row.split()) for row in shown.splitlines()]
    assert "0 + int('a') exception +0.40 0% 0% +0 (-66 to +66)" in rows
    assert "3 # x 3 3 + # 3 + + # print(x) comment +0.10 0% 0% +0 (-66 to +0)" in rows
    sessions = list(read_jsonl("values.jsonl"))
    assert [session.branch and session.branch.line for session in sessions] == [None] * 3 + [1] * 2 + [2] * 2 + [3] * 2
    record = json.loads(Path("values.jsonl").read_text().splitlines()[0])
    assert record["line_values"] == {"values": [0.0] * 5, "sessions": [2] * 4}
    api = RunApi(Path("values.jsonl"), index=tmp_path / "index.sqlite")
    update(api.targets, api.index)
    assert api.trajectory("train-0-0")["lines"]["1"]["worth"] == (
        "It took the chance of a right answer from 0% to 0%, by +0 (-66 to +66) points: 2 sessions from before it, and "
        "2 from after it."
    )


def changed(**values: object) -> None:
    """The recorded sessions, of which the third one is another."""
    sessions = list(read_jsonl(FILE))
    sessions[2] = replace(sessions[2], **values)  # type: ignore[arg-type]
    write_jsonl(FILE, sessions)


def test_a_line_that_comes_out_otherwise_is_named() -> None:
    [*_, recorded] = [*read_jsonl(FILE)][:3]
    first, *others = recorded.lines
    changed(lines=(replace(first, error_name="TypeError"), *others))
    shown = typed(" 1\n\x04", "--from", f"{FILE}#2", "--line", "2", "--out", "other.jsonl")
    sentence = "of its first 2 lines, line 0 came out otherwise than recorded in 1 of 1 session: + int('a')"
    assert sentence in " ".join(shown.split())
    _, other = read_jsonl("other.jsonl")
    assert other.branch is None  # it is shown whole, since it does not begin as the recorded one does


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", FILE), "say which session of a file of rollouts, counted from 0, as in "),
        (("--from", f"{FILE}#9"), f"{FILE}#9: {FILE} has 4 sessions, counted from 0"),
        (("--from", f"{FILE}#2", "--line", "4"), "--line 4: task 'product-train-3704-8719': there is no line 4; the "),
        (("--from", f"{FILE}#2", "--task", "6 * 7?"), "--from goes on from a recorded session"),
        (("--line", "2"), "--from FILE.jsonl#N"),
    ],
)
@pytest.mark.parametrize("command", ["rollout", "play"])
def test_refused(said: Said, command: str, arguments: tuple[str, ...], message: str) -> None:
    assert message in said(command, *arguments, code=2)


@pytest.mark.usefixtures("model")
def test_without_an_answer_to_grade_with_no_rate_is_said(said: Said) -> None:
    """As in a file of `repl-rl rollout --task` without `--answer`."""
    [task] = [task for task in load_tasks(load_config("run/config.yaml").tasks, "train", 0, 16) if task.id == ASKED]
    changed(task_id="task", family="", question=task.question, reference=None, outcome_reward=None)
    shown = said("rollout", "--from", f"{FILE}#2", "--line", "2", "-n", "2", "--out", "other.jsonl")
    assert "its first 2 lines came out as recorded\n" in shown
    assert "nothing is graded: the session's problem has no answer to grade with\n" in shown
    assert " right" not in shown
    assert "the recorded session was" not in shown
    assert [session.outcome_reward for session in read_jsonl("other.jsonl")] == [None] * 3
    played = typed(" 1\n\x04", "--from", f"{FILE}#2", "--line", "2")
    assert "nothing is graded: the session's problem has no answer to grade with\n" in played


def test_what_lines_were_worth_is_not_said_without_an_answer_to_grade_with(said: Said) -> None:
    changed(task_id="task", family="", question="What is 3704 * 8719?", reference=None)
    refused = said("value", f"{FILE}#2", code=2)
    assert "#2: what goes on from it can't be graded: the session's problem has no answer to grade with" in refused


@pytest.mark.parametrize("command", [("value",), ("rollout", "--from"), ("play", "--from")])
def test_the_recorded_file_is_not_written_over(said: Said, command: tuple[str, ...]) -> None:
    before = Path(FILE).read_bytes()
    Path("link.jsonl").symlink_to(FILE)
    for out in (FILE, "link.jsonl"):
        refused = said(*command, f"{FILE}#2", "--out", out, code=2)
        assert f"--out {out} is the file of the recorded session itself; give another name" in refused
    assert Path(FILE).read_bytes() == before


def test_sessions_that_were_compacted_become_branches_where_that_is_possible() -> None:
    """One that was compacted before the line does not begin as a branch would, and stays whole."""
    recorded = made([line(str(number)) for number in range(4)])
    later = replace(recorded, compactions=(Compaction(6, "so far", (7,)),))
    earlier = replace(recorded, compactions=(Compaction(2, "so far", (7,)),))
    session = RecordedSession("f#0", load_config("run/config.yaml"), None, Task("t", "?", "1"), recorded, 1)
    first, branch, whole = beside_the_recorded(session, [later, earlier])
    assert first == recorded
    assert branch.branch == Branch(0, 1, 1 / 3, "replay")
    assert branch.compactions == (Compaction(4, "so far", (7,)),)
    assert branch.whole(recorded).compactions == later.compactions
    assert whole == earlier


def test_a_file_by_itself_needs_a_config(said: Said) -> None:
    shutil.copy(FILE, "alone.jsonl")
    assert "name the config that it is of" in said("rollout", "--from", "alone.jsonl#0", code=2)
    assert "name the config that it is of" in said("value", "alone.jsonl#0", code=2)
    never: list[Trajectory] = [replace(session, outcome_reward=None) for session in read_jsonl(FILE)]
    write_jsonl(FILE, never)
    assert "was never graded, so nobody knows what it came to" in said("value", f"{FILE}#0", code=2)


def test_a_branch_of_nothing_that_is_there_is_refused(said: Said) -> None:
    for parent in (2, 7):
        changed(branch=Branch(parent, 1, 0.5))
        assert "is a branch of another one, which is not where it should be" in said("value", f"{FILE}#2", code=2)
