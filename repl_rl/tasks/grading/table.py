"""The table of texts (`texts.yaml`): corrections that texts get before they are read, and known words and units."""

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "texts.yaml").read_text(encoding="utf-8"))


def rule(entry: dict[str, Any]) -> Callable[[str], str]:
    """The correction that an entry of `clean` or `parser` describes, as a function of a text."""
    pattern = re.compile(entry["find"])
    replacement: str | None = entry.get("to")
    factors: dict[str, int] | None = entry.get("times")
    dropped = str.maketrans("", "", entry.get("drop", ""))

    def corrected(match: re.Match[str]) -> str:
        if factors:
            number = Decimal(match[1]) * factors[match[2]]
            return f"{number.normalize():f}"
        if replacement is not None:
            return match.expand(replacement)
        return match[0].translate(dropped)

    return lambda text: pattern.sub(corrected, text)
