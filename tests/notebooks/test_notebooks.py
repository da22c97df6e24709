"""The notebooks that people open: each runs from top to bottom, and what is committed with it is what comes out.

A cell's tag says how far its outputs are compared: `sampled` holds what a seeded CPU engine types and is the same on
every CPU, `varies` holds times, addresses or chance and is compared by kind alone; the others are compared by text.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from real_kernels import pari_kernel, r_kernel
from tasks.conftest import GYM

from repl_rl.engine.environment import has_gpu_driver

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = re.findall(r"\((\w+)\.ipynb\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
SESSIONS = FOLDER / "qwen.jsonl"
PUZZLES = FOLDER / "puzzles.py"
SMALL = "05_attach_to_a_live_kernel"
"""Runs with each change; the others with all tests."""
MACHINE_PATH = re.compile(r"/(?:home|root|work|Users|tmp|var|opt)/[\w.-]+/|site-packages|\.pyenv|\.venv")
LARGEST_BYTES = 1_500_000
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def committed(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: Any) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def shown(cell: Any) -> tuple[list[str], list[str]]:
    """What a cell put out: kinds and texts. A stream may come in any number of pieces."""
    streams = [output for output in cell.outputs if output.output_type == "stream"]
    others = [output for output in cell.outputs if output.output_type != "stream"]
    kinds = sorted({output.name for output in streams}) + [f"{each.output_type} {sorted(each.data)}" for each in others]
    return kinds, ["".join(output.text for output in streams), *(output.data["text/plain"] for output in others)]


def is_compared_by_text(cell: Any) -> bool:
    return "varies" not in tags(cell) and not ("sampled" in tags(cell) and has_gpu_driver())


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.more if name == SMALL else pytest.mark.slow) for name in NAMES]
)
def test_it_runs_and_gives_what_is_committed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, here = tmp_path / "jupyter" / "kernels" / "tested", tmp_path / "here"
    spec.mkdir(parents=True)
    here.mkdir()
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "tested", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    if name == "07_other_languages":
        r_kernel()
        pari_kernel(tmp_path / "pari", lambda key, path: monkeypatch.setenv(key, f"{os.environ[key]}:{path}"))
    if name == "08_write_an_environment":
        assert (GYM / "reasoning_gym").is_dir(), f"{GYM} is missing; `make .venv/reasoning_gym/.installed` brings it"
        monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}:{GYM}")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "pycache"))
    for file in (SESSIONS, PUZZLES):
        shutil.copy(file, here)
    notebook = committed(name)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    NotebookClient(notebook, timeout=800, kernel_name="tested", resources={"metadata": {"path": str(here)}}).execute()
    for old, new in zip(code_cells(committed(name)), code_cells(notebook), strict=True):
        assert shown(new)[0] == shown(old)[0], old.id
        assert not is_compared_by_text(old) or shown(new)[1] == shown(old)[1], old.id
    left = {file.name for file in here.iterdir()}
    assert left == {SESSIONS.name, PUZZLES.name}, "a notebook leaves nothing where it is opened"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed_is_clean(name: str) -> None:
    file, notebook = FOLDER / f"{name}.ipynb", committed(name)
    nbformat.validate(notebook)
    assert file.stat().st_size < LARGEST_BYTES
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert all(re.fullmatch(r"[a-z-]+", cell.id) for cell in notebook.cells), "ids are names, so that diffs are small"
    assert all(set(cell.metadata) <= {"tags"} and tags(cell) <= {"sampled", "varies"} for cell in notebook.cells)
    assert MACHINE_PATH.findall(file.read_text(encoding="utf-8")) == []
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert {cell.id for cell in cells if not cell.outputs} <= {"quiet", "tables", "dialect", "environment", "clean"}
    for cell in cells:
        assert all(output.output_type != "error" and output.get("name") != "stderr" for output in cell.outputs)
        assert not any(ADDRESS.search(text) for text in shown(cell)[1]), cell.id


def test_all_notebooks_are_listed() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in FOLDER.glob("*.ipynb"))
