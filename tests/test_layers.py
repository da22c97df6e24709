"""Imports go down only, and importing the package stays cheap. Read from the source, so lazy imports count too.

An import counts wherever it stands, and by whatever means: a statement, a string such as
`repl_rl.engine.vllm:VLLMEngine` that something imports later, or `importlib.import_module` with a name or a lazy table.
Modules that are started as programs of their own (`-m repl_rl.cli`) don't count.

The package's own `__init__` is in no room, because every module imports it: it loads `trajectory` alone, and importing
one of its lazy names from it is an import of the module that has it.
"""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

import repl_rl
import repl_rl.rollout

PACKAGE = Path(repl_rl.__file__).parent
CHECKOUT = PACKAGE.parent

PLAN = yaml.safe_load(Path(__file__).with_name("layers.yaml").read_text(encoding="utf-8"))
LAYERS: list[list[str]] = PLAN["layers"]
"""Lowest first. Rooms of one layer may import each other as long as no circle comes of it."""
FLOORS = 12
"""How long a chain of rooms may be in which each imports the next. `__main__` is another name of `cli`."""
LONGEST_CHAIN = 20
"""How many files may import each other in a row as they are loaded."""
IMPORT_PATH = re.compile(r"repl_rl(?:\.\w+)+:\w+")


def name_of(path: Path) -> str:
    """The module's name; that of a package for its `__init__`."""
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """All modules but the package itself, by name."""
    found = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    del found["repl_rl"]
    return found


def room_of(module: str) -> str:
    return module.split(".")[1]


def layer_of(room: str) -> int:
    layers = [index for index, rooms in enumerate(LAYERS) if room in rooms]
    assert layers, f"repl_rl.{room} has no layer yet: give it one in {Path(__file__).name}"
    return layers[0]


def imports_of(source: str, package: str) -> Iterator[str]:
    """Names of what a module imports, of modules or of things in them; `package` is the module's own package."""
    tree = ast.parse(source)
    tables = {
        target.id: [each.value for each in node.value.values if isinstance(each, ast.Constant)]
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from imported_by(node, package)
            case ast.Constant(value=str(text)) if IMPORT_PATH.fullmatch(text):
                yield text.replace(":", ".")
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(text)), *_]):
                yield text
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.JoinedStr(values=[begin, end]), *_]):
                yield from (f"{ast.literal_eval(begin)}{each}" for each in _from_table(end, tables, package))
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Subscript() as named, *_]):
                yield from _from_table(named, tables, package)


def imported_by(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """The names that a statement imports; `package` is that of its module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module
    if node.level:
        parents = package.split(".")
        base = ".".join([*parents[: len(parents) - node.level + 1], node.module or ""]).strip(".")
    yield from (f"{base}.{alias.name}" for alias in node.names)


def _from_table(node: ast.expr, tables: dict[str, list[str]], package: str) -> list[str]:
    """What may stand for a lazy table's entry, or for another value in a name: any module of the package."""
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in tables]
    inside = [name.removeprefix(f"{package}.") for name in modules() if name.startswith(f"{package}.")]
    return [value for name in names for value in tables[name]] or inside


def module_of(name: str) -> str | None:
    """The module of ours that has what is imported under this name; None for what is in none."""
    first, _, rest = name.partition(".")
    if first != "repl_rl" or not rest:
        return None
    if rest in repl_rl._LAZY:
        return repl_rl._LAZY[rest]
    if name in handed_on():  # which may be called as a module is
        return name.rpartition(".")[0]
    while name not in modules():
        name = name.rpartition(".")[0]
        if name == "repl_rl":
            return None
    return name


@cache
def graph() -> dict[str, set[str]]:
    """What each module imports of the others."""
    found = {}
    for module, path in modules().items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        names = imports_of(path.read_text(encoding="utf-8"), package)
        found[module] = {other for name in names if (other := module_of(name)) is not None} - {module}
    return found


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def run_at_import(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run when a module is loaded: none in functions, and none for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not is_for_type_checkers(child):
            yield from run_at_import(child)


@cache
def handed_on() -> dict[str, str]:
    """What rooms load when they are asked for it: each name there, and the name in the file that has it."""
    found = {}
    for package, path in {"repl_rl": PACKAGE / "__init__.py", **modules()}.items():
        statements = ast.parse(path.read_text(encoding="utf-8")).body
        if not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in statements):
            continue
        for node in filter(is_for_type_checkers, statements):
            for statement in node.body:
                names = imported_by(statement, package)
                found |= {f"{package}.{name.rpartition('.')[2]}": name for name in names}
    return found


