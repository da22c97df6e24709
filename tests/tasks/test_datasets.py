"""Data sets through `load_tasks`: files of every kind and format, dates, and what is said where one does not fit."""

import argparse
import csv
import gzip
import io
import json
import shutil
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from datasets import Dataset, DatasetDict

from repl_rl.config import TasksConfig, dump_config, load_config, parse_config
from repl_rl.config.tasks import PRESET_NAMES
from repl_rl.errors import ConfigError
from repl_rl.run.rollouts import asked_tasks
from repl_rl.run.training import check_inputs
from repl_rl.tasks import PRESETS, grade, load_splits, load_tasks, make_tasks
from repl_rl.tasks.formats import FORMATS, period_of, row_of
from repl_rl.trajectory import Task

HERE = Path(__file__).parent
FILES = HERE / "formats"
EXPECTED = yaml.safe_load((FILES / "expected.yaml").read_text(encoding="utf-8"))
REFUSED = yaml.safe_load((HERE / "refused.yaml").read_text(encoding="utf-8"))
PERIODS = yaml.safe_load((HERE / "periods.yaml").read_text(encoding="utf-8"))
ROWS = [{"question": f"What is {n} + 1000?", "answer": f"It is {n + 1000}.\n#### {n + 1000:,}"} for n in range(40)]


def _write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        Dataset.from_list(rows).to_parquet(str(path))
        return
    kind = path.name.lower().removesuffix(".gz")
    text = io.StringIO(newline="")
    if kind.endswith(("csv", "tsv")):
        writer = csv.DictWriter(text, list(rows[0]), delimiter="," if kind.endswith("csv") else "\t")
        writer.writeheader()
        writer.writerows(rows)
    elif kind.endswith(".whole.json"):
        json.dump(rows, text)
    else:
        text.writelines(json.dumps(row) + "\n" for row in rows)
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)


def _load(folder, split="train", count=1000, seed=0, **config):
    return load_tasks(TasksConfig.model_validate({"folder": str(folder), **config}), split, seed, count)


def _formatted(name, split="train", **config):
    """The problems of one side of a file in a format of its own, in the file's order."""
    tasks = _load(FILES / f"{name}.jsonl", split, format=name, **config)
    return sorted(tasks, key=lambda task: int(task.metadata["where"].split()[-1]))


@pytest.mark.parametrize(
    "suffix", ["parquet", "jsonl", "json", "whole.json", "csv", "tsv", "jsonl.gz", "json.gz", "whole.json.gz", "tsv.gz"]
)
def test_gsm8k_from_files_of_every_kind(tmp_path, suffix):
    """A file that ends in json may hold JSON lines."""
    _write(tmp_path / f"train.{suffix}", ROWS)
    _write(tmp_path / f"test.{suffix}", ROWS[:3])
    train = _load(tmp_path, dataset="gsm8k")
    assert sorted((task.question, task.answer, task.family) for task in train) == sorted(
        (row["question"], str(number + 1000), "gsm8k") for number, row in enumerate(ROWS)
    )
    assert {task.id for task in train} == {f"gsm8k-train-{number}" for number in range(40)}
    assert {task.id for task in _load(tmp_path, "heldout", dataset="gsm8k")} == {f"gsm8k-test-{n}" for n in range(3)}


def test_math_takes_the_last_box(tmp_path):
    shutil.copy(FILES / "math.jsonl", tmp_path / "train.jsonl")
    tasks = sorted(_load(tmp_path, dataset="math"), key=lambda task: task.id)
    assert [task.answer for task in tasks] == EXPECTED["math"]["answers"]
    assert [task.family for task in tasks] == ["Algebra", "Prealgebra", "Intermediate Algebra", "Number Theory"]


def test_columns_of_ones_own(tmp_path):
    rows = [{"q": f"Q{n}", "a": n, "name": f"n{n}", "kind": "k" + str(n % 2)} for n in range(4)]
    _write(tmp_path / "rows.jsonl", rows)
    columns = {"question": "q", "answer": "a", "id": "name", "family": "kind"}
    tasks = _load(tmp_path, columns=columns, heldout=1e-9, dataset="mine/own")
    assert {(task.id, task.question, task.answer, task.family) for task in tasks} == {
        (f"n{n}", f"Q{n}", str(n), f"k{n % 2}") for n in range(4)
    }


def test_what_save_to_disk_wrote(tmp_path):
    whole, splits = tmp_path / "whole", tmp_path / "splits"
    Dataset.from_list(ROWS).save_to_disk(str(whole))
    DatasetDict(train=Dataset.from_list(ROWS[:5]), validation=Dataset.from_list(ROWS[5:7])).save_to_disk(str(splits))
    keys = {"answer_pattern": "#### (.+)"}
    assert [len(_load(splits, split, **keys)) for split in ("train", "heldout")] == [5, 2]
    assert len(_load(whole, dataset="gsm8k", heldout=1e-9)) == 40
    with pytest.raises(ConfigError, match="no split 'test': it is a set without splits"):
        _load(whole, "heldout", dataset="gsm8k")
    with pytest.raises(ConfigError, match="no split 'dev'; it holds train, validation"):
        _load(splits, "heldout", dataset="gsm8k", heldout="dev")


def test_a_share_is_held_out_by_the_question_alone(tmp_path):
    _write(tmp_path / "a.jsonl", ROWS)
    _write(tmp_path / "b" / "rows.jsonl", list(reversed(ROWS)))
    config = {"answer_pattern": r"####\s*(.+)", "heldout": 0.25}
    train, heldout = _load(tmp_path, **config), _load(tmp_path, "heldout", seed=7, **config)
    assert not {task.question for task in train} & {task.question for task in heldout}
    assert len(train) + len(heldout) == 80
    assert 10 <= len(heldout) <= 30


