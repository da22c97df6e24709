"""The table of texts (`texts.yaml`): what is set right before reading, and the words and units that are known."""

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "texts.yaml").read_text(encoding="utf-8"))


def rule(entry: dict[str, Any]) -> Callable[[str], str]:
    """What an entry of `clean` or `parser` does to a text."""
    pattern, dropped = re.compile(entry["find"]), str.maketrans("", "", entry.get("drop", ""))

    def made(found: re.Match[str]) -> str:
        if times := entry.get("times"):
            return f"{(Decimal(found[1]) * times[found[2]]).normalize():f}"
        return found.expand(entry["to"]) if "to" in entry else found[0].translate(dropped)

    return lambda text: pattern.sub(made, text)
