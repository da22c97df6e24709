"""Every link of README and docs/ leads somewhere, and mkdocs' table of contents knows every page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import PAGES, ROOT, anchors, links

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def missing(page: Path) -> list[str]:
    """Links of a page that lead nowhere, anchors in other pages included."""
    return [target for target in links(page.read_text(encoding="utf-8")) if not _leads_somewhere(page, target)]


def _leads_somewhere(page: Path, target: str) -> bool:
    if target.startswith("https://"):
        return True
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists() or ROOT not in file.parents:
        return False
    return not anchor or anchor in anchors(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    assert missing(ROOT / name) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    page = ROOT / "docs" / "none.md"
    text = "[a](index.md) [b](gone.md) [c](index.md#no-such) [d](#here) `[e](code.md)` [f](http://x.example)\n## Here\n"
    found = [target for target in links(text) if target != "#here" and not _leads_somewhere(page, target)]
    assert found == ["gone.md", "index.md#no-such", "http://x.example"]
    assert anchors(text) == {"here"}


def _files(entries: list[Any]) -> list[str]:
    below = [value for entry in entries for value in entry.values()]
    return [file for value in below for file in (_files(value) if isinstance(value, list) else [value])]


def test_every_page_is_in_the_table_of_contents_once() -> None:
    pages = sorted(page.name for page in PAGES if page.parent.name == "docs")
    assert sorted(_files(SITE["nav"])) == pages


def test_the_map_links_every_page() -> None:
    linked = set(links((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    pages = {page.name for page in PAGES if page.parent.name == "docs"} - {"index.md"}
    assert pages <= linked


def test_the_comparison_names_its_sources() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    body, _, sources = text.partition("\n## Sources\n")
    used = {mark for group in re.findall(r"\[((?:[TVPF]\d+(?:, )?)+)\](?!\()", body) for mark in group.split(", ")}
    listed = re.findall(r"^- \[([TVPF]\d+)\]", sources, re.MULTILINE)
    assert used == set(listed)
    assert len(listed) == len(set(listed))