def test_the_order_follows_from_the_seed_and_a_longer_list_begins_with_the_shorter(tmp_path):
    _write(tmp_path / "train.jsonl", ROWS)
    first = _load(tmp_path, dataset="gsm8k", seed=1)
    assert _load(tmp_path, dataset="gsm8k", seed=1, count=7) == first[:7]
    assert _load(tmp_path, dataset="gsm8k", seed=2) != first


def test_families_go_through_the_same_door():
    assert load_tasks(TasksConfig(), "train", 3, 25) == make_tasks(None, 25, 3, "train")
    assert load_tasks(TasksConfig(families=("limit-1",)), "heldout", 0, 3) == make_tasks(["limit-1"], 3, 0, "heldout")


def test_a_run_takes_its_heldout_problems_from_the_set(tmp_path):
    _write(tmp_path / "train.jsonl", ROWS)
    _write(tmp_path / "test.jsonl", ROWS[:9])
    config = parse_config({"tasks": {"dataset": "gsm8k", "folder": str(tmp_path)}, "eval": {"problems": 4}})
    tasks = load_tasks(config.tasks, "heldout", 0, config.eval.problems)
    assert len(tasks) == 4
    assert all(task.id.startswith("gsm8k-test-") for task in tasks)


def test_an_answer_may_have_several_references_a_truth_or_a_unit(tmp_path):
    column = {
        "42": (["42", 42, " 42.0 "], ("42", "42.0")),
        "a text in a list": (["42"], None),
        "lists in a list": ([["42"], ["1,250"]], ("42", "1250")),
        "true": (True, None),
        "truths": ([False, "no"], ("False", "no")),
        "unit": ({"value": 42, "unit": "cm"}, None),
        "no unit": ({"value": 42, "unit": None}, None),
        "units": ([{"value": 42, "unit": "cm"}, "0.42 m"], ("42 cm", "0.42 m")),
    }
    answers = ["42", "42", "42", "True", "False", "42 cm", "42", "42 cm"]
    _write(
        tmp_path / "rows.jsonl", [{"question": question, "answer": answer} for question, (answer, _) in column.items()]
    )
    tasks = {task.question: task for task in _load(tmp_path / "rows.jsonl", heldout=1e-9)}
    assert [tasks[question].answer for question in column] == answers
    for question, (_, references) in column.items():
        assert tasks[question].metadata == ({} if references is None else {"references": references})
        assert tasks[question].references == (references or (tasks[question].answer,))
    _write(tmp_path / "patterns.jsonl", [{"question": "?", "answer": ["#### 42", "so\n#### 42.0"]}])
    [task] = _load(tmp_path / "patterns.jsonl", heldout=1e-9, answer_pattern="#### (.+)")
    assert task.references == ("42", "42.0")


def test_each_of_several_references_has_to_be_readable(tmp_path, caplog):
    unread = "all $x$ with $\\mho(x)=1++$"
    rows = [{"question": "1?", "answer": ["42", unread]}, {"question": "2?", "answer": ["42", "43"]}]
    rows += [
        {"question": f"{n}?", "answer": answer} for n, answer in enumerate([["42", ""], ["42", None], [], {"x": 1}], 3)
    ]
    _write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path / "rows.jsonl", heldout=1e-9)
    first, *listed = str(caught.value).split("\n  ")
    assert first.startswith("5 of 6 problems can't be graded")
    says = ["the reference answer 'all $x$", "it is empty", "None is neither text nor a number", "[] is", "{'x': 1} is"]
    numbers = [1, 3, 4, 5, 6]
    assert [f"line {number}: " in line for number, line in zip(numbers, listed, strict=True)] == [True] * 5
    assert [part in line for part, line in zip(says, listed, strict=True)] == [True] * 5
    [task] = _load(tmp_path / "rows.jsonl", heldout=1e-9, unreadable="skip")
    assert task.references == ("42", "43")
    _write(tmp_path / "rows.jsonl", rows[:2])
    first, second = sorted(_load(tmp_path / "rows.jsonl", heldout=1e-9, unreadable="text"), key=lambda task: task.id)
    assert first.metadata == {"references": ("42", unread), "graded_as": "text"}
    assert second.metadata == {"references": ("42", "43")}


KINDS = [["Algebra", "Geometry"], "Algebra", ["Geometry"], [], {"a": 1}, None]
DAYS = ["2024-01-01", "2023", "2022", "2021", "soon", None]


@pytest.mark.parametrize(
    ("keys", "readable", "messages"),
    [
        (
            {"columns": {"family": "kind"}, "heldout": 1e-9},
            "0125",
            ["line 4: column kind: [] is neither text nor a number", "line 5: column kind: {'a': 1} is neither"],
        ),
        (
            {"columns": {"id": "kind"}, "heldout": 1e-9},
            "125",
            [
                f"line {number}: column kind: {kind} is neither"
                for number, kind in ((1, KINDS[0]), (4, []), (5, KINDS[4]))
            ],
        ),
        (
            {"columns": {"date": "seen"}, "before": 2025},
            "0123",
            ["line 5: column seen: 'soon' is not a date", "line 6: it has no date for tasks.before and tasks.after"],
        ),
    ],
)
def test_any_column_that_cannot_be_read_is_listed_with_its_line_or_skipped(tmp_path, keys, readable, messages):
    file = tmp_path / "rows.jsonl"
    columns = zip(KINDS, DAYS, strict=True)
    _write(file, [{"question": f"{n}?", "answer": "42", "kind": k, "seen": day} for n, (k, day) in enumerate(columns)])
    config = TasksConfig.model_validate({"folder": str(file), **keys})
    asked = [("train", 0, 9), ("heldout", 0, 9)][
        : 2 if "before" in keys else 1
    ]  # rows without a date are on both sides
    with pytest.raises(ConfigError) as caught:
        load_splits(config, *asked)
    first, *listed = str(caught.value).split("\n  ")
    assert first.startswith(f"{len(messages)} of 6 problems can't be graded")
    assert [message in line for message, line in zip(messages, listed, strict=True)] == [True] * len(messages)
    tasks = _load(file, unreadable="skip", **keys)
    assert sorted(task.question for task in tasks) == [f"{number}?" for number in readable]


