"""Import paths: what is found, and what is said where nothing is."""

import sys
from pathlib import Path

import pytest
import yaml

from repl_rl.errors import ConfigError
from repl_rl.utils.import_path import import_path_of, imported, look_in

FILES = yaml.safe_load(Path(__file__).with_name("files_for_modules.yaml").read_text(encoding="utf-8"))


class Judge:
    def verdict(self) -> float:
        return 1.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a user's module in it. Nothing else of a user's is in the path."""
    monkeypatch.chdir(tmp_path)
    libraries = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *libraries])
    monkeypatch.delitem(sys.modules, "path_rewards", raising=False)
    (tmp_path / "path_rewards.py").write_text("def short(trajectory):\n    return []\n")
    return tmp_path


def message(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        imported(path, "rewards.functions:")
    return str(caught.value)


def test_functions_and_what_is_inside_of_classes_are_found(folder: Path) -> None:
    short = imported("path_rewards:short", "rewards.functions:")
    assert import_path_of(short) == "path_rewards:short"
    assert imported(import_path_of(Judge.verdict), "x") is Judge.verdict
    assert import_path_of(Judge()) == f"{__name__}:Judge"


@pytest.mark.parametrize(("path", "written"), FILES.items())
def test_a_file_in_place_of_a_module(folder: Path, path: str, written: str) -> None:
    assert message(path) == f"rewards.functions: {path!r} names a file; write its module: {written}"


def test_a_misspelt_name(folder: Path) -> None:
    assert message("path_rewards:shrot") == (
        "rewards.functions: 'path_rewards:shrot' can't be imported (path_rewards.py has no 'shrot'; did you mean "
        "'short'?)"
    )


def test_where_was_looked(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    beside = tmp_path_factory.mktemp("beside")
    look_in(str(beside), "the folder of the YAML file")
    assert message("absent_rewards:short") == (
        "rewards.functions: 'absent_rewards:short' can't be imported (No module named 'absent_rewards'): looked in "
        f"{folder} (the working folder), {beside} (the folder of the YAML file) and the installed packages"
    )
    sys.path[:] = sys.path[1:-1]  # without the two folders
    assert message("absent_rewards:short").endswith("looked in the installed packages")


def test_a_module_that_is_missing_inside_of_the_users(folder: Path) -> None:
    (folder / "path_wants.py").write_text("import os\nimport absent_helpers\n")
    assert message("path_wants:f") == (
        "rewards.functions: 'path_wants:f' can't be imported (ModuleNotFoundError: No module named 'absent_helpers', "
        "at path_wants.py:2)"
    )