def loaded_for(name: str) -> str | None:
    """The module that is loaded for what is imported under this name: a room that loads it later hides nothing."""
    while name in handed_on():
        name = handed_on()[name]
    return module_of(name)


@cache
def graph_at_import() -> dict[str, set[str]]:
    """What each module loads of the others as it is loaded itself."""
    found = {}
    for module, path in modules().items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        names = [
            name
            for node in run_at_import(ast.parse(path.read_text(encoding="utf-8")))
            for name in imported_by(node, package)
        ]
        found[module] = {other for name in names if (other := loaded_for(name)) is not None} - {module}
    return found


def longest_chain(imports: dict[str, set[str]]) -> list[str]:
    """The longest chain in which each imports the one before it. Raises CycleError with the names of a circle."""
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(imports).static_order():
        below = max((chains[other] for other in imports[name]), key=len, default=[])
        chains[name] = [*below, name]
    return max(chains.values(), key=len)


def rooms() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {room_of(module): set() for module in modules()}
    for module, others in graph().items():
        found[room_of(module)] |= {room_of(other) for other in others} - {room_of(module)}
    return found


def test_every_room_stands_once_in_the_plan() -> None:
    planned = [room for layer in LAYERS for room in layer]
    assert sorted(planned) == sorted(rooms())


def test_there_are_no_circles_of_rooms_or_modules_and_few_floors() -> None:
    """`graphlib` raises CycleError with the modules of a circle."""
    modules_in_order = list(TopologicalSorter(graph()).static_order())
    assert modules_in_order.index("repl_rl.rollout.loop") < modules_in_order.index("repl_rl.trainer.grpo")
    longest = longest_chain({room: others for room, others in rooms().items() if room != "__main__"})
    assert len(longest) <= FLOORS, longest


def test_chains_of_imports_are_short() -> None:
    longest = longest_chain(graph_at_import())
    assert len(longest) <= LONGEST_CHAIN, longest


def test_other_rooms_import_from_the_room_of_rollouts_not_from_its_files() -> None:
    users = {module: others for module, others in graph().items() if room_of(module) != "rollout"}
    assert {module for module, others in users.items() if any("repl_rl.rollout." in other for other in others)} == set()


def test_each_room_has_the_names_that_it_announces() -> None:
    for name in handed_on():
        room, _, inside = name.rpartition(".")
        assert hasattr(importlib.import_module(room), inside), name
    with pytest.raises(AttributeError, match=r"module 'repl_rl.rollout' has no attribute 'Rolout'"):
        _ = repl_rl.rollout.Rolout


@pytest.mark.parametrize("room", sorted(rooms()))
def test_imports_go_down_only(room: str) -> None:
    assert [other for other in rooms()[room] if layer_of(other) > layer_of(room)] == []


@pytest.mark.parametrize(("source", "expected"), PLAN["imports"])
def test_the_check_sees_every_form_of_import(source: str, expected: str | None) -> None:
    assert {module_of(name) for name in imports_of(source, "repl_rl.engine")} <= {expected, None}
    assert expected is None or expected in {module_of(name) for name in imports_of(source, "repl_rl.engine")}


def test_import_repl_rl_loads_nothing_heavy() -> None:
    program = (
        "import sys, repl_rl\n"
        "heavy = {'torch', 'vllm', 'jupyter_client', 'ipykernel', 'zmq', 'transformers', 'trl', 'pydantic', 'numpy'}\n"
        "print(sorted(heavy & sys.modules.keys()), repl_rl.Trajectory.__name__)\n"
        "print(sorted({name.split('.')[1] for name in sys.modules if name.startswith('repl_rl.')}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "[] Trajectory\n['at_start', 'errors', 'files', 'trajectory']\n"


@pytest.mark.parametrize(("program", "heavy"), PLAN["light"].items())
def test_what_needs_nothing_heavy_loads_none_of_it(program: str, heavy: str) -> None:
    shown = f"{program}\nimport sys; print(sorted(set({heavy.split()}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "[]\n"


def test_lazy_attributes_are_those_that_are_announced() -> None:
    data = {"Group", "Line", "LineKind", "Message", "StopReason", "Task", "ToolCall", "Trajectory"}
    assert set(repl_rl._LAZY) | data | {"read_jsonl", "write_jsonl"} == set(repl_rl.__all__)
    with pytest.raises(AttributeError, match="'repl_rl' has no attribute 'Rolout'"):
        _ = repl_rl.Rolout


@pytest.mark.skipif(not (CHECKOUT / "pyproject.toml").exists(), reason="an installed copy has no checkout around it")
def test_kernels_is_no_package() -> None:
    """A top-level package of that name would hide the one from PyPI that transformers imports."""
    assert not list((CHECKOUT / "kernels").rglob("__init__.py"))