def test_of_several_families_the_first_counts(tmp_path):
    file = tmp_path / "rows.jsonl"
    _write(file, [{"question": f"{n}?", "answer": "42", "kind": kind} for n, kind in enumerate(KINDS[:3])])
    tasks = _load(file, columns={"family": "kind"}, heldout=1e-9)
    assert {task.question: task.family for task in tasks} == {"0?": "Algebra", "1?": "Algebra", "2?": "Geometry"}


def test_a_line_without_a_column_that_others_have_is_a_problem_that_cannot_be_read(tmp_path, caplog):
    _write(tmp_path / "rows.jsonl", [*ROWS[:3], {"question": "?", "solution": "7"}, {"question": "?", "answer": None}])
    keys = {"answer_pattern": "#### (.+)", "heldout": 1e-9}
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path / "rows.jsonl", **keys)
    assert "2 of 5 problems can't be graded" in str(caught.value)
    assert "line 4: there is no column 'answer' for tasks.columns.answer; it has question, solution" in str(
        caught.value
    )
    assert len(_load(tmp_path / "rows.jsonl", unreadable="skip", **keys)) == 3


def test_values_that_files_may_hold(tmp_path):
    """Half of a cut emoji in JSON; decimals and NaN in Parquet."""
    halves = {
        "question": [{"role": "system", "content": "\ud83d"}, {"role": "user", "content": "1\ud83d?"}],
        "answer": "1",
    }
    _write(tmp_path / "halves.jsonl", [halves, {"question": "2\ud83d?", "answer": "2"}])
    tasks = _load(tmp_path / "halves.jsonl", heldout=1e-9)
    assert sorted(task.question for task in tasks) == [r"1\ud83d?", r"2\ud83d?"]
    assert [message.content for task in tasks for message in task.history] == [r"\ud83d"]
    _write(tmp_path / "numbers.parquet", [{"question": "?", "answer": Decimal("0.5"), "level": float("nan")}])
    [task] = _load(tmp_path / "numbers.parquet", heldout=1e-9)
    assert (task.answer, task.metadata["level"]) == ("0.5", None)
    row_of(task)


CHATS = yaml.safe_load((HERE / "chats.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CHATS, ids=lambda case: case["name"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_question_may_be_a_chat(tmp_path, case, suffix):
    file = tmp_path / f"rows.{suffix}"
    _write(file, [case["row"]])
    [task] = _load(file, heldout=1e-9, **case.get("keys", {}))
    assert (task.question, task.answer) == (case["question"], case["answer"])
    assert [[message.role, message.content] for message in task.history] == case.get("history", [])
    metadata = {key: value for key, value in task.metadata.items() if key not in ("references", "where")}
    assert metadata == case.get("metadata", {})
    assert list(task.references) == case.get("references", [case["answer"]])


def test_a_nested_column_that_is_missing_is_named_beside_those_that_are_there(tmp_path):
    file = tmp_path / "rows.jsonl"
    _write(file, [{"prompt": "1?", "reward_model": {"style": "rule", "ground_truth": "1"}, "extra_info": None}])
    for name in ("reward_model.answer", "reward_model.style.x", "prompt.x", "rewards"):
        with pytest.raises(ConfigError) as caught:
            _load(file, columns={"question": "prompt", "answer": name})
        assert str(caught.value) == (
            f"{file}, line 1: there is no column {name!r} for tasks.columns.answer; it has prompt, "
            "reward_model.style, reward_model.ground_truth, extra_info"
        )
    with pytest.raises(ConfigError, match=r"column extra_info\.answer: None is neither text nor a number"):
        _load(file, columns={"question": "prompt", "answer": "extra_info.answer"}, heldout=1e-9)


def test_a_file_with_columns_in_place_of_rows_says_how_to_write_it(tmp_path):
    file = tmp_path / "columns.json"
    file.write_text(json.dumps({"question": {"0": "1?", "1": "2?"}, "answer": {"0": "1", "1": "2"}}))
    with pytest.raises(ConfigError, match="each column holds its rows by number, as pandas' to_json writes them"):
        _load(file)


def test_a_column_called_references_counts_if_the_answer_is_one_of_its_texts(tmp_path):
    columns = {"1?": ["42", "forty-two"], "2?": ["Euclid", "Gauss"], "3?": [42, "42"], "4?": "42"}
    rows = [{"question": question, "answer": "42", "references": column} for question, column in columns.items()]
    _write(tmp_path / "rows.jsonl", rows)
    tasks = {task.question: task.references for task in _load(tmp_path / "rows.jsonl", heldout=1e-9)}
    assert tasks == {"1?": ("42", "forty-two"), "2?": ("42",), "3?": ("42",), "4?": ("42",)}


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b'{"question": "1?", "answer": "1"}\n' * 99)[:-20]],
    ids=["of another kind", "cut off"],
)
def test_a_packed_file_that_is_not_whole_is_named(tmp_path, content):
    file = tmp_path / "rows.jsonl.gz"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"rows\.jsonl\.gz.*: can't be read as jsonl\.gz: "):
        _load(file)


