"""Repairs, means, rows, JSON and tables of trajectories made by hand; aborted ones are shown and fail nothing."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from repl_rl.config import load_config
from repl_rl.rollout.checks import check_rollouts
from repl_rl.run.evaluation.comparison import (
    Row,
    Samples,
    Share,
    labels,
    make_row,
    repaired_lines,
    repaired_trajectories,
    report,
    summarize,
    tables,
    tally,
)
from repl_rl.run.evaluation.plan import Combination, EvaluationPlan
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory, write_jsonl
from repl_rl.utils.statistics import Estimate, Tally, wilson
from tests.made_trajectories import line, made

CASES = yaml.safe_load(Path(__file__).with_name("comparisons.yaml").read_text(encoding="utf-8"))
TASKS = tuple(Task(f"{family}-{n}", "?", "1", family) for n in (1, 2) for family in ("gcd", "lcm"))
RIGHT = replace(made([line(), line(kind=LineKind.ANSWER)]), outcome_reward=1.0)
WRONG = replace(made([line(kind=LineKind.EXCEPTION), line(kind=LineKind.ANSWER)]), outcome_reward=0.0)
LOST = replace(made([line()]), stop_reason=StopReason.ABORTED, outcome_reward=0.0)


def typed(*kinds: str, right: bool = False, stop: StopReason = StopReason.ANSWER) -> Trajectory:
    """A trajectory whose lines are of these kinds."""
    lines = made([line(kind=LineKind(kind)) for kind in kinds])
    return replace(lines, stop_reason=stop, outcome_reward=float(right))


ABORTED = typed("exception", "statement", right=False, stop=StopReason.ABORTED)


@pytest.mark.parametrize(("kinds", "expected"), CASES["repaired"].items())
def test_an_error_line_is_repaired_by_the_next_line_that_runs(kinds: str, expected: list[int]) -> None:
    count, of = expected
    assert repaired_lines([typed(*kinds.split())]) == Share(count, of)
    two = [typed("exception"), typed("statement"), typed(*kinds.split())]
    assert repaired_lines(two) == Share(count, of + 1), "not across two trajectories"


def test_a_trajectory_is_repaired_by_a_right_answer() -> None:
    trajectories = [
        typed("exception", "answer", right=True),
        typed("syntax_error", "timeout", "answer", right=True),
        typed("exception", "answer", right=False),
        typed("timeout", right=False, stop=StopReason.MAX_LINES),
        typed("statement", "answer", right=True),
        typed("killed", right=False, stop=StopReason.KILLED),
    ]
    assert repaired_trajectories(trajectories) == Share(2, 4)
    assert Share(2, 4).value == 0.5
    assert Share(0, 0).value is None


def test_aborted_trajectories_are_no_failures() -> None:
    assert tally([typed("answer", right=True), ABORTED, typed("answer")]) == Tally(2, 1)
    assert tally([ABORTED, replace(ABORTED, stop_reason=StopReason.UNFINISHED)]) == Tally(0, 0)
    assert tally([replace(made([]), stop_reason=StopReason.CONTEXT)]) == Tally(1, 0), "nothing was typed"


def test_the_figures_of_a_set_of_problems() -> None:
    quick = replace(typed("expression", "answer", right=True), duration_s=3.0, queue_s=2.0)
    slow = typed("exception", "comment", "blank", "statement", stop=StopReason.MAX_LINES)
    slow = replace(slow, duration_s=5.0, queue_s=2.0)
    found = summarize([[quick, slow], [quick, replace(ABORTED, duration_s=99.0)]], ks=(1, 2))
    assert (found.problems, found.graded, found.aborted) == (2, 3, 1)
    assert found.pass_at[1] == Estimate(0.75, *wilson(0.75, 3), 2)
    assert found.pass_at[2] == Estimate(1.0, *wilson(1.0, 1), 1)
    assert (found.lines, found.tokens, found.seconds) == pytest.approx((8 / 3, 8 / 3, 5 / 3))
    assert found.stops == pytest.approx({"answer": 2 / 3, "max_lines": 1 / 3})
    assert (found.repaired_trajectories, found.repaired_lines) == (Share(0, 1), Share(1, 1))


def test_where_everything_was_aborted_nothing_is_said() -> None:
    found = summarize([[ABORTED]], ks=(1,))
    assert (found.graded, found.aborted, found.pass_at) == (0, 1, {1: None})
    assert (found.lines, found.tokens, found.seconds, found.stops) == (None, None, None, {})


def plan(models: tuple[str, ...] = ("nano", "[red]other[/red]")) -> EvaluationPlan:
    config = load_config("quickstart", ("seed=7",))
    checked = check_rollouts(config)
    return EvaluationPlan(tuple(Combination(name, config, checked) for name in models), TASKS, 2, (1, 2))


def two_rows() -> tuple[EvaluationPlan, list[Row]]:
    made_plan = plan()
    first: tuple[Samples, ...] = ((WRONG, WRONG), (RIGHT, WRONG), (WRONG, WRONG), (LOST, LOST))
    second: tuple[Samples, ...] = ((RIGHT, RIGHT), (RIGHT, LOST), (WRONG, RIGHT), (RIGHT, RIGHT))
    one = make_row(made_plan, made_plan.combinations[0], first, None, 2.5)
    return made_plan, [one, make_row(made_plan, made_plan.combinations[1], second, first, 3.5)]


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
    write_jsonl(tmp_path / "x.jsonl", second.trajectories, labels=labels(made_plan, second.combination, range(8)))
    records = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert [record["sample"] for record in records] == [0, 1] * 4
    assert {(record["model"], record["dialect"]) for record in records} == {("[red]other[/red]", "python")}
    told = [replace(trajectory, dialect="python") for trajectory in second.trajectories]
    assert [Trajectory.from_dict(record) for record in records] == told


def shown(made_plan: EvaluationPlan, rows: list[Row], width: int = 120) -> list[str]:
    file = io.StringIO()
    for table in tables(made_plan, rows):
        Console(file=file, width=width).print(table)
    cells = [row for row in file.getvalue().splitlines() if row.startswith(("│", "┃"))]
    return [" ".join(row.replace("┃", "│").replace("│", " ").split()) for row in cells]


def test_the_tables_of_two_rows() -> None:
    assert shown(*two_rows()) == CASES["tables"]


def test_a_row_alone_is_compared_to_nothing_and_what_is_not_known_is_a_dash() -> None:
    alone = plan(models=("nano",))
    row = make_row(alone, alone.combinations[0], ((LOST, LOST), (RIGHT, RIGHT)) * 2, None, 1.0)
    found = shown(alone, [row])
    assert found[0] == "# model dialect pass@1 pass@2"
    assert found[5] == "1 2.0 2 0.00 – – 4 answer 100%"
    assert found[7] == "gcd 1 2 – – – –"


def test_no_number_is_broken_in_a_terminal_of_80_columns() -> None:
    text = " ".join(shown(*two_rows(), width=80))
    assert "…" not in text
    for number in ("[50.5,98.0]", "[43.9,100.0]", "[-30.0,+90.0]", "[25.6,96.3]", "aborted"):
        assert number in text
