"""System calls by their names: what the filter of sessions says of them, and their numbers."""

import importlib.util
import platform
from pathlib import Path
from types import ModuleType

import yaml

FOLDER = Path(__file__).parents[2] / "kernels" / "python"
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED: dict[str, dict[str, list[int | None]]] = yaml.safe_load(
    Path(__file__).with_name("refused_calls.yaml").read_text()
)


def load(name: str) -> ModuleType:
    """A module of the kernel program, which is no package."""
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILTER = load("seccomp_filter")


def numbers(machine: str) -> dict[str, int]:
    """Of every call that is named, by the filter or among those that it refuses."""
    named = [*FILTER.ALLOWED.values(), *FILTER.ALLOWED_APART.values(), FILTER.EXAMINED, *REFUSED.values()]
    column = list(MACHINES).index(machine)
    return {name: row[column] for group in named for name, row in group.items() if row[column] is not None}


NUMBERS = numbers(platform.machine()) if platform.machine() in MACHINES else {}
"""On this machine."""
