"""Files in the formats of known data sets: answers as the sets write them, dates, and rows that are named."""

from __future__ import annotations

import csv
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from repl_rl.config import TasksConfig, load_config, parse_config
from repl_rl.errors import ConfigError
from repl_rl.tasks import grade, load_tasks
from repl_rl.tasks.formats import FORMATS, period_of
from repl_rl.trajectory import Task

FILES = Path(__file__).parent / "formats"
ANSWERS = {
    "gsm8k": ["159", "1350", "7.5", "-7"],
    "math": ["9", r"\frac{3}{8}", "(-2,2)", "8"],
    "aime": ["1", "90", "903", "30"],
    "olympiadbench": ["2, 3", r"\frac{15}{2}", "(1,3)", r"\frac{n(n+1)}{2}"],
    "minif2f": [
        "theorem own_sum_of_two (x : ℝ) (h : x + 3 = 10) : x = 7",
        "theorem own_even_square (n : ℕ) (h : 2 ∣ n) : 2 ∣ n ^ 2",
        "theorem own_let : let y := 2; y + y = 4",
    ],
}
SUBMITTED = {
    "gsm8k": ["159", "1350.0", "Fraction(15, 2)", "-7"],
    "math": ["9", "Fraction(3, 8)", "Interval.open(-2, 2)", "8"],
    "aime": ["1", "90", "903", "30"],
    "olympiadbench": ["[3, 2]", "7.5", "(1, 3)", "n**2/2 + n/2"],
    "minif2f": [
        repr("theorem own_sum_of_two (x : ℝ)\n    (h : x + 3 = 10) :\n  x = 7"),
        repr("theorem own_even_square (n : ℕ) (h : 2 ∣ n) : 2 ∣ n ^ 2"),
        repr("theorem own_let : let y := 2; y + y = 4"),
    ],
}


def whole(file: Path, split: Any = "train", **keys: Any) -> list[Task]:
    """All problems of one side, in the file's order."""
    tasks = load_tasks(TasksConfig.model_validate({"dataset": str(file), **keys}), split, 0, 1000)
    return sorted(tasks, key=lambda task: int(task.metadata["where"].split()[-1]))


def everything(file: Path, **keys: Any) -> list[Task]:
    """All problems of a file, with a share held out that is too small for any of them."""
    return whole(file, **{"heldout": 1e-9, **keys})


