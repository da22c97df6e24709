"""The notebooks that people open: each runs from top to bottom, and what is committed with it is what comes out.

A cell's tag says how far its outputs are compared: `sampled` holds what a seeded CPU engine types and is the same on
every CPU, `varies` holds times, addresses or chance and is compared by kind alone; the others are compared by text.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from real_kernels import pari_kernel, r_kernel

from repl_rl.engine.environment import has_nvidia_driver

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = (
    "01_first_rollout",
    "02_per_line_rewards",
    "03_train_nano",
    "04_write_a_dialect",
    "05_attach_to_a_live_kernel",
    "06_fork_a_thought",
    "07_other_languages",
)
MACHINE_PATH = re.compile(r"/(?:home|root|work|Users|tmp|var|opt)/[\w.-]+/|site-packages|\.pyenv|\.venv")
LARGEST_BYTES = 1_500_000
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def committed(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: Any) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def kinds(cell: Any) -> list[str]:
    """What a cell put out, by kind; a stream may come in any number of pieces."""
    each = [
        f"stream {output.name}" if output.output_type == "stream" else f"{output.output_type} {sorted(output.data)}"
        for output in cell.outputs
        if output.output_type != "error"
    ]
    return sorted({kind for kind in each if kind.startswith("stream")}) + [
        k for k in each if not k.startswith("stream")
    ]


def texts(cell: Any) -> list[str]:
    """The text of all streams together, then the plain text of each other output."""
    streams = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    return [streams, *(output.data["text/plain"] for output in cell.outputs if "data" in output)]


def is_compared_by_text(cell: Any) -> bool:
    return "varies" not in tags(cell) and not ("sampled" in tags(cell) and has_nvidia_driver())


@pytest.fixture
def this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a kernelspec of the interpreter that runs the tests."""
    spec = tmp_path / "jupyter" / "kernels" / "tested"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "tested", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    assert KernelSpecManager().get_kernel_spec("tested").argv[0] == sys.executable
    return "tested"


def executed(name: str, kernel: str, folder: Path) -> Any:
    """A copy without outputs, run in a folder of its own. Raises CellExecutionError where a cell raises."""
    notebook = committed(name)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(notebook, timeout=800, kernel_name=kernel, resources={"metadata": {"path": str(folder)}})
    return client.execute()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_gives_what_is_committed(
    name: str, this_interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "07_other_languages":
        r_kernel()
        pari_kernel(tmp_path / "pari", lambda key, path: monkeypatch.setenv(key, f"{os.environ[key]}:{path}"))
    (tmp_path / "here").mkdir()
    fresh = executed(name, this_interpreter, tmp_path / "here")
    for old, new in zip(code_cells(committed(name)), code_cells(fresh), strict=True):
        assert kinds(new) == kinds(old), old.id
        if is_compared_by_text(old):
            assert texts(new) == texts(old), old.id
    assert list((tmp_path / "here").iterdir()) == [], "a notebook leaves nothing where it is opened"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed_is_clean(name: str) -> None:
    file = FOLDER / f"{name}.ipynb"
    notebook = committed(name)
    nbformat.validate(notebook)
    assert file.stat().st_size < LARGEST_BYTES
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert all(re.fullmatch(r"[a-z-]+", cell.id) for cell in notebook.cells), "ids are names, so that diffs are small"
    assert all(set(cell.metadata) <= {"tags"} and tags(cell) <= {"sampled", "varies"} for cell in notebook.cells)
    assert MACHINE_PATH.findall(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_kept_and_quiet(name: str) -> None:
    cells = code_cells(committed(name))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    silent = {cell.id for cell in cells if not cell.outputs}
    assert silent <= {"quiet", "tables", "dialect", "clean"}
    for cell in cells:
        assert all(output.output_type != "error" and output.get("name") != "stderr" for output in cell.outputs)
        assert not any(ADDRESS.search(text) for text in texts(cell)), cell.id


def test_all_notebooks_are_tested_and_listed() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)
    listed = re.findall(r"\((\w+)\.ipynb\)", (FOLDER / "README.md").read_text())
    assert listed == list(NAMES)
