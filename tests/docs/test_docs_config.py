"""docs/config.md is what its generator writes, and says of every key what the models say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from repl_rl.config import Config, Section

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "config.md"
WRITER = runpy.run_path(str(DOCS / "reference.py"))
descriptions, reference, sections, type_words = (
    WRITER[name] for name in ("descriptions", "reference", "sections", "type_words")
)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "python docs/reference.py > docs/config.md"


def test_every_section_and_key_is_there() -> None:
    paths = [path for path, _ in sections()]
    assert paths[:3] == ["", "model", "tasks"]
    assert {"rewards.rules[]", "rewards.shaping.caps", "tasks.columns", "eval"} <= set(paths)
    assert {name for name, value in Config() if isinstance(value, Section)} <= set(paths)
    parts = reference().split("\n## ")
    for path, model in sections():
        [section] = [part for part in parts if part.startswith(f"`{path}`\n" if path else "The file itself")]
        below = {name for inner, _ in sections() for name in [inner.removesuffix("[]").rpartition(".")[2]] if inner}
        for name in model.model_fields:
            assert f"| `{name}` |" in section or name in below


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "integer"),
        (str | None, "text or null"),
        (float | str | None, "number or text or null"),
        (Annotated[int, Field(ge=1, le=4096)], "integer, at least 1, at most 4,096"),
        (Annotated[float, Field(gt=0)] | None, "number, above 0, or null"),
        (Annotated[str, Field(pattern="^a|b$")], "text, matching `^a|b$`"),
        (Literal["a", "b"], "`a`, `b`"),
        (tuple[str, ...], "list of text"),
        (tuple[float, float], "number and number in a list"),
        (dict[str, bool], "mapping from text to true or false"),
    ],
)
def test_types_in_words(annotation: object, words: str) -> None:
    assert type_words(annotation) == words


class _Undescribed(Section):
    told: int = 1
    """In two
    lines."""
    untold: int = 2


def test_words_come_from_the_source() -> None:
    assert descriptions(_Undescribed) == {"told": "In two lines."}


def test_a_key_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="field 'untold' has no words below it"):
        WRITER["_section"]("here", _Undescribed)
