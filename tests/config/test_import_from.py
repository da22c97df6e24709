"""Modules beside the YAML file: found by the run, by one that resumes it, and by the worker's process."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from repl_rl.cli import main
from repl_rl.config import Config, load_config, parse_config
from repl_rl.errors import ConfigError
from repl_rl.rollout.tree import fork_rule
from repl_rl.run.folder import new_run
from repl_rl.run.resume import open_run

pytestmark = pytest.mark.more
YAML = "rewards: {functions: ['beside_the_yaml:short']}\n"
REWARD = "def short(trajectory):\n    return [0.0] * len(trajectory.lines)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config and a module, which is not the working folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "beside_the_yaml", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    there = tmp_path / "there"
    there.mkdir()
    (there / "my.yaml").write_text(YAML)
    (there / "beside_the_yaml.py").write_text(REWARD)
    return there


def test_a_dry_run_finds_what_is_beside_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(folder / "my.yaml"), "--dry-run", "--set", "eval.problems=2"]) == 0
    assert "tokens of a step" in capsys.readouterr().out


def test_a_run_that_is_resumed_looks_there_again(folder: Path) -> None:
    config = load_config(str(folder / "my.yaml"))
    assert config.import_from == str(folder)
    run = new_run(config, Path("runs"))
    sys.path.remove(str(folder))
    _, resumed = open_run(run.path, None)
    assert resumed == config
    assert str(folder) in sys.path
    (folder.parent / "moved.yaml").write_text(YAML)
    moved = load_config("../moved.yaml")
    assert moved.import_from == str(folder.parent)
    assert open_run(run.path, moved)[1] == moved


@pytest.mark.parametrize("written", [".", "../there", "{folder}"])
def test_another_folder(folder: Path, written: str) -> None:
    (folder.parent / "my.yaml").write_text(YAML)
    assert load_config(str(folder.parent / "my.yaml"), (f"import_from={folder.name}",)).import_from == str(folder)
    given = (f"import_from={written.format(folder=folder)}",)
    assert load_config(str(folder / "my.yaml"), given).import_from == str(folder)
    names = (f"import_from={folder}", "rewards.functions=['beside_the_yaml:short']")
    assert load_config("quickstart", names).import_from == str(folder)


def test_nothing_is_looked_for_where_nothing_is_named(folder: Path) -> None:
    before = [*sys.path]
    (folder / "empty.yaml").write_text("engine: {servers: ['http://node:8000']}\n")
    assert load_config(str(folder / "empty.yaml")).import_from is None
    assert load_config("quickstart", ("rewards.functions=['beside_the_yaml:short']",)).import_from is None
    assert sys.path == before
    assert Config().import_from is None


RULE = """
from repl_rl.rollout import ForkRule

class Rule(ForkRule):
    pass

class Looking(ForkRule):
    looks_at_outcomes = True
"""
TREES = "branch: {roots: 2, forks: 1, branches: 2, at: 'beside_the_yaml:%s'}\ntrain: {group_size: 4}\n"
LOOKING = {"roots": 2, "forks": 1, "branches": 2, "at": "beside_the_yaml:Looking"}


@pytest.mark.parametrize("estimator", ["branch", "outcome"])
def test_a_rule_that_forks_is_found_beside_the_file(folder: Path, estimator: str) -> None:
    (folder / "beside_the_yaml.py").write_text(RULE)
    (folder / "my.yaml").write_text(TREES % "Rule" + f"credit: {estimator}\n")
    config = load_config(str(folder / "my.yaml"))
    assert config.import_from == str(folder)
    assert config.branch is not None
    assert fork_rule(config.branch.at).__name__ == "Rule"


def test_a_rule_that_looks_at_outcomes_is_refused_where_that_biases(folder: Path) -> None:
    (folder / "beside_the_yaml.py").write_text(RULE)
    (folder / "my.yaml").write_text(TREES % "Looking" + "credit: branch\n")
    message = "branch.at: beside_the_yaml:Looking chooses by outcomes where to fork, and credit.estimator branch is unb"
    with pytest.raises(ConfigError, match=message):
        load_config(str(folder / "my.yaml"))
    with pytest.raises(ConfigError, match=message):
        parse_config({"branch": LOOKING, "train": {"group_size": 4}, "credit": "branch"})
    assert load_config(str(folder / "my.yaml"), ("credit.estimator=outcome",)).branch is not None


@pytest.mark.parametrize(
    "values",
    [
        {"branch": LOOKING, "train": {"group_size": 4}, "credit": "outcome"},
        {"credit": {"estimator": "beside_the_yaml:Looking"}},
        {"dialect": "beside_the_yaml:Looking"},
        {"engine": {"backend": "beside_the_yaml:Looking"}},
        {"environment": "beside_the_yaml:Looking"},
        {"guests": ["beside_the_yaml:Looking"]},
        {"rewards": {"functions": ["beside_the_yaml:Looking"]}},
        {"rollout": "beside_the_yaml:Looking"},
        {"tasks": {"families": ["beside_the_yaml:Looking"]}},
        {"tools": {"functions": ["beside_the_yaml:Looking"]}},
        {"train": {"mask": {"function": "beside_the_yaml:Looking"}}},
    ],
)
def test_whatever_is_named_by_an_import_path_is_looked_for_beside_the_file(values: dict[str, Any]) -> None:
    assert parse_config(values).import_paths == ["beside_the_yaml:Looking"]


def test_no_key_that_takes_an_import_path_is_left_out_above() -> None:
    """docs/config.md is generated from the keys. `import_from` itself says where."""
    page = Path(__file__).parents[2] / "docs" / "config.md"
    rows = [row for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    named = [row.split("`")[1] for row in rows if re.search("package.module|[Ii]mport path", row)]
    assert sorted(named) == [
        *("at", "backend", "environment", "estimator", "families", "function", "functions", "functions"),
        *("guests", "import_from", "name", "rollout"),
    ]
