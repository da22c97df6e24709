"""One file holds page, scripts and data; nothing in the data is taken for markup, and what is left out is said."""

from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from repl_rl.errors import RunError
from repl_rl.trajectory import write_jsonl
from repl_rl.view.viewer import export
from repl_rl.view.viewer.api import RunApi
from tests.view.conftest import STEPS, solved_trajectory

EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\u2028\udc80"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<link rel="stylesheet" href="assets/page.css">
</head>
<body>
<script src="assets/one.js"></script>
<script src="assets/plotly.js" async></script>
</body>
</html>
"""


class Page(HTMLParser):
    """Elements with their attributes, and the texts of scripts as the browser would read them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles, self.policy, self._inside = "", "", ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        attributes = dict(attrs)
        if tag == "script":
            self.scripts.append((attributes, ""))
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        if self._inside == "style":
            self.styles += data

    @property
    def data(self) -> Any:
        return json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == "run-data"))


@pytest.fixture(autouse=True)
def small_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of a few lines in place of the real one and of plotly's 5 MB."""
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "index.html").write_text(PAGE)
    (folder / "page.css").write_text("main { color: red }\n")
    (folder / "one.js").write_text('const text = "</script><!--";\r\n')
    (folder / "plotly.min.js").write_text("window.Plotly = {};\n")
    monkeypatch.setattr(export, "page_folder", lambda: folder)
    monkeypatch.setattr(export, "plotly_path", lambda: folder / "plotly.min.js")
    return folder


def exported(folder: Path, **options: Any) -> Page:
    path = folder.parent / "out.html"
    export.export(RunApi(folder), path, **options)
    return Page(path.read_text(encoding="utf-8"))


def test_all_of_a_small_run_is_in_it(run_folder: Path) -> None:
    source = RunApi(run_folder)
    written = export.export(source, run_folder / "viewer.html")
    assert (written.shown, written.total) == (30, 30)
    data = Page(written.path.read_text(encoding="utf-8")).data
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
    assert page.styles.strip() == "main { color: red }"
    running = [text for attributes, text in page.scripts if attributes.get("type") != "application/json"]
    assert running == ['const text = "\\x3c/script>\\x3c!--";\n', "window.Plotly = {};\n"]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in running]
    policy = dict(part.split(" ", 1) for part in page.policy.split("; "))
    assert policy["script-src"] == " ".join(hashes)
    assert policy["default-src"] == "'none'"
    assert not [attributes for attributes, _ in page.scripts if "src" in attributes]


def test_the_file_stays_below_what_it_may_be(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(2, 12):
        write_jsonl(run_folder / "rollouts" / f"step_{step:05d}.jsonl", [solved_trajectory()] * 20)
    monkeypatch.setattr(export, "MOST_BYTES", 160_000)
    path = run_folder.parent / "out.html"
    written = export.export(RunApi(run_folder), path)
    assert 26 < written.shown < written.total == 230
    assert 140_000 < path.stat().st_size <= 160_000
    steps = {row["step"] for row in Page(path.read_text(encoding="utf-8")).data["rows"]}
    assert {0, 1, STEPS} <= steps


def test_a_place_that_can_t_be_written_to_is_said(run_folder: Path) -> None:
    for place in (run_folder / "nowhere" / "x.html", run_folder):
        with pytest.raises(
            RunError, match=rf"{place} can't be written: give the name of a file, in a folder that exists"
        ):
            export.export(RunApi(run_folder), place)
    assert not run_folder.with_name(run_folder.name + ".part").exists()


def test_a_file_without_a_trajectory_becomes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, page = tmp_path / "notes.txt", tmp_path / "notes.html"
    file.write_text("milk\n")
    with pytest.raises(
        RunError, match=r"notes.txt holds no trajectory that can be read: notes.txt: a line is left out"
    ):
        export.export(RunApi(file), page)
    assert not page.exists()
