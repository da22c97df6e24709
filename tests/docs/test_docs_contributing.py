"""The path of a line that CONTRIBUTING shows leads through files that are there."""

from __future__ import annotations

import re

from pages import ROOT


def test_the_path_of_a_line_has_35_files_at_most() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [a-z ]+ \| `([\w/]+/)` \| (.+) \|$", text, re.MULTILINE)
    files = [ROOT / folder / name for folder, names in rows for name in re.findall(r"`([\w./]+)`", names)]
    assert [file for file in files if not file.is_file()] == []
    assert 30 < len(set(files)) == len(files) <= 35