def test_equal_chats_stay_on_one_side_whatever_their_system_message(tmp_path):
    def chat(number, system, before):
        said = [{"role": "system", "content": system}, *before, {"role": "user", "content": f"What is {number}?"}]
        return {"question": said, "answer": str(number)}

    earlier = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello!"}]
    rows = [chat(n, system, before) for n in range(30) for system in "AB" for before in ([], earlier)]
    _write(tmp_path / "rows.jsonl", rows)
    train, heldout = (_load(tmp_path / "rows.jsonl", side, heldout=0.5) for side in ("train", "heldout"))
    assert len(train) + len(heldout) == 120
    sides = [{(task.question, len(task.history)) for task in side} for side in (train, heldout)]
    assert not sides[0] & sides[1]
    assert min(map(len, sides)) > 10


def test_rows_that_cannot_be_read_are_what_is_said_of_either_side(tmp_path):
    """And not that a side is empty, because none of their questions could be read."""
    rows = [{"question": {"text": f"{n}?"}, "answer": "1"} for n in range(20)]
    _write(tmp_path / "rows.jsonl", rows)
    for side in ("train", "heldout"):
        with pytest.raises(ConfigError, match="20 of 20 problems can't be graded") as caught:
            _load(tmp_path / "rows.jsonl", side)
        assert "line 1: column question: {'text': '0?'} is neither text nor a number" in str(caught.value)
        with pytest.raises(ConfigError) as caught:
            _load(tmp_path / "rows.jsonl", side, unreadable="skip")
        assert str(caught.value) == (
            f"no problem of split {side!r} can be graded; the first of 20: {tmp_path / 'rows.jsonl'}, line 1: column "
            "question: {'text': '0?'} is neither text nor a number; name a column inside it: question.text"
        )


def test_other_columns_are_the_tasks_metadata(tmp_path):
    """As plain values, so that `eval --keep` can write them; what is raw bytes is left out."""
    row = {"question": "1?", "answer": "1", "topic": "sums", "level": 3, "tags": ["a", None], "context": "no role"}
    seen = {"at": datetime(2024, 5, 1, 12), "image": {"bytes": b"\x89PNG"}, "price": Decimal("1.50"), "operands": [1]}
    for suffix, columns in (("jsonl", {}), ("parquet", seen)):
        _write(tmp_path / f"rows.{suffix}", [{**row, **columns}])
        [task] = _load(tmp_path / f"rows.{suffix}", heldout=1e-9, columns={"family": "topic"})
        plain = {"at": "2024-05-01T12:00:00", "price": "1.50"} if columns else {}
        assert dict(task.metadata) == {"level": 3, "tags": ["a", None], "context": "no role", **plain}
        assert task.family == "sums"
        assert row_of(task)["metadata"] == task.metadata


def test_files_are_also_found_beside_the_yaml_file(tmp_path, monkeypatch):
    """The working directory comes first, and a stored config finds the file from any folder."""
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    _write(home / "sums.jsonl", ROWS)
    _write(home / "sets" / "own" / "train.jsonl", ROWS[:5])
    monkeypatch.chdir(work)
    for key, name, count in (
        ("dataset", "sums.jsonl", 40),
        ("dataset", "sets/own", 5),
        ("folder", "sets/own", 5),
        ("dataset", "./sums.jsonl", 40),
    ):
        keys = {key: name, "answer_pattern": "#### (.+)", "heldout": 1e-9}
        (home / "run.yaml").write_text(yaml.safe_dump({"tasks": keys}))
        config = load_config(str(home / "run.yaml"))
        assert getattr(config.tasks, key) == str(home / name)
        assert len(load_tasks(config.tasks, "train", 0, 1000)) == count
        (work / "config.yaml").write_text(dump_config(config))
        assert load_config("config.yaml") == config
    _write(work / "sums.jsonl", ROWS[:7])
    (home / "run.yaml").write_text(yaml.safe_dump({"tasks": {**keys, "dataset": "sums.jsonl"}}))
    config = load_config(str(home / "run.yaml"))
    assert config.tasks.dataset == "sums.jsonl"
    (home / "run.yaml").write_text("tasks: {dataset: other.jsonl}")
    with pytest.raises(ConfigError) as caught:
        load_tasks(load_config("../home/run.yaml").tasks, "train", 0, 1)
    assert str(caught.value) == (
        f"there is no file 'other.jsonl' to read problems from; the working directory is {work}, and that of the YAML "
        f"file is {home}"
    )


def test_what_is_a_set_of_the_hub_and_what_is_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "mine" / "set" / "train.jsonl", ROWS)
    (tmp_path / "gsm8k").mkdir()
    names = ["gsm8k", "other/set", "math-v1.5", "mine/set", "p.tsv", "p.jsonl.gz", "p.txt", "./p", "p/"]
    assert [TasksConfig(dataset=name).is_from_hub for name in names] == [True] * 3 + [False] * 6
    assert set(PRESET_NAMES) == set(PRESETS)


