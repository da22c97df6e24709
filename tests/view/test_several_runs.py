"""`repl-rl view RUN RUN`: what tells runs apart, their curves, their held-out rates, and the same task's sessions."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from repl_rl.errors import RunError
from repl_rl.trajectory import write_jsonl
from repl_rl.utils.statistics import Tally, estimate_pass_at_k, paired_difference
from repl_rl.view.viewer.api import RunApi
from repl_rl.view.viewer.indexer import update
from tests.view.conftest import STEPS, TASKS, failed_trajectory, solved_trajectory

LAST = f"eval/step_{STEPS:05d}.jsonl"


def of_several(*paths: Path) -> RunApi:
    api = RunApi(*paths)
    update(api.targets, api.index)
    return api


def test_rates_have_intervals_and_differences_are_on_the_problems_of_both(two: tuple[Path, Path]) -> None:
    compared = of_several(*two).run()["compared"]
    who = [f"{row['family']} {row['run']}" for row in compared[:4]]
    assert who == ["all first", "all second", "binomial first", "binomial second"]
    one, other = compared[:2]
    solved = [[Tally(1, int(number != 1)) for number in range(12)], [Tally(1, int(number < 6)) for number in range(11)]]
    for row, tallies in ((one, solved[0]), (other, solved[1])):
        rate = estimate_pass_at_k(tallies, 1)
        assert rate is not None
        assert row["rate"] == asdict(rate)
    change = paired_difference(solved[1], solved[0][:11], "all")
    assert one["change"] is None
    assert change is not None
    assert other["change"] == asdict(change)
    assert change.value == pytest.approx(-4 / 11)


def test_what_is_told_of_both(two: tuple[Path, Path]) -> None:
    told = of_several(*two).run()
    assert (told["name"], told["facts"]) == ("first, second", [["rewards.outcome", "1.0  |  2.0"]])
    assert told["choices"]["runs"] == ["first", "second"]
    (batch,) = (chart for chart in told["charts"] if chart["id"] == "solve_rate")
    assert [(curve["name"], curve["x"][-1]) for curve in batch["data"]] == [("first", STEPS), ("second", 1)]
    assert {"heldout", "rewards-outcome-mean", "kinds-statement"} <= {chart["id"] for chart in told["charts"]}


def test_sessions_of_both_and_of_each(two: tuple[Path, Path]) -> None:
    api = of_several(*two)
    rows = api.rows({"step": "1"})["rows"]
    assert [row["id"] for row in rows] == ["train-1-0", "train-1-1", "1.train-1-0", "1.train-1-1"]
    assert [row["run"] for row in rows] == ["first", "first", "second", "second"]
    assert {row["run"] for row in api.rows({"run": "second"})["rows"]} == {"second"}
    assert [row["id"] for row in api.group("1.train-1-1")["rows"]] == ["1.train-1-0", "1.train-1-1"]
    assert len(api.task("1.train-1-1")["rows"]) == 4
    assert api.trajectory("1.train-1-1")["row"]["run"] == "second"
    (two[1] / LAST).unlink()
    update(api.targets, api.index)
    assert {row["run"] for row in api.rows({"step": str(STEPS)})["rows"]} == {"first"}


def test_a_file_of_several_models_is_compared_too(tmp_path: Path) -> None:
    file = tmp_path / "eval.jsonl"
    for model, make in (("nano", failed_trajectory), ("other", solved_trajectory)):
        labels = [{"model": model, "dialect": "python"}] * len(TASKS)
        write_jsonl(file, [make(task) for task in TASKS], labels=labels, append=True)
    api = of_several(file)
    rows = [
        (row["model"], row["rate"]["value"], row["change"] and row["change"]["value"])
        for row in api.run()["compared"][:2]
    ]
    assert rows == [("nano", 0.0, None), ("other", 1.0, 1.0)]
    assert len(api.group("train-0-0")["rows"]) == 1, "a group is of one model"


def test_in_the_terminal(two: tuple[Path, Path], said: Callable[..., str]) -> None:
    first, second = map(str, two)
    rows = said("view", first, second, "--summary").splitlines()[-2:]
    assert "91.7%" in rows[0]
    assert "; over the first: -36.4 points [" in rows[1]
    with pytest.raises(RunError, match="one of them is given twice"):
        RunApi(two[0], two[0].parent / "second" / ".." / "first")
    with pytest.raises(RunError, match="17 runs are too many to look at together; give at most 16"):
        RunApi(*(two[0] / str(number) for number in range(17)))
    assert "--export FILE.html" in said("view", first, second, "--export", code=2)
