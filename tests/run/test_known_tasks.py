"""The problems that recorded sessions are of: they are graded as in their run, or it is said why they can't be."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_trajectories import line, made

from repl_rl.config import parse_config
from repl_rl.run.recorded import KnownTasks, recorded_session
from repl_rl.tasks import grade, load_tasks
from repl_rl.trajectory import Task, Trajectory, write_jsonl

FEW: dict[str, Any] = {"tasks": {"families": ["witness-4", "gcd"], "train": 2}, "eval": {"problems": 2}}
UNREADABLE = "$\\mho(x)++$"
OWN = (
    "from repl_rl.tasks import Family\n"
    "SHIFT = Family('shift', draw=lambda rng: (-rng.randint(1, 999), rng.randint(1, 999)), solve=lambda a, b: a - b,\n"
    "    phrasings=('What is {0} - {1}?',), accepts=lambda submitted, a, b: submitted == [str(a - b)])\n"
)


def session_of(task: Task, **changes: Any) -> Trajectory:
    """What a session of a problem keeps of it."""
    recorded = made([line(" 1\n")], task_id=task.id)
    kept = {"question": task.question, "family": task.family, "reference": " or ".join(task.references) or None}
    return replace(recorded, **{**kept, **changes})


def data_set(folder: Path, answers: list[Any], **settings: Any) -> dict[str, Any]:
    """The settings of a data set with these answers, of which half are held out, and one is trained and measured on."""
    rows = [{"question": f"Question {number}?", "answer": answer} for number, answer in enumerate(answers)]
    (folder / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tasks = {"folder": str(folder / "problems.jsonl"), "heldout": 0.5, "train": 1, **settings}
    return {"tasks": tasks, "eval": {"problems": 1}}


def test_a_problem_of_a_larger_draw_or_of_another_seed_is_graded_by_its_operands() -> None:
    """Any divisor is a witness, not the reference alone."""
    config = parse_config(FEW)
    known = KnownTasks(config)
    for split, seed in (("heldout", 0), ("train", 5)):
        for task in load_tasks(config.tasks, split, seed, 20):  # type: ignore[arg-type]
            recorded = session_of(task)
            assert known.task_of(recorded) == task
            assert known.why_ungraded(recorded) == ""
    witness = load_tasks(config.tasks, "heldout", 0, 20)[-2]
    [number] = witness.metadata["operands"]
    other = number // int(witness.answer)
    assert witness.answer != str(other)
    assert grade(known.task_of(session_of(witness)), [str(other)]) == 1.0


def test_operands_of_a_family_of_ones_own_may_be_negative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_families_of_known_tasks.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    name = "own_families_of_known_tasks:SHIFT"
    config = parse_config({"tasks": {"families": [name], "train": 1}, "eval": {"problems": 1}})
    task = load_tasks(config.tasks, "train", 7, 3)[-1]
    first, second = task.metadata["operands"]
    assert task.id == f"shift-train-{first}-{second}"
    assert first < 0
    assert KnownTasks(config).task_of(session_of(task)) == task


@pytest.mark.parametrize(
    "changes",
    [
        {"question": "Another question?"},
        {"task_id": "witness-4-heldout"},
        {"task_id": "witness-4-heldout-a"},
        {"task_id": "witness-4-heldout-1-2-3"},
        {"task_id": "witness-4-heldout-" + "9" * 5000},
    ],
)
def test_an_id_that_does_not_make_the_question_is_nothing_to_grade_with(changes: dict[str, str]) -> None:
    config = parse_config(FEW)
    recorded = session_of(load_tasks(config.tasks, "heldout", 0, 20)[-2], **changes)
    known = KnownTasks(config)
    assert known.find(recorded) is None
    assert "its family 'witness-4' grades by more than the reference answer" in known.why_ungraded(recorded)


def test_a_family_that_the_config_does_not_name_is_not_imported() -> None:
    recorded = session_of(Task("x-train-1", "What?", "1", "no_such_module_of_known_tasks:X"))
    why = KnownTasks(parse_config(FEW)).why_ungraded(recorded)
    assert why == (
        "task 'x-train-1' is none of the config's problems, and its family 'no_such_module_of_known_tasks:X' may grade "
        "by more than the reference answer; name the config that it was recorded with, or bring its data set back"
    )


def test_every_problem_of_a_data_set_is_known(tmp_path: Path) -> None:
    config = parse_config(data_set(tmp_path, [["red", "blue"]] * 20))
    known = KnownTasks(config)
    held_out = load_tasks(config.tasks, "heldout", 0, 20)
    assert len(held_out) > 1
    for task in held_out:
        assert known.task_of(session_of(task)) == task
        assert known.why_ungraded(session_of(task)) == ""
        assert grade(known.task_of(session_of(task)), ["'blue'"]) == 1.0
    assert [known.is_held_out(task) for task in held_out] == [True] + [False] * (len(held_out) - 1)


def test_what_takes_the_place_of_a_skipped_problem_is_held_out(tmp_path: Path) -> None:
    answers = ["7"] * 20
    first, second = load_tasks(parse_config(data_set(tmp_path, answers)).tasks, "heldout", 0, 2)
    answers[int(first.question.strip("Question ?"))] = UNREADABLE
    config = parse_config(data_set(tmp_path, answers, unreadable="skip"))
    assert [task.id for task in load_tasks(config.tasks, "heldout", 0, 1)] == [second.id]
    known = KnownTasks(config)
    assert known.is_held_out(second)
    assert not known.is_held_out(first)


def test_of_a_data_set_that_is_gone_one_plain_reference_is_enough(tmp_path: Path) -> None:
    config = parse_config(data_set(tmp_path, ["7"] * 4))
    (tmp_path / "problems.jsonl").unlink()
    known = KnownTasks(config)
    single = session_of(Task("problems-heldout-1", "Question 1?", "7", "problems"))
    assert known.why_ungraded(single) == ""
    assert grade(known.task_of(single), ["7"]) == 1.0
    several = Task("problems-heldout-1", "Question 1?", "red", "problems", {"references": ("red", "blue")})
    why = known.why_ungraded(session_of(several))
    assert why.startswith("task 'problems-heldout-1' is none of the config's problems (there is no file ")
    assert ", and its reference answer 'red or blue' may be several; name the config " in why
    assert "holds no answer to grade with" in known.why_ungraded(replace(single, reference=None))


def test_the_problem_that_task_asked_is_what_it_was() -> None:
    known = KnownTasks(parse_config(FEW))
    asked = Task("task", "Which numbers have the square 4?", "x = 2 or x = -2")
    assert known.task_of(session_of(asked)) == asked
    assert known.why_ungraded(session_of(asked)) == ""
    without = session_of(asked, reference=None)
    assert known.why_ungraded(without) == "the session's problem has no answer to grade with"


def test_an_answer_that_its_run_compared_as_a_text_still_is(tmp_path: Path) -> None:
    settings = data_set(tmp_path, [UNREADABLE] * 4, unreadable="text")
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    [task] = load_tasks(parse_config(settings).tasks, "heldout", 0, 1)
    assert task.metadata == {"graded_as": "text"}
    write_jsonl(tmp_path / "sessions.jsonl", [session_of(task)])
    options = argparse.Namespace(
        source=f"{tmp_path}/sessions.jsonl#0", config=f"{tmp_path}/config.yaml", set=[], line=None, out=None
    )
    assert recorded_session(options).task == task
