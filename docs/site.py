"""mkdocs' hook for the pages outside of docs/: README is the site's start, and all that pages link to is in the site.

`mkdocs build --strict` then finds every link that leads nowhere.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<=\]\()[^()\s:#]+(?=[#)])")


def in_site(path: str) -> str:
    """Where a file of the repository is in the site."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def linked(path: str, target: str) -> str:
    """The file of the repository that a page links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def on_files(files: Any, config: Any) -> None:
    """Add README and whatever it, the pages and their own targets link to outside of docs/."""
    waiting = ["README.md", *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    added = set()
    while waiting:
        path = waiting.pop()
        if path in added or not (ROOT / path).is_file():
            continue
        added.add(path)
        if not path.startswith("docs/"):
            files.append(File.generated(config, in_site(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            waiting += [linked(path, target) for target in _LINK.findall((ROOT / path).read_text(encoding="utf-8"))]


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """Let links between the repository's files lead from page to page of the site."""
    source = page.file.src_uri
    path = "README.md" if source == "index.md" else source if (ROOT / source).is_file() else f"docs/{source}"

    def moved(found: re.Match[str]) -> str:
        target = in_site(linked(path, found[0]))
        is_there = files.get_file_from_path(target) is not None
        return posixpath.relpath(target, posixpath.dirname(source)) if is_there else found[0]

    return _LINK.sub(moved, markdown)