@pytest.mark.parametrize("case", REFUSED["rows"], ids=[case["says"] for case in REFUSED["rows"]])
def test_a_row_that_does_not_fit_is_named_with_its_line(tmp_path, case):
    name, file = case.get("format"), tmp_path / "rows.jsonl"
    good = '{"question": "Q", "answer": "#### 1", "seen": "2020"}'
    if name is not None:
        good = (FILES / f"{name}.jsonl").read_text().splitlines()[0]
    file.write_text(f"{good}\n\n{case['line']}\n")
    keys = {"format": name, **case.get("keys", {})}
    if "before" not in keys:
        keys["heldout"] = 1e-9
    with pytest.raises(ConfigError) as caught:
        _load(file, **keys)
    assert f"{file}, line {case.get('at', 3)}: " in str(caught.value)
    assert case["says"] in str(caught.value)


def test_all_that_cannot_be_graded_is_listed_left_out_or_compared_as_text(tmp_path, caplog):
    """Of both sides at once: rows that can't be read, and reference answers that can't."""
    file = tmp_path / "rows.jsonl"
    rows = [{"question": f"{n}?", "final_answer": [str(n)]} for n in range(40)]
    for n in range(0, 40, 2):
        rows[n]["final_answer"] = [f"all $x$ with $\\mho(x)={n % 4}++$"]
    rows[1]["final_answer"], rows[3]["question"] = None, "<image_1> 3?"
    _write(file, rows)
    config = TasksConfig(dataset=str(file), format="olympiadbench", heldout=0.3)
    asked = ("train", 1, 100), ("heldout", 0, 100)
    with pytest.raises(ConfigError) as caught:
        load_splits(config, *asked)
    first, *listed = str(caught.value).split("\n  ")
    assert first.startswith("22 of 40 problems can't be graded; mend or drop them, ")
    assert [f"line {n + 1}: " in line for n, line in zip([0, 1, 2, 3, *range(4, 36, 2)], listed[:-1], strict=True)]
    assert (len(listed), listed[-1]) == (21, "and 2 more")
    assert "holds no final answer" in listed[1]
    assert "refers to an image" in listed[3]

    train, heldout = load_splits(config.model_copy(update={"unreadable": "skip"}), *asked)
    assert {task.answer for task in [*train, *heldout]} == {str(n) for n in range(5, 40, 2)}
    assert "skip leaves out 22 of 40 problems" in caplog.text
    [few] = load_splits(config.model_copy(update={"unreadable": "skip"}), ("train", 1, 3))
    assert few == train[:3]

    with pytest.raises(ConfigError, match="2 of 40 problems can't be graded"):
        load_splits(config.model_copy(update={"unreadable": "text"}), *asked)
    _write(file, [row for n, row in enumerate(rows) if n not in (1, 3)])
    [tasks] = load_splits(config.model_copy(update={"unreadable": "text", "heldout": 1e-9}), ("train", 1, 100))
    [zero] = [task for task in tasks if task.question == "0?"]
    assert (len(tasks), grade(zero, ("'all x with \\\\mho(x)=0++'",)), grade(zero, ("0",))) == (38, 1.0, 0.0)


