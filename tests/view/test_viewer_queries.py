"""Filters, orders and windows against the same done over a list; what comes from outside is refused or a value."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from repl_rl.errors import ConfigError
from repl_rl.trajectory import StopReason, Trajectory, write_jsonl
from repl_rl.view.viewer import queries
from repl_rl.view.viewer.api import RunApi
from tests.view.conftest import failed_trajectory, indexed, solved_trajectory

Row = dict[str, Any]
REFUSED = yaml.safe_load(Path(__file__).with_name("queries_refused.yaml").read_text(encoding="utf-8"))


def some(random_: random.Random, step: int) -> Trajectory:
    family = random_.choice(["gcd", "product", "sum_100%"])
    make = random_.choice([solved_trajectory, failed_trajectory])
    made = make(f"{family}-train-{random_.randint(1, 5)}", credited=random_.random() < 0.8)
    stop = random_.choice([StopReason.ANSWER, StopReason.ANSWER, StopReason.MAX_LINES, StopReason.ABORTED])
    grade = random_.choice([None, made.outcome_reward])
    return replace(made, stop_reason=stop, outcome_reward=grade, duration_s=random_.random(), version=step, error=None)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunApi:
    folder = tmp_path_factory.mktemp("runs") / "many"
    folder.mkdir()
    (folder / "config.yaml").write_text("name: many\n")
    random_ = random.Random(5)
    for step in range(1, 13):
        write_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl", [some(random_, step) for _ in range(20)])
        if step % 6 == 0:
            write_jsonl(folder / "eval" / f"step_{step:05d}.jsonl", [some(random_, step) for _ in range(10)])
    return indexed(folder)


@pytest.fixture(scope="module")
def everything(source: RunApi) -> list[Row]:
    rows: list[Row] = source.rows({"limit": "1000"})["rows"]
    assert len(rows) == 12 * 20 + 2 * 10
    return rows


@pytest.mark.parametrize(
    ("parameters", "fits"),
    [
        ({"split": "eval"}, lambda row: row["split"] == "eval"),
        ({"step": "7"}, lambda row: row["step"] == 7),
        ({"step": "3-5"}, lambda row: 3 <= row["step"] <= 5),
        ({"task": "gcd-train-2"}, lambda row: row["task_id"] == "gcd-train-2"),
        ({"family": "sum_100%"}, lambda row: row["family"] == "sum_100%"),
        ({"status": "not solved"}, lambda row: row["status"] == "not solved"),
        ({"status": "void"}, lambda row: row["stop_reason"] == "aborted"),
        ({"stop": "max_lines"}, lambda row: row["stop_reason"] == "max_lines"),
        ({"error": "NameError"}, lambda row: row["errors"] == ["NameError"]),
        ({"min_reward": "0.5"}, lambda row: row["reward"] is not None and row["reward"] >= 0.5),
        ({"max_reward": "-0.1"}, lambda row: row["reward"] is not None and row["reward"] <= -0.1),
        ({"q": "PRODUCT-"}, lambda row: "product-" in row["task_id"]),
        ({"q": "common divisor"}, lambda row: True),
        ({"q": "_100%"}, lambda row: "_100%" in row["task_id"]),
        ({"q": "g_d"}, lambda row: False),
        ({"q": "\\"}, lambda row: False),
        ({"q": "' OR 1=1 --"}, lambda row: False),
        (
            {"step": "2-9", "status": "solved", "family": "gcd", "split": "", "q": ""},
            lambda row: 2 <= row["step"] <= 9 and row["status"] == "solved" and row["family"] == "gcd",
        ),
    ],
)
def test_filters(
    source: RunApi, everything: list[Row], parameters: dict[str, str], fits: Callable[[Row], bool]
) -> None:
    expected = [row for row in everything if fits(row)]
    assert source.rows({**parameters, "limit": "1000"}) == {"total": len(expected), "rows": expected}


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize(
    "name", ["task_id", "status", "reward", "outcome", "lines", "tokens", "errors", "duration_s", "position"]
)
def test_orders(source: RunApi, everything: list[Row], name: str, order: str) -> None:
    found = source.rows({"sort": name, "order": order, "limit": "1000"})["rows"]
    values = [len(row[name]) if name == "errors" else row[name] for row in found]
    present = [value for value in values if value is not None]
    assert present == sorted(present, reverse=order == "desc")
    assert values == present + [None] * (len(values) - len(present))
    assert sorted(row["id"] for row in found) == sorted(row["id"] for row in everything)


def test_the_newest_step_first_keeps_the_order_within_a_step(source: RunApi) -> None:
    found = source.rows({"sort": "step", "order": "desc", "limit": "32"})["rows"]
    expected = [f"train-12-{n}" for n in range(20)] + [f"eval-12-{n}" for n in range(10)] + ["train-11-0", "train-11-1"]
    assert [row["id"] for row in found] == expected


def test_windows_add_up(source: RunApi, everything: list[Row]) -> None:
    pages = [source.rows({"offset": str(start), "limit": "7"}) for start in range(0, 280, 7)]
    assert [row for page in pages for row in page["rows"]] == everything
    assert {page["total"] for page in pages} == {260}
    assert source.rows({"limit": "0"}) == {"total": 260, "rows": []}
    assert len(source.rows({})["rows"]) == 100


@pytest.mark.parametrize(("parameters", "message"), REFUSED)
def test_what_means_nothing_is_refused(source: RunApi, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source.rows(parameters)
    assert message in str(caught.value)


def test_the_choices_are_the_values_that_there_are(source: RunApi, everything: list[Row]) -> None:
    choices = source.run()["choices"]
    for name, column in (("statuses", "status"), ("families", "family"), ("stops", "stop_reason")):
        assert choices[name] == sorted({row[column] for row in everything})
    assert (choices["errors"], choices["splits"], choices["steps"]) == (["NameError"], ["train", "eval"], [1, 12])


def test_a_group_is_one_task_in_one_step(source: RunApi, everything: list[Row]) -> None:
    one = everything[25]
    keys = ("split", "step", "task_id")
    expected = [row for row in everything if all(row[key] == one[key] for key in keys)]
    assert source.group(one["id"]) == {"rows": expected}
    assert len(expected) > 1


def test_a_task_over_steps(source: RunApi, everything: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    one = everything[25]
    expected = [row for row in everything if row["task_id"] == one["task_id"]]
    assert source.task(one["id"]) == {"rows": expected}
    monkeypatch.setattr(queries, "_MOST_OF_TASK", 5)
    few = source.task(one["id"])["rows"]
    assert (few[0], few[-1], len(few)) == (expected[0], expected[-1], 5)


def test_another_problem_of_the_same_id_is_another_task(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: two-files\n")
    made = solved_trajectory("7")
    write_jsonl(tmp_path / "rollouts" / "step_00001.jsonl", [made, made])
    write_jsonl(tmp_path / "eval" / "step_00001.jsonl", [replace(made, question="What is 3 + 4?")])
    source = indexed(tmp_path)
    assert [row["id"] for row in source.task("train-1-0")["rows"]] == ["train-1-0", "train-1-1"]
    assert [row["id"] for row in source.task("eval-1-0")["rows"]] == ["eval-1-0"]


@pytest.mark.parametrize("id", ["", "train-1", "train-1-999", "test-1-1", "train-1-1 OR 1", "train-01-1x", "../etc"])
def test_unknown_ids(source: RunApi, id: str) -> None:
    for ask in (source.trajectory, source.tokens, source.group, source.task):
        with pytest.raises(queries.NotFound, match="there is no trajectory"):
            ask(id)
