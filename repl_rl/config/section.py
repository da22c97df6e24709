"""What every section of the file is: frozen, and strict about its keys."""

from __future__ import annotations

import difflib

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the file: frozen, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def nearest(name: str, known: list[str]) -> str:
    """The known name that a misspelt one means, as half a sentence; all known ones where none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {str(close[0])!r}?" if close else f"known are {', '.join(map(str, known))}"
