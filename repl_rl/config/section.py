"""The base class of every section of the file: frozen, and strict about its keys."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def one_needs_no_list(value: Any) -> Any:
    """A single name or function as a list of one."""
    return (value,) if isinstance(value, str) or callable(value) else value


Names = Annotated[tuple[str, ...], BeforeValidator(one_needs_no_list)]
"""A list of text; a single text is a list of one."""


class Section(BaseModel):
    """A part of the file: frozen, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def nearest(name: str, known: list[str]) -> str:
    """A hint for an error message: the known name nearest to a misspelt one, or all known names if none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {str(close[0])!r}?" if close else f"known are {', '.join(map(str, known))}"
