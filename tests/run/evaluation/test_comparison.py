"""Rows, JSON and tables of trajectories made by hand; aborted ones are shown and fail nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from repl_rl.config import load_config
from repl_rl.run.evaluation.comparison import Row, Samples, labels, make_row, report, tables
from repl_rl.run.evaluation.plan import Combination, EvaluationPlan
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory, write_jsonl
from tests.made_trajectories import line, made

TASKS = tuple(Task(f"{family}-{n}", "?", "1", family) for n in (1, 2) for family in ("gcd", "lcm"))
RIGHT = replace(made([line(), line(kind=LineKind.ANSWER)]), outcome_reward=1.0)
WRONG = replace(made([line(kind=LineKind.EXCEPTION), line(kind=LineKind.ANSWER)]), outcome_reward=0.0)
LOST = replace(made([line()]), stop_reason=StopReason.ABORTED, outcome_reward=0.0)


def plan(models: tuple[str, ...] = ("nano", "[red]other[/red]")) -> EvaluationPlan:
    config = load_config("quickstart", ("seed=7",))
    return EvaluationPlan(tuple(Combination(name, config) for name in models), TASKS, 2, (1, 2))


def two_rows() -> tuple[EvaluationPlan, list[Row]]:
    made_plan = plan()
    first: tuple[Samples, ...] = ((WRONG, WRONG), (RIGHT, WRONG), (WRONG, WRONG), (LOST, LOST))
    second: tuple[Samples, ...] = ((RIGHT, RIGHT), (RIGHT, LOST), (WRONG, RIGHT), (RIGHT, RIGHT))
    one = make_row(made_plan, made_plan.combinations[0], first, None, 2.5)
    return made_plan, [one, make_row(made_plan, made_plan.combinations[1], second, first, 3.5)]


def test_a_row_holds_the_problems_and_each_family() -> None:
    _, (first, second) = two_rows()
    assert first.difference is None
    assert [summary.problems for summary in second.families.values()] == [2, 2]
    found = [(name, one.pass_at[1], one.pass_at[2]) for name, one in second.families.items()]
    assert [(name, p1 and p1.value, p2 and p2.value) for name, p1, p2 in found] == [
        ("gcd", 0.75, 1.0),
        ("lcm", 1.0, 1.0),
    ]
    assert (second.overall.graded, second.overall.aborted) == (7, 1)


def test_the_difference_is_over_problems_that_both_rows_have() -> None:
    """gcd-1: 1 against 0; lcm-1: 1 against 1/2; gcd-2: 1/2 against 0; lcm-2 was lost in the first.

    Of the 5**5 resamples of 1, 1/2, 1/2, 1 and -1, 2.5% have means below -0.3, and 2.5% above 0.9.
    """
    _, (_, second) = two_rows()
    assert second.difference is not None
    assert (second.difference.value, second.difference.problems) == (pytest.approx(2 / 3), 3)
    assert (second.difference.low, second.difference.high) == (-0.3, 0.9)


def test_the_report_is_json_with_all_that_was_asked_for() -> None:
    made_plan, rows = two_rows()
    found = json.loads(json.dumps(report(made_plan, rows), allow_nan=False))
    assert (found["seed"], found["problems"], found["samples"], found["k"]) == (7, 4, 2, [1, 2])
    assert set(found["versions"]) >= {"repl-rl", "torch", "transformers"}
    first, second = found["rows"]
    assert (first["model"], first["dialect"], first["difference_to_first"]) == ("nano", "python", None)
    assert first["config"] == made_plan.config.model_dump(mode="json")
    assert first["pass_at"]["1"]["value"] == pytest.approx(1 / 6)
    assert first["repaired_trajectories"] == {"count": 0, "of": 5, "share": 0.0}
    assert first["repaired_lines"] == {"count": 5, "of": 5, "share": 1.0}
    assert first["families"]["lcm"]["aborted"] == 2
    assert second["families"]["lcm"]["repaired_lines"] == {"count": 0, "of": 0, "share": None}
    assert second["difference_to_first"]["value"] == pytest.approx(2 / 3)
    assert [row["wall_s"] for row in found["rows"]] == [2.5, 3.5]


def test_each_rollout_says_whose_it_is_and_reads_back(tmp_path: Path) -> None:
    made_plan, (_, second) = two_rows()
    write_jsonl(tmp_path / "x.jsonl", second.trajectories, labels=labels(made_plan, second))
    records = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [record["sample"] for record in records] == [0, 1] * 4
    assert {(record["model"], record["dialect"]) for record in records} == {("[red]other[/red]", "python")}
    assert [Trajectory.from_dict(record) for record in records] == [
        replace(trajectory, dialect="python") for trajectory in second.trajectories
    ]


def shown(made_plan: EvaluationPlan, rows: list[Row], width: int = 120) -> list[str]:
    screen = Console(file=io.StringIO(), width=width)
    for table in tables(made_plan, rows):
        screen.print(table)
    assert isinstance(screen.file, io.StringIO)
    return list(_cells(screen.file.getvalue()))


def _cells(text: str) -> Iterator[str]:
    for row in text.splitlines():
        if row.startswith(("│", "┃")):
            yield " ".join(row.replace("┃", "│").replace("│", " ").split())


def test_the_tables_of_two_rows() -> None:
    made_plan, rows = two_rows()
    assert shown(made_plan, rows) == [
        "# model dialect pass@1 pass@2 over #1",
        "1 nano python 16.7% 33.3% –",
        "[2.6,59.7] [6.1,79.2]",
        "2 [red]other[/red] python 87.5% 100.0% +66.7",
        "[50.5,98.0] [43.9,100.0] [-30.0,+90.0]",
        "solved after error lines",
        "# lines tokens seconds an error repaired aborted ended by",
        "1 2.0 2 0.00 0 of 5 (0%) 5 of 5 (100%) 2 answer 100%",
        "2 2.0 2 0.00 0 of 1 (0%) 1 of 1 (100%) 1 answer 100%",
        "family # problems pass@1 pass@2 lines tokens",
        "gcd 1 2 0.0% [0.0,65.8] 0.0% [0.0,65.8] 2.0 2",
        "2 2 75.0% [25.6,96.3] 100.0% [34.2,100.0] 2.0 2",
        "lcm 1 2 50.0% [5.5,94.5] 100.0% [20.7,100.0] 2.0 2",
        "2 2 100.0% [34.2,100.0] 100.0% [20.7,100.0] 2.0 2",
    ]


def test_a_line_stands_between_two_families() -> None:
    made_plan, rows = two_rows()
    screen = Console(file=io.StringIO(), width=120)
    screen.print(list(tables(made_plan, rows))[2])
    assert isinstance(screen.file, io.StringIO)
    starts = [row[:2] for row in screen.file.getvalue().splitlines()[1:]]
    assert [start[0] for start in starts] == list("┏┃┡││├││└")


def test_a_row_alone_is_compared_to_nothing_and_what_is_not_known_is_a_dash() -> None:
    alone = plan(models=("nano",))
    row = make_row(alone, alone.combinations[0], ((LOST, LOST), (RIGHT, RIGHT)) * 2, None, 1.0)
    found = shown(alone, [row])
    assert found[0] == "# model dialect pass@1 pass@2"
    assert found[5] == "1 2.0 2 0.00 – – 4 answer 100%"
    assert found[7] == "gcd 1 2 – – – –"


def test_no_number_is_broken_in_a_terminal_of_80_columns() -> None:
    made_plan, rows = two_rows()
    text = " ".join(shown(made_plan, rows, width=80))
    assert "…" not in text
    for number in ("[50.5,98.0]", "[43.9,100.0]", "[-30.0,+90.0]", "[25.6,96.3]", "aborted"):
        assert number in text
