"""The command line of a study: what it measures, as a table on the terminal and as JSON in a file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console

from repl_rl.errors import ReplRLError
from repl_rl.utils.folders import require_file

Flag = tuple[str, type, str]
"""A flag, the type of its value, and what it says in `--help`. It sets the field of that name in the settings."""


def main(study: ModuleType, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a study; returns the exit code, 2 for what the user has to mend.

    `study` has `FLAGS`; `DEFAULT` and perhaps `QUICK`, settings of a frozen dataclass; `measure(settings, say)`, which
    returns a report for JSON; and `table(report)`. `name` is the module that is run.
    """
    parser = argparse.ArgumentParser(
        f"python -m {name}", description=study.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    for flag, kind, explanation in study.FLAGS:
        parser.add_argument(flag, type=kind, metavar="PATH" if kind is Path else "X", help=explanation)
    if hasattr(study, "QUICK"):
        parser.add_argument("--quick", action="store_true", help="smaller defaults: does it work at all?")
    options = vars(parser.parse_args(arguments))
    console = Console()
    try:
        settings = study.QUICK if options.pop("quick", False) else study.DEFAULT
        file = options.pop("json")
        given = {name: value for name, value in options.items() if value is not None}
        settings = dataclasses.replace(settings, **given)
        if file:
            require_file("--json", file)
        report = study.measure(settings, lambda text: console.print(text, style="dim", highlight=False))
    except ReplRLError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    console.print(study.table(report))
    if file:
        file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0