def refusal(file: Path, **keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        whole(file, **keys)
    return str(caught.value).replace(f"{file}", file.name)


@pytest.mark.parametrize("name", FORMATS)
def test_answers_are_found_and_graded(name: str) -> None:
    tasks = everything(FILES / f"{name}.jsonl", format=name)
    assert [task.answer for task in tasks] == ANSWERS[name]
    assert [grade(task, (text,)) for task, text in zip(tasks, SUBMITTED[name], strict=True)] == [1.0] * len(tasks)
    shifted = SUBMITTED[name][1:] + SUBMITTED[name][:1]
    assert [grade(task, (text,)) for task, text in zip(tasks, shifted, strict=True)] == [0.0] * len(tasks)


def test_questions_families_and_ids() -> None:
    tasks = everything(FILES / "olympiadbench.jsonl", format="olympiadbench")
    assert tasks[1].question == "A right triangle has legs $3$ and $5$.\n\nFind its area."
    assert [task.family for task in tasks] == ["Algebra", "Geometry", "Number Theory", "Combinatorics"]
    assert tasks[0].id == "olympiadbench-train-1606"
    assert everything(FILES / "math.jsonl", format="math")[1].family == "Prealgebra"
    assert everything(FILES / "minif2f.jsonl", format="minif2f")[0].question == (
        "Let $x+3=10$. Show that $x=7$.\nState this in Lean as theorem own_sum_of_two, without a proof."
    )


@pytest.mark.parametrize(
    "text", ["'theorem own_let : let y := 2; y + y = 5'", "theorem", "'", "['theorem']", "'\\ud800'", "1"]
)
def test_a_theorem_is_compared_as_text(text: str) -> None:
    task = everything(FILES / "minif2f.jsonl", format="minif2f")[2]
    assert grade(task, (text,)) == 0.0
    assert grade(task, (repr(task.answer), repr(task.answer))) == 0.0


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
def test_other_kinds_of_files(tmp_path: Path, suffix: str) -> None:
    rows = [json.loads(line) for line in (FILES / "aime.jsonl").read_text().splitlines()]
    rows = [{name: str(value) for name, value in row.items()} for row in rows]
    file = tmp_path / f"aime{suffix}"
    if suffix == ".json":
        file.write_text(json.dumps(rows))
    elif suffix == ".csv":
        with file.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        Dataset.from_list(rows).to_parquet(str(file))
    assert [task.answer for task in everything(file, format="aime")] == ANSWERS["aime"]


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"q": "1 + 1?", "a": "#### 2"}\n\n{"q": "1 + 2?", "a": "#### 3"}\n')
    tasks = everything(file, format="gsm8k", columns={"question": "q", "answer": "a"})
    assert [(task.question, task.answer, task.metadata["where"]) for task in tasks] == [
        ("1 + 1?", "2", f"{file}, line 1"),
        ("1 + 2?", "3", f"{file}, line 3"),
    ]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("gsm8k", '{"question": "?", "answer": "7"}', "column answer in format gsm8k: no '#### ANSWER' is in it"),
        ("gsm8k", '{"question": "?", "answer": "#### seven"}', "'seven' after #### is not a number"),
        ("gsm8k", '{"question": " ", "answer": "#### 7"}', "column question in format gsm8k: it is empty"),
        ("gsm8k", '{"problem": "?", "answer": "#### 7"}', "there is no column question for the question"),
        ("gsm8k", '{"question": "?", "answer": null}', "None is neither text nor a number"),
        ("gsm8k", "[1]", "[1] is not an object with a problem's columns"),
        ("gsm8k", '{"question": ', "can't be read as jsonl: Expecting value"),
        ("math", '{"problem": "?", "solution": "It is 7."}', r"no \boxed{ANSWER} is in it"),
        ("math", '{"problem": "?", "solution": "\\\\boxed{7"}', r"no \boxed{ANSWER} is in it"),
        ("aime", '{"problem": "?", "answer": 1000}', "'1000' is not an integer from 0 to 999"),
        ("aime", '{"problem": "?", "answer": "7.5"}', "'7.5' is not an integer from 0 to 999"),
        ("aime", '{"problem": "?", "answer": 7, "year": "soon"}', "column year in format aime: 'soon' is not a date"),
        ("olympiadbench", '{"question": "?", "final_answer": null}', "it holds no final answer"),
        ("olympiadbench", '{"question": "<image_1>?", "final_answer": ["1"]}', "refers to an image"),
        (
            "olympiadbench",
            '{"question": "?", "final_answer": ["$%$ ++ ?? ,,"]}',
            "can't be read as mathematics or words",
        ),
        ("minif2f", '{"informal_stmt": "?", "formal_statement": "example : 1 = 1"}', "no theorem is in it"),
    ],
)
def test_a_row_that_does_not_fit_is_named_with_its_line(tmp_path: Path, name: str, row: str, message: str) -> None:
    file = tmp_path / "rows.jsonl"
    good = (FILES / f"{name}.jsonl").read_text().splitlines()[0]
    file.write_text(f"{good}\n\n{row}\n")
    said = refusal(file, format=name, heldout=1e-9)
    assert said.startswith("rows.jsonl, line 3: ")
    assert message in said


def test_dates_decide_what_is_held_out() -> None:
    file, keys = FILES / "aime.jsonl", {"format": "aime"}
    assert [task.id[-8:] for task in whole(file, before="2024-01-01", **keys)] == ["2022-I-1", "023-II-4"]
    assert [task.id[-8:] for task in whole(file, "heldout", before="2024-01-01", **keys)] == ["2024-I-2", "2025-I-3"]
    assert [task.id[-8:] for task in whole(file, "heldout", before=2023, after=2025, **keys)] == ["2025-I-3"]
    assert [task.id[-8:] for task in whole(file, before=2023, after=2025, **keys)] == ["2022-I-1"]


def test_a_year_that_a_date_cuts_is_on_neither_side() -> None:
    file = FILES / "aime.jsonl"
    train, heldout = (whole(file, side, format="aime", after="2024-06-01") for side in ("train", "heldout"))
    assert [task.id for task in train + heldout] == [
        "aime-train-2022-I-1",
        "aime-train-2023-II-4",
        "aime-train-2025-I-3",
    ]


