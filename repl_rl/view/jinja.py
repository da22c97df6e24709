"""The jinja environment of everything here that becomes HTML: the report, and fragments in a notebook.

Whatever a template puts out goes through `visible` and is escaped, unless it is markup made by a template.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from repl_rl.view import words
from repl_rl.view.screen import GUTTER, visible


@cache
def environment() -> Environment:
    """One for all templates, so that each is compiled once. Callers hand what differs to `render`."""
    made = Environment(
        loader=PackageLoader("repl_rl.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.filters |= {
        "counted": words.counted,
        "duration": words.duration,
        "log_probability": words.log_probability,
        "milliseconds": words.milliseconds,
        "percent": words.percent,
        "signed": words.signed,
    }
    made.globals |= {
        "faults": words.FAULTS,
        "gutter": GUTTER,
        "kind_of": words.kind,
        "solved": words.solved,
        "status_of": words.status,
        "verdict_marks": words.VERDICT_MARKS,
    }
    return made


def shown_bytes(text: str) -> int:
    """How much of a page `text` takes up once it is put out."""
    return len(escape(visible(text)).encode())


def _shown(value: Any) -> Any:
    return value if isinstance(value, Markup) else visible(str(value))
