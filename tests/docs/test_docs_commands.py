"""What people copy out of README and docs/: commands are ones the program takes, YAML is a config."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from pages import PAGES, ROOT, blocks, commands, configs, heredocs, inline_commands

from repl_rl.cli import _parser
from repl_rl.config import load_config, parse_config, shipped_configs
from repl_rl.rollout.score import reward_table
from repl_rl.run.dryrun import dry_run
from repl_rl.trajectory import read_jsonl

TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
COMMANDS = sorted({(page, line) for page, text in TEXTS.items() for line in commands(text)})
INLINE = sorted({(page, line) for page, text in TEXTS.items() for line in inline_commands(text)})
OURS = {"repl-rl", ".venv/bin/repl-rl"}


def arguments_of(line: str) -> list[str] | None:
    """What follows our own command, whatever is in front of it; None where it isn't called."""
    words = shlex.split(line)
    for place, word in enumerate(words):
        if word in OURS or word == "repl_rl.cli":
            return words[place + 1 :]
    return None


CALLS = [(page, line) for page, line in COMMANDS if arguments_of(line) is not None]


@pytest.mark.parametrize(("page", "line"), CALLS)
def test_commands_in_blocks_are_taken(page: str, line: str) -> None:
    given = arguments_of(line)
    assert given is not None
    options = _parser().parse_args(given)
    config = getattr(options, "config", None)
    if config is not None and not config.isupper() and not config.endswith(".yaml"):
        assert config in shipped_configs()


def test_commands_are_found() -> None:
    assert len(CALLS) > 25
    assert ("README.md", ".venv/bin/repl-rl train my.yaml") in CALLS


@pytest.mark.parametrize(("page", "line"), INLINE)
def test_commands_in_sentences_name_what_exists(page: str, line: str) -> None:
    words = arguments_of(line)
    assert words
    parser: argparse.ArgumentParser = _parser()
    while words and (choices := _commands(parser)):
        name = words.pop(0)
        assert name.rstrip(",") in choices or name in ("...", "--verbose") or name.isupper(), name
        if name not in choices:
            return
        parser = choices[name]
    known = parser._option_string_actions
    assert [word for word in words if re.match(r"--?\w", word) and word.partition("=")[0] not in known] == []


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


MODULES = sorted({name for text in TEXTS.values() for name in re.findall(r"python -m (repl_rl[\w.]*)", text)})


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_are_run_exist(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for text in TEXTS.values() for word in re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.MULTILINE)}
    assert named
    assert named <= targets


YAML = [
    (page, block)
    for page, text in TEXTS.items()
    for block in configs(text)
    if not block.startswith("dialect: fenced")  # texts of a dialect: tests/docs/test_dialect_guide.py
]
BESIDE = {
    "README.md": {"my_rewards.py": "def short(trajectory):\n    return [0.0 for line in trajectory.lines]\n"},
    "docs/credit.md": {"my_package/credit.py": blocks(TEXTS["docs/credit.md"], "python")[0]},
    "docs/engines.md": {"my_package/engines.py": blocks(TEXTS["docs/engines.md"], "python")[0]},
    "docs/rewards.md": {"my_rewards.py": blocks(TEXTS["docs/rewards.md"], "python")[0]},
    "docs/sessions.md": {
        "mine.toml": blocks(TEXTS["docs/sessions.md"], "toml")[0],
        "modules/shapes.py": "",
        "data/table.csv": "",
        "tables/prices.csv": "",
    },
    "docs/tasks.md": {"problems.jsonl": blocks(TEXTS["docs/tasks.md"], "json")[0]},
    "docs/tools.md": {"my_tools.py": blocks(TEXTS["docs/tools.md"], "python")[0]},
}
"""The files that a page's configs name, by page: mostly the page's own."""


@pytest.mark.parametrize(("page", "block"), YAML)
def test_yaml_passes_a_dry_run(page: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {**BESIDE.get(page, {}), "my.yaml": block}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.syspath_prepend(tmp_path)
    modules = {name.removesuffix(".py").replace("/", ".") for name in BESIDE.get(page, {})} | {"my_package"}
    for name in modules & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)
    assert dry_run(load_config("my.yaml"), tmp_path / "runs").rows
    assert not (tmp_path / "runs").exists()
    for name in modules:
        sys.modules.pop(name, None)


def test_the_readme_and_the_quickstart_change_the_same_rewards() -> None:
    [short], [long] = heredocs(TEXTS["README.md"]), heredocs(TEXTS["docs/quickstart.md"])
    assert parse_config(yaml.safe_load(short)) == parse_config(yaml.safe_load(long))
    rewards = parse_config(yaml.safe_load(short)).rewards
    assert {str(kind): value for kind, value in rewards.kinds.items()} == {"comment": 0.3}


@pytest.mark.parametrize(("novelty", "paid"), [(False, 0.3), (True, 0.0)])
def test_novelty_ends_what_the_readme_pays_for_thoughts(novelty: bool, paid: float) -> None:
    [trajectory] = read_jsonl(ROOT / "docs" / "images" / "rollout.jsonl")
    config = parse_config(yaml.safe_load(heredocs(TEXTS["README.md"])[0]), (f"rewards.shaping.novelty={novelty}",))
    scored = reward_table(config.rewards, config.credit).score(trajectory, 1.0)
    assert scored.components["table"] == (paid, 0.0, 0.0, 0.0, 0.0)