def test_dates_are_for_other_sets_too(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    days = ("2024-05-31", "2024-06-01T12:00:00", "2024-06")
    file.write_text(
        "".join(json.dumps({"question": f"{n}?", "answer": "1", "seen": day}) + "\n" for n, day in enumerate(days))
    )
    keys = {"before": "2024-06-01", "columns": {"date": "seen"}}
    config = TasksConfig.model_validate({"dataset": str(file), **keys})
    assert [task.question for task in load_tasks(config, "train", 0, 9)] == ["0?"]
    assert sorted(task.question for task in load_tasks(config, "heldout", 0, 9)) == ["1?", "2?"]
    file.write_text(json.dumps({"question": "?", "answer": "1", "seen": "long ago"}) + "\n")
    with pytest.raises(ConfigError, match=r"row 0: column 'seen' for tasks.columns.date: 'long ago' is not a date"):
        load_tasks(config, "train", 0, 9)


def test_a_preset_that_is_for_evaluation_can_be_split_by_date(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(
        (FILES / "aime.jsonl").read_text().replace('"2025"', "2025").replace(" 90", ' "90"')
    )
    keys = {"dataset": "aime", "folder": str(tmp_path), "after": 2024, "columns": {"date": "year"}}
    config = TasksConfig.model_validate(keys)
    assert sorted(task.answer for task in load_tasks(config, "heldout", 0, 9)) == ["030", "903"]
    assert sorted(task.answer for task in load_tasks(config, "train", 0, 9)) == ["001", "90"]


def test_rows_without_a_date_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"problem": "?", "answer": 7}\n')
    assert refusal(file, format="aime", before=2024).startswith("rows.jsonl, line 1: it has no date")


@pytest.mark.parametrize(
    ("value", "days"),
    [
        (2024, ("2024-01-01", "2024-12-31")),
        ("2024", ("2024-01-01", "2024-12-31")),
        (2024.0, ("2024-01-01", "2024-12-31")),
        ("2024-02", ("2024-02-01", "2024-02-29")),
        ("2024-12", ("2024-12-01", "2024-12-31")),
        ("2024-02-29T10:00:00Z", ("2024-02-29", "2024-02-29")),
        (date(2024, 2, 3), ("2024-02-03", "2024-02-03")),
    ],
)
def test_periods(value: Any, days: tuple[str, str]) -> None:
    assert tuple(map(str, period_of(value))) == days


@pytest.mark.parametrize("value", ["2023-02-29", "2024-13", "24", "", True, None, 2024.5, [2024]])
def test_what_is_no_date(value: Any) -> None:
    with pytest.raises(ValueError):
        period_of(value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": "a.jsonl", "format": "gsm9k"}, "gsm8k"),
        ({"dataset": "gsm8k", "format": "gsm8k"}, "format 'gsm8k' is for files"),
        ({"dataset": "a.jsonl", "format": "math", "answer_pattern": "boxed"}, "leave answer_pattern out"),
        ({"dataset": "a.jsonl", "before": "2024-01-01"}, "need columns: {date: ...}"),
        (
            {"dataset": "a.jsonl", "format": "aime", "before": 2025, "after": 2024},
            "after 2024-01-01 lies before 2025-01-01",
        ),
        ({"dataset": "a.jsonl", "format": "aime", "before": 2025, "heldout": 0.1}, "leave one of them out"),
        ({"dataset": "a.jsonl", "format": "aime", "before": 20240601}, "is not a date such as 2024"),
        ({"dataset": "a.jsonl", "format": "aime", "before": "June"}, "before"),
        ({"families": "gcd", "format": "aime"}, "format is for data sets"),
        ({"families": "gcd", "before": 2024}, "is for data sets"),
    ],
)
def test_sections_that_make_no_sense(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"tasks": values})
    assert message in str(caught.value)


def test_dates_come_back_from_a_runs_config(tmp_path: Path) -> None:
    from repl_rl.config import dump_config

    config = parse_config({"tasks": {"dataset": "a.jsonl", "format": "aime", "after": 2024}})
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "config.yaml")) == config
    assert config.tasks.before == date(2024, 1, 1)
    changed = load_config(str(tmp_path / "config.yaml"), ("tasks.before=2023-06-01",))
    assert (changed.tasks.before, changed.tasks.after) == (date(2023, 6, 1), date(2024, 1, 1))
