"""The names of metrics that docs/metrics.md explains."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def explained() -> list[str]:
    """In the first column of a table; `*` stands for any text."""
    cells = re.findall(r"^\| (`[^|]*`) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def unexplained(names: Iterable[str]) -> list[str]:
    """Those that the page lacks; totals of a whole training, which transformers logs at its end, are not on it."""
    patterns = [*explained(), "train_*", "total_flos", "eval_*", "step"]
    return sorted(name for name in set(names) if not any(fnmatchcase(name, pattern) for pattern in patterns))
