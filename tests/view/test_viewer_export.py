"""One file holds page, scripts and data; nothing in the data is taken for markup, and what is left out is said."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from repl_rl.errors import RunError
from repl_rl.trajectory import write_jsonl
from repl_rl.view.viewer import export
from repl_rl.view.viewer.api import RunApi
from tests.view.conftest import STEPS, solved_trajectory
from tests.view.fragments import Fragment

pytestmark = pytest.mark.usefixtures("small_page")


def exported(folder: Path, **options: Any) -> Fragment:
    path = folder.parent / "out.html"
    export.export(RunApi(folder), path, **options)
    return Fragment(path.read_text(encoding="utf-8"))


def test_all_of_a_small_run_is_in_it(run_folder: Path) -> None:
    source = RunApi(run_folder)
    assert export.export(source, run_folder / "viewer.html") == (30, 30)
    data = Fragment((run_folder / "viewer.html").read_text(encoding="utf-8")).data
    assert list(data) == ["run", "rows", "trajectories", "tokens"]
    assert data["run"] == {**source.run(), "live": False}
    assert data["rows"] == source.rows({"limit": "1000"})["rows"]
    ids = {row["id"] for row in data["rows"]}
    assert data["trajectories"].keys() == data["tokens"].keys() == ids
    assert data["trajectories"]["train-1-0"] == source.trajectory("train-1-0", 0, None)
    assert data["tokens"]["train-1-0"] == source.tokens("train-1-0")
    assert not list(run_folder.glob("*.part"))


def test_scripts_run_by_their_hash_alone(run_folder: Path) -> None:
    page = exported(run_folder)
    assert page.style.strip() == "main { color: red }"
    running = [text for attributes, text in page.scripts if attributes.get("type") != "application/json"]
    assert running == ['const text = "\\x3c/script>\\x3c!--";\n', "window.Plotly = {};\n"]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in running]
    [declared] = [meta["content"] or "" for meta in page.named("meta") if "http-equiv" in meta]
    policy = dict(part.split(" ", 1) for part in declared.split("; "))
    assert policy["script-src"] == " ".join(hashes)
    assert policy["default-src"] == "'none'"
    assert not [attributes for attributes, _ in page.scripts if "src" in attributes]


def test_the_file_stays_below_what_it_may_be(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(2, 12):
        write_jsonl(run_folder / "rollouts" / f"step_{step:05d}.jsonl", [solved_trajectory()] * 20)
    monkeypatch.setattr(export, "MOST_BYTES", 170_000)
    path = run_folder.parent / "out.html"
    shown, total = export.export(RunApi(run_folder), path)
    assert 26 < shown < total == 230
    assert 150_000 < path.stat().st_size <= 170_000
    steps = {row["step"] for row in Fragment(path.read_text(encoding="utf-8")).data["rows"]}
    assert {0, 1, STEPS} <= steps


def test_a_place_that_can_t_be_written_to_is_said(run_folder: Path) -> None:
    for place in (run_folder / "nowhere" / "x.html", run_folder):
        with pytest.raises(
            RunError, match=rf"{place} can't be written: give the name of a file, in a folder that exists"
        ):
            export.export(RunApi(run_folder), place)
    assert not run_folder.with_name(run_folder.name + ".part").exists()
