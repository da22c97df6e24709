"""Rules for the page's own files that no run of it would break loudly."""

import re
from pathlib import Path

import pytest

from repl_rl.view.viewer.export import page_folder

FILES = sorted(page_folder().iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MARKUP = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "createContextualFragment", "DOMParser"]
CODE = ["eval(", "new Function", 'setTimeout("', "import("]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_way_from_text_to_markup_or_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [word for word in [*MARKUP, *CODE] if word in text] == []
    assert len(text.splitlines()) <= 250


def test_the_page_names_all_its_files_and_holds_no_code() -> None:
    page = (page_folder() / "index.html").read_text(encoding="utf-8")
    named = re.findall(r"(?:src|href)=\"assets/([\w.-]+)\"", page)
    assert sorted(named) == sorted({path.name for path in FILES} - {"index.html"} | {"plotly.js"})
    assert re.findall(r"<script[^>]*>(?!</script>)", page) == []
    assert re.findall(r"\son\w+=", page) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_the_network(path: Path) -> None:
    assert re.findall(r"https?://|@import|url\(", path.read_text(encoding="utf-8")) == []
