"""`repl-rl replay`: its arguments, and what it prints and writes. Importing this loads nothing heavy."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from repl_rl.errors import ConfigError
from repl_rl.utils.folders import require_file
from repl_rl.view.terminal import say

if TYPE_CHECKING:
    from repl_rl.view.replay.comparison import Replayed

_SHOWN = 20
"""How many differences are printed of each kind, explained and unexplained; the `--json` file has them all."""
_TEXT_CHARS = 400
_UNFIT = re.compile(r"[^\w.-]+")
"""What names of files should not hold."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `repl-rl replay`, and set `run` as its command."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="rollouts (.jsonl) or notebooks (.ipynb)")
    parser.add_argument("-n", type=int, metavar="N", help="the first N trajectories of each file (default: all)")
    parser.add_argument("--dialect", metavar="NAME", help="default: the trajectory's own, else the run's, else python")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import a dialect that a file names as code, which runs outside the sandbox; take all limits of its run",
    )
    parser.add_argument("--thoughts", choices=("code", "markdown"), default="code", help="what comments become")
    parser.add_argument("--notebooks", type=Path, metavar="FOLDER", help="keep what was exported")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every difference")
    parser.add_argument("--kernels", type=int, metavar="N", help="at once (default: number of cores)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Export, run again, compare. Returns 0 if everything is equal or explained, else 1.

    Raises ConfigError for invalid options, before anything runs.
    """
    from repl_rl.view.notebook import write_notebook
    from repl_rl.view.replay.notebooks import read_notebooks, replay

    if options.n is not None and options.n < 1:
        raise ConfigError(f"-n {options.n}: give at least one trajectory")
    if options.json is not None:
        require_file("--json", options.json)
    notebooks, notes = read_notebooks(
        options.files, dialect=options.dialect, first=options.n, thoughts=options.thoughts, trust=options.trust
    )
    for note in notes:
        say(console, f"note: {note}", style="yellow")
    if options.notebooks is not None:
        for exported in notebooks:
            stem = _UNFIT.sub("-", exported.name)[:150]
            write_notebook(exported.notebook, options.notebooks / f"{stem}.ipynb")
    results = replay(notebooks, at_once=options.kernels)
    if options.json is not None:
        text = json.dumps([result.to_dict() for result in results], indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    _print_differences(console, results, explained=True)
    _print_differences(console, results, explained=False)
    for result in results:
        if result.failure is not None:
            say(console, f"{result.name}: could not be replayed: {result.failure}", style="red")
    for sentence in summary(results):
        say(console, sentence)
    return 0 if all(result.is_explained for result in results) else 1


def _print_differences(console: Console, results: Sequence[Replayed], explained: bool) -> None:
    from repl_rl.dialect import truncate_middle
    from repl_rl.view.replay.comparison import EXPLAINED

    differences = []
    for result in results:
        for difference in result.differences:
            if (difference.cause in EXPLAINED) is explained:
                differences.append((result, difference))
    for result, difference in differences[:_SHOWN]:
        heading = f"{result.name}, cell {difference.cell}: {difference.cause}"
        say(console, heading, style="yellow" if explained else "bold red")
        for mark, text in (("ran", difference.source), ("was", difference.expected), ("now", difference.got)):
            lines = truncate_middle(str(text), _TEXT_CHARS).rstrip("\n").split("\n")
            rows = [f"  {mark} | {lines[0]}"]
            rows += [f"      | {line}" for line in lines[1:]]
            say(console, "\n".join(rows), style="dim")
    if len(differences) > _SHOWN:
        say(console, f"... and {len(differences) - _SHOWN} more like these; --json FILE has them all")


def summary(results: Sequence[Replayed]) -> list[str]:
    """The outcome in sentences of plain text."""
    cells = sum(result.cells for result in results)
    equal = sum(result.is_equal for result in results)
    failed = sum(result.failure is not None for result in results)
    unexplained = sum(not result.is_explained for result in results) - failed
    noun = "notebook" if len(results) == 1 else "notebooks"
    sentences = [f"{len(results)} {noun}, {cells} cells: {equal} equal, {len(results) - equal - failed} differ"]
    causes = Counter(str(difference.cause) for result in results for difference in result.differences)
    if causes:
        counts = [f"{cause} {count}" for cause, count in causes.most_common()]
        sentences.append("differences: " + ", ".join(counts))
    if unexplained or failed:
        sentences.append(f"{unexplained} with an unexplained difference, {failed} that could not be replayed")
    return sentences
