"""Pages and parts of them as tests look at them: read by html.parser, which knows nothing of how they were made."""

import json
from html.parser import HTMLParser
from typing import Any

HOSTILE = (
    "</style></code></details><script>hit()</script><img src=x onerror=hit()><svg onload=hit()>"
    "\" onfocus=hit() autofocus x='&lt;b&gt;{{ 7*7 }}${hit()}\x1b[31m\x9b2J\udc80\u202eevil\u2066\u200b\r\x00"
)
"""Breaks out of an element, an attribute, a style and a template, steers a terminal, hides, and encodes as nothing."""
SHOWN = (
    "</style></code></details><script>hit()</script><img src=x onerror=hit()><svg onload=hit()>"
    "\" onfocus=hit() autofocus x='&lt;b&gt;{{ 7*7 }}${hit()}\\x1b[31m\\x9b2J\\udc80\\u202eevil\\u2066\\u200b\\r\\x00"
)
"""What a reader sees of it."""


class Fragment(HTMLParser):
    """Tags with their attributes, the texts of scripts, and the text outside styles and scripts: whole, and as rows of
    a table's cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.style = "", ""
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.rows: list[list[str]] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("col", "br", "img", "meta", "link", "input"):
            self._inside.append(tag)
        self.text += " " if tag in ("td", "th", "dt", "dd", "div") else ""
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if "script" in self._inside:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
            return
        if "style" in self._inside:
            self.style += data
            return
        self.text += data
        if "td" in self._inside or "th" in self._inside:
            self.rows[-1][-1] += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    @property
    def data(self) -> Any:
        """The run in an exported page."""
        return json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == "run-data"))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def rows_of(self, css_class: str) -> list[dict[str, str | None]]:
        return [row for row in self.named("tr") if css_class in (row.get("class") or "").split()]