@pytest.mark.parametrize(("environment", "is_compared"), [("Pays", False), ("Shows", True)])
def test_an_answer_need_not_be_readable_where_an_environment_pays(tmp_path, monkeypatch, environment, is_compared):
    (tmp_path / "worlds.py").write_text(
        "class Shows:\n    def reset(self, task): ...\n"
        "class Pays(Shows):\n    def reward(self, trajectory):\n        return 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    _write(tmp_path / "rows.jsonl", [{"question": f"{n}?", "answer": "$\\mho(x)++$"} for n in range(40)])
    tasks = {"dataset": str(tmp_path / "rows.jsonl"), "heldout": 0.3}
    config = parse_config({"tasks": tasks, "environment": f"worlds:{environment}", "train": {"prompts_per_step": 4}})
    options = argparse.Namespace(task=None, answer=None)
    if is_compared:
        for read in (check_inputs, lambda config: asked_tasks(options, config, 2)):
            with pytest.raises(ConfigError, match="can't be graded"):
                read(config)
        return
    inputs = check_inputs(config)
    assert len(inputs.train_tasks) + len(inputs.heldout_tasks) == 40
    assert len(asked_tasks(options, config, 2)) == 2
    [task] = asked_tasks(argparse.Namespace(task="What?", answer="$\\mho(x)++$"), config, 1)
    assert task.answer == "$\\mho(x)++$"


SPLITS = yaml.safe_load((HERE / "splits.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", SPLITS, ids=lambda case: " ".join(case["files"]))
def test_the_test_split_of_a_folder_is_held_out(tmp_path, case):
    for name in case["files"]:
        _write(tmp_path / name, [{"question": f"{name} {n}?", "answer": f"#### {n}"} for n in range(20)])
    config = TasksConfig(folder=str(tmp_path), answer_pattern="#### (.+)", **case.get("keys", {}))
    asked = ("train", 0, 1000), ("heldout", 0, 1000)
    if "says" in case:
        with pytest.raises(ConfigError, match=case["says"]):
            load_splits(config, *asked)
        return
    found = [sorted({task.question.split(" ")[0] for task in side}) for side in load_splits(config, *asked)]
    assert found == [case["train"], case["heldout"]]


@pytest.mark.parametrize(
    ("files", "config"),
    [
        (["train.jsonl"], {"dataset": "aime", "split": "train"}),
        (["test.jsonl"], {"dataset": "gsm8k", "split": "test"}),
        (["train.jsonl", "dev.jsonl"], {"split": "dev"}),
        (["train.jsonl", "dev.jsonl"], {"split": "valid"}),
    ],
)
def test_a_split_that_is_trained_on_is_not_held_out_as_a_whole(tmp_path, files, config):
    rows = [{**row, "problem": row["question"]} for row in ROWS]
    config = {"answer_pattern": r"####\s*(.+)", **config, "columns": {"question": "problem"}}
    for name in files:
        _write(tmp_path / name, rows)
    asked = TasksConfig.model_validate({"folder": str(tmp_path), **config})
    train, heldout = load_splits(asked, ("train", 0, 99), ("heldout", 0, 99))
    assert train
    assert heldout
    assert len(train) + len(heldout) == len(ROWS)
    assert not {task.question for task in train} & {task.question for task in heldout}
    if "dev.jsonl" in files:
        message = f"tasks.split '{config['split']}' and tasks.heldout 'validation' are one split"
        with pytest.raises(ConfigError, match=message):
            load_tasks(asked.model_copy(update={"heldout": "validation"}), "train", 0, 99)


def test_a_subset_is_a_folder_and_hidden_files_are_not_read(tmp_path):
    for language in ("en", "de"):
        _write(tmp_path / language / "train.jsonl", [{**row, "family": language} for row in ROWS])
    _write(tmp_path / "en" / ".ipynb_checkpoints" / "train-checkpoint.jsonl", ROWS[:1] * 30)
    tasks = _load(tmp_path, subset="en", heldout=1e-9, answer_pattern=r"####\s*(.+)")
    assert len(tasks) == len(ROWS)
    with pytest.raises(ConfigError, match=r"has no folder for tasks\.subset 'fr'; it holds de, en"):
        _load(tmp_path, subset="fr")
    with pytest.raises(ConfigError, match="'en'; it holds no folders of files"):
        _load(tmp_path / "en" / "train.jsonl", subset="en")


def test_what_is_held_out_now_is_not_trained_on_from_a_file_that_was_written_before(tmp_path, caplog):
    _write(tmp_path / "rows.jsonl", ROWS)
    config = {"folder": str(tmp_path / "rows.jsonl"), "answer_pattern": r"####\s*(.+)"}
    file = tmp_path / "kept.jsonl"
    _write(file, [row_of(task) for task in load_tasks(TasksConfig(**config, heldout=0.1), "train", 0, 99)])
    now = TasksConfig(**config, heldout=0.4, only=str(file))
    train, heldout = load_splits(now, ("train", 0, 99), ("heldout", 0, 99))
    assert len(train) + len(heldout) == len(ROWS)
    assert not {task.question for task in train} & {task.question for task in heldout}
    assert "problems of " + str(file) + " are held out now, and not trained on" in caplog.text
    caplog.clear()
    as_then = TasksConfig(**config, heldout=0.1, only=str(file))
    load_splits(as_then, ("train", 0, 99), ("heldout", 0, 99))
    assert not caplog.text
    _write(file, [row_of(task) for task in heldout])
    with pytest.raises(ConfigError, match=r"tasks\.only: all \d+ problems of .* are held out"):
        load_splits(now, ("train", 0, 99), ("heldout", 0, 99))


def test_an_id_column_is_the_id_and_rows_that_share_one_are_told_apart(tmp_path):
    """In the file's order, whatever side they are on and whatever the seed."""
    ids = ["a", 7, "a", None, "a-2", "a", 7.5]
    rows = [{"question": f"{n}?", "answer": "1", "id": id, "uid": n // 2} for n, id in enumerate(ids)]
    _write(tmp_path / "rows.jsonl", rows)
    expected = ["a", "7", "a-2", "rows-train-3", "a-2-2", "a-3", "7.5"]
    tasks = _load(tmp_path / "rows.jsonl", heldout=1e-9)
    assert {task.question: task.id for task in tasks} == {f"{n}?": id for n, id in enumerate(expected)}
    named = {"columns": {"id": "uid"}, "heldout": 0.5}
    sides = [*_load(tmp_path / "rows.jsonl", **named), *_load(tmp_path / "rows.jsonl", "heldout", seed=3, **named)]
    assert {task.question: task.id for task in sides} == dict(
        zip([f"{n}?" for n in range(7)], ["0", "0-2", "1", "1-2", "2", "2-2", "3"], strict=True)
    )


def test_folders_that_do_not_fit_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no file that ends in \.parquet, \.jsonl, \.json, \.csv, \.tsv, "):
        _load(tmp_path)
    _write(tmp_path / "test.jsonl", ROWS)
    with pytest.raises(ConfigError, match="no split 'train'; it holds test"):
        _load(tmp_path, dataset="gsm8k")
    (tmp_path / "train.parquet").write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"train\.parquet: can't be read as parquet"):
        _load(tmp_path, dataset="gsm8k")
    _write(tmp_path / "train.csv", ROWS)
    with pytest.raises(ConfigError, match="split 'train' as csv and parquet"):
        _load(tmp_path, dataset="gsm8k")


@pytest.mark.parametrize(
    ("key", "path"), [("dataset", "{}/sums.jsonl"), ("folder", "{}/sums.jsonl"), ("dataset", "./sums.jsonl")]
)
def test_one_file_is_a_data_set(tmp_path, monkeypatch, key, path):
    """It goes by its own name, or by that of its preset, and a share of it is held out."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "sums.jsonl", ROWS)
    config = TasksConfig(**{key: path.format(tmp_path)}, answer_pattern=r"####\s*(.+)")
    assert not config.is_from_hub
    train, heldout = (load_tasks(config, split, 0, 1000) for split in ("train", "heldout"))
    numbers = [task.id.removeprefix("sums-train-") for task in train]
    numbers += [task.id.removeprefix("sums-heldout-") for task in heldout]
    assert sorted(numbers, key=int) == [str(number) for number in range(40)]
    assert {(task.question, task.answer) for task in [*train, *heldout]} == {
        (row["question"], str(number + 1000)) for number, row in enumerate(ROWS)
    }
    assert {task.family for task in train} == {"sums"}
    of_preset = _load("sums.jsonl", dataset="gsm8k", heldout=0.5)
    assert {task.id.rpartition("-")[0] for task in of_preset} == {"gsm8k-train"}


def test_the_name_of_one_file_says_which_split_it_is(tmp_path):
    path, plain = tmp_path / "my-test.jsonl", tmp_path / "mine.jsonl"
    for file in (path, plain):
        _write(file, ROWS)
    config = TasksConfig(dataset=str(path), split="test", heldout=0.5, answer_pattern="#### (.+)")
    assert {task.id.rpartition("-")[0] for task in load_tasks(config, "train", 0, 1000)} == {"my-test-test"}
    for file, asked, held, way in ((path, "train", "test", "set tasks.split: test, "), (plain, "test", "train", "")):
        with pytest.raises(ConfigError) as caught:
            load_tasks(TasksConfig(dataset="gsm8k", folder=str(file)), "train" if asked == "train" else "heldout", 0, 1)
        assert str(caught.value) == (
            f"{file} is one file, which counts as split {held!r}, and split {asked!r} is asked for; {way}set "
            "tasks.heldout to a share such as 0.1, or give a folder with a file for each split"
        )


@pytest.mark.parametrize(("values", "message"), REFUSED["missing"], ids=str)
def test_a_file_that_is_not_there_is_said_at_once(tmp_path, monkeypatch, values, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)  # neither the hub nor the library is asked
    (tmp_path / "notes.txt").touch()
    (tmp_path / "LICENSE").touch()
    (tmp_path / "openai" / "gsm8k").mkdir(parents=True)
    (tmp_path / "math").mkdir()
    with pytest.raises(ConfigError) as caught:
        load_tasks(TasksConfig(**values), "train", 0, 1)
    assert str(caught.value) == message.format(here=tmp_path)


def test_a_side_with_no_problem_is_named(tmp_path):
    _write(tmp_path / "train.jsonl", ROWS[:1])
    with pytest.raises(ConfigError, match="has no problem in split 'train'"):
        _load(tmp_path, "heldout", heldout=0.0001)


def test_a_preset_may_hold_out_another(tmp_path, monkeypatch):
    row = {"problem": "P", "answer": "1", "unique_id": "u/1", "subject": "Algebra"}
    asked = []

    def load_hub(*names):
        asked.append(names)
        return Dataset.from_list([row])

    monkeypatch.setattr("repl_rl.tasks.datasets.load_hub", load_hub)
    tasks = load_tasks(TasksConfig(dataset="math", heldout="math-500"), "heldout", 0, 5)
    assert asked == [("HuggingFaceH4/MATH-500", None, "test")]
    assert [(task.id, task.answer, task.family) for task in tasks] == [("u/1", "1", "Algebra")]


def test_offline_and_not_cached_says_what_to_do(tmp_path):
    """Of each data set, in one process: `datasets` loads slowly."""
    names = [*PRESETS, "nobody/nothing"]
    program = [sys.executable, str(HERE / "offline.py.txt"), *names]
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    environment["PYTHONPATH"] = ":".join(filter(None, sys.path))
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for name in names:
        hub = PRESETS[name].hub if name in PRESETS else name
        assert f"data set {hub!r} is neither in the cache nor within reach" in said[name]
        assert "set tasks.folder" in said[name]


@pytest.mark.parametrize("case", REFUSED["sections"], ids=[case["says"] for case in REFUSED["sections"]])
def test_sections_that_make_no_sense(case):
    with pytest.raises(ConfigError) as caught:
        parse_config({"tasks": case["tasks"]})
    assert case["says"] in str(caught.value)


def test_a_column_may_hold_the_context_of_a_problem(tmp_path):
    file = tmp_path / "documents.jsonl"
    rows = [
        {"question": "Who?", "answer": "7", "doc": "Ada has 7."},
        {"question": "What?", "answer": "8", "doc": ["It", "is", 8]},
    ]
    _write(file, rows)
    tasks = _load(file, heldout=1e-9, columns={"context": "doc"})
    assert {task.question: task.metadata["context"] for task in tasks} == {row["question"]: row["doc"] for row in rows}
    _write(file, [{"question": "How many?", "answer": str(n % 40), "doc": ["x"] * (n % 40)} for n in range(200)])
    sides = [_load(file, side, heldout=0.3, columns={"context": "doc"}) for side in ("train", "heldout")]
    train, heldout = ({task.answer for task in side} for side in sides)
    assert min(len(train), len(heldout)) > 0
    assert not train & heldout
    with pytest.raises(ConfigError, match=r"no column 'document' for tasks\.columns\.context; it has question, answer"):
        _load(file, columns={"context": "document"})


def test_problems_that_were_kept_come_back_as_they_were(tmp_path):
    file = tmp_path / "kept.jsonl"
    theorem = FILES / "minif2f.jsonl"
    rows = [{"question": "Who?", "answer": ["7", "seven"], "doc": {"ages": [7, None]}}]
    _write(tmp_path / "documents.jsonl", rows)
    for config in (
        TasksConfig(families=["gcd", "witness-1", "count-1k"], train=9),
        TasksConfig(folder=str(theorem), format="minif2f"),
        TasksConfig.model_validate(
            {"folder": str(tmp_path / "documents.jsonl"), "heldout": 1e-9, "columns": {"context": "doc"}}
        ),
    ):
        tasks = load_tasks(config, "train", 0, 9)
        _write(file, [{**row_of(task), "pass_rate": 0.5} for task in tasks])
        kept = load_tasks(config.model_copy(update={"only": str(file)}), "train", 5, 9)
        assert sorted(kept, key=lambda task: task.id) == sorted(tasks, key=lambda task: task.id)
    _write(file, [row_of(task) for task in make_tasks("count-1k", 1, 0, "train")])
    for families, folder in (("gcd", None), (None, str(theorem))):
        with pytest.raises(ConfigError, match=r"holds problems of count-1k, which this config's tasks.families"):
            load_tasks(TasksConfig(families=families, folder=folder, only=str(file)), "train", 0, 9)
    for text, message in (
        ("", "holds no problem"),
        ('{"question": "?"}', "line 1: not a problem as repl-rl eval"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_tasks(TasksConfig(only=str(file)), "train", 0, 9)
    with pytest.raises(ConfigError, match=r"task 'x' can't be kept in a file: its metadata .*date"):
        row_of(Task("x", "?", "1", metadata={"context": date(2024, 1, 1)}))


@pytest.mark.parametrize("name", FORMATS)
def test_answers_in_a_format_are_found_and_graded(name):
    tasks, submitted = _formatted(name, heldout=1e-9), EXPECTED[name]["submitted"]
    assert [task.answer for task in tasks] == EXPECTED[name]["answers"]
    assert [grade(task, (text,)) for task, text in zip(tasks, submitted, strict=True)] == [1.0] * len(tasks)
    shifted = submitted[1:] + submitted[:1]
    assert [grade(task, (text,)) for task, text in zip(tasks, shifted, strict=True)] == [0.0] * len(tasks)


def test_questions_families_and_ids_in_a_format():
    tasks = _formatted("olympiadbench", heldout=1e-9)
    assert tasks[1].question == "A right triangle has legs $3$ and $5$.\n\nFind its area."
    assert [task.family for task in tasks[:4]] == ["Algebra", "Geometry", "Number Theory", "Combinatorics"]
    assert tasks[5].question == "How far is it?\nGive the answer in $km^2$."
    assert tasks[0].id == "1606"
    assert _formatted("math", heldout=1e-9)[1].family == "Prealgebra"
    assert _formatted("minif2f", heldout=1e-9)[0].question == (
        "Let $x+3=10$. Show that $x=7$.\nState this in Lean as theorem own_sum_of_two, without a proof."
    )


@pytest.mark.parametrize("text", EXPECTED["minif2f"]["wrong"])
def test_a_theorem_is_compared_as_text(text):
    task = _formatted("minif2f", heldout=1e-9)[2]
    assert grade(task, (text,)) == 0.0
    assert grade(task, (repr(task.answer), repr(task.answer))) == 0.0


def test_columns_of_a_format_may_have_other_names(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text('{"q": "1 + 1?", "a": "#### 2"}\n\n{"q": "1 + 2?", "a": "#### 3"}\n')
    tasks = _load(file, format="gsm8k", heldout=1e-9, columns={"question": "q", "answer": "a"})
    assert {(task.question, task.answer, task.metadata["where"]) for task in tasks} == {
        ("1 + 1?", "2", f"{file}, line 1"),
        ("1 + 2?", "3", f"{file}, line 3"),
    }


@pytest.mark.parametrize(("keys", "train", "heldout"), PERIODS["sides"])
def test_dates_decide_what_is_held_out(keys, train, heldout):
    for split, expected in (("train", train), ("heldout", heldout)):
        assert [task.id for task in _formatted("aime", split, **keys)] == expected


def test_dates_are_for_other_sets_and_presets_too(tmp_path):
    days = ("2024-05-31", "2024-06-01T12:00:00", "2024-06")
    _write(tmp_path / "own.jsonl", [{"question": f"{n}?", "answer": "1", "seen": day} for n, day in enumerate(days)])
    keys = {"before": "2024-06-01", "columns": {"date": "seen"}}
    assert [task.question for task in _load(tmp_path / "own.jsonl", **keys)] == ["0?"]
    assert sorted(task.question for task in _load(tmp_path / "own.jsonl", "heldout", **keys)) == ["1?", "2?"]
    (tmp_path / "aime").mkdir()
    (tmp_path / "aime" / "train.jsonl").write_text((FILES / "aime.jsonl").read_text())
    keys = {"dataset": "aime", "after": 2024, "columns": {"date": "year"}}
    assert sorted(task.answer for task in _load(tmp_path / "aime", "heldout", **keys)) == ["030", "903"]
    assert sorted(task.answer for task in _load(tmp_path / "aime", "train", **keys)) == ["001", "90"]


@pytest.mark.parametrize(("value", "days"), PERIODS["periods"], ids=str)
def test_periods(value, days):
    assert " to ".join(map(str, period_of(value))) == days


@pytest.mark.parametrize("value", PERIODS["refused"])
def test_what_is_not_a_date(value):
    with pytest.raises(ValueError):
        period_of(value)


def test_dates_come_back_from_a_runs_config(tmp_path):
    config = parse_config({"tasks": {"dataset": "a.jsonl", "format": "aime", "after": 2024}})
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "config.yaml")) == config
    assert config.tasks.before == date(2024, 1, 1)
    changed = load_config(str(tmp_path / "config.yaml"), ("tasks.before=2023-06-01",))
    assert (changed.tasks.before, changed.tasks.after) == (date(2023, 6, 1), date(2024, 1, 1))
