"""Imports go down only, and importing the package stays cheap. Read from the source, so lazy imports count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import repl_rl

PACKAGE = Path(repl_rl.__file__).parent
CHECKOUT = PACKAGE.parent

LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "errors",
        "trajectory",
        "utils",
        "config",
        "engine kernel dialect tools rewards credit tasks models",
        "rollout",
        "trainer view integrations cluster",
        "run bench doctor",
        "cli __main__",
    )
)
"""Lowest first. Rooms of one layer may import each other as long as no circle comes of it."""


def layer_of(room: str) -> int:
    layers = [index for index, rooms in enumerate(LAYERS) if room in rooms]
    assert layers, f"repl_rl.{room} has no layer yet: give it one in {Path(__file__).name}"
    return layers[0]


def imported_rooms(source: str, package: str) -> Iterator[str]:
    """Rooms of repl_rl that a module imports anywhere in its text; `package` is the module's own package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = _from_names(node, package)
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "repl_rl" and len(parts) > 1:
                yield parts[1]


def _from_names(node: ast.ImportFrom, package: str) -> list[str]:
    base = node.module or ""
    if node.level:
        parents = package.split(".")
        base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
    return [f"{base}.{alias.name}" for alias in node.names] if base == "repl_rl" else [base]


def breaches(source: str, package: str, room: str) -> list[str]:
    """The imports of a module in `room` that don't go down."""
    own = layer_of(room)
    known = {name for rooms in LAYERS for name in rooms}
    return [
        other
        for other in imported_rooms(source, package)
        if other != room and (other in known or (PACKAGE / other).exists() or (PACKAGE / f"{other}.py").exists())
        if layer_of(other) > own
    ]


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_every_room_stands_once_in_the_plan() -> None:
    here = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    planned = [room for rooms in LAYERS for room in rooms]
    assert sorted(planned) == sorted(here)


def test_no_circle_of_rooms() -> None:
    imports: dict[str, set[str]] = {}
    for path in modules():
        inside = path.relative_to(PACKAGE)
        room = inside.parts[0].removesuffix(".py")
        package = ".".join(["repl_rl", *inside.parts[:-1]])
        others = set(imported_rooms(path.read_text(encoding="utf-8"), package)) - {room}
        imports.setdefault(room, set()).update(others)
    order = list(TopologicalSorter(imports).static_order())
    assert order.index("errors") < order.index("rollout") < order.index("cli")


def test_no_circle_of_modules() -> None:
    known = {".".join(["repl_rl", *path.relative_to(PACKAGE).with_suffix("").parts]): path for path in modules()}
    imports = {
        name: {
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module in known
        }
        for name, path in known.items()
    }
    order = list(TopologicalSorter(imports).static_order())
    assert order.index("repl_rl.rollout.loop") < order.index("repl_rl.trainer.grpo")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path: Path) -> None:
    inside = path.relative_to(PACKAGE)
    room = inside.parts[0].removesuffix(".py")
    package = ".".join(["repl_rl", *inside.parts[:-1]])
    assert breaches(path.read_text(encoding="utf-8"), package, room) == []


@pytest.mark.parametrize(
    ("source", "room", "expected"),
    [
        ("from repl_rl.errors import ConfigError", "config", []),
        ("from repl_rl.credit.outcome import outcome", "credit", []),
        ("import repl_rl.rollout.loop", "dialect", ["rollout"]),
        ("from repl_rl import rollout", "rewards", ["rollout"]),
        ("from repl_rl.rollout.loop import Rollout", "engine", ["rollout"]),
        ("def f():\n    from repl_rl.cli import main", "trainer", ["cli"]),
        ("if TYPE_CHECKING:\n    from repl_rl.view import show", "tasks", ["view"]),
        ("from repl_rl.config import Config", "errors", ["config"]),
        ("from repl_rl import Trajectory", "view", []),
    ],
)
def test_the_check_sees_every_form_of_import(source: str, room: str, expected: list[str]) -> None:
    assert breaches(source, "repl_rl", room) == expected


def test_the_check_sees_relative_imports() -> None:
    assert breaches("from ..trainer import rows", "repl_rl.engine", "engine") == ["trainer"]
    assert breaches("from .. import rollout", "repl_rl.engine", "engine") == ["rollout"]
    assert breaches("from .base import Engine", "repl_rl.engine", "engine") == []


def test_the_package_itself_imports_only_data_at_load_time() -> None:
    body = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
    at_load = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    rooms = {room for node in at_load for room in imported_rooms(ast.unparse(node), "repl_rl")}
    assert rooms == {"trajectory"}


def test_import_repl_rl_loads_nothing_heavy() -> None:
    program = (
        "import sys, repl_rl\n"
        "heavy = {'torch', 'vllm', 'jupyter_client', 'ipykernel', 'zmq', 'transformers', 'trl', 'pydantic', 'numpy'}\n"
        "print(sorted(heavy & sys.modules.keys()), repl_rl.Trajectory.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "[] Trajectory\n"


def test_lazy_attributes_are_those_that_are_announced() -> None:
    assert set(repl_rl._LAZY) | {
        "Group",
        "Line",
        "LineKind",
        "Message",
        "StopReason",
        "Task",
        "ToolCall",
        "Trajectory",
        "read_jsonl",
        "write_jsonl",
    } == set(repl_rl.__all__)
    with pytest.raises(AttributeError, match="'repl_rl' has no attribute 'Rolout'"):
        _ = repl_rl.Rolout


@pytest.mark.skipif(not (CHECKOUT / "pyproject.toml").exists(), reason="an installed copy has no checkout around it")
def test_kernels_is_no_package() -> None:
    """A top-level package of that name would hide the one from PyPI that transformers imports."""
    assert not list((CHECKOUT / "kernels").rglob("__init__.py"))
