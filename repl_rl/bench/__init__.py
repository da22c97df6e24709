"""`repl-rl bench`: its arguments, and what it prints and writes.

The measurements are the modules beside this one. Importing this loads nothing heavy.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from repl_rl.errors import ConfigError
from repl_rl.utils.folders import require_file

_BENCHES: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "kernels": (
        "sessions of a kernel pool beside stock Jupyter kernels",
        [
            ("--sessions", "live sessions (default: 64)"),
            ("--rounds", "how often both take their turn (default: 5)"),
            ("--stock-kernels", "default: as many as cores and memory allow"),
            ("--many", "sessions of the last part, 0: none (default: 512)"),
        ],
    ),
    "rollout": (
        "rollouts beside plain generation and TRL's tool loop",
        [
            ("--trajectories", "in a batch (default: 256)"),
            ("--concurrency", "lines in the engine's batch (default: 64)"),
            ("--kernels", "trajectories in flight (default: 128)"),
            ("--lines", "of each trajectory (default: 16)"),
            ("--rounds", "how often both take their turn (default: 5)"),
            ("--trl-trajectories", "beside TRL, 0: none (default: 64)"),
            ("--deep", "trajectories of 205 lines, 0: none (default: 16)"),
        ],
    ),
    "train": (
        "loss and gradient beside TRL's own",
        [
            ("--trajectories", "in a batch (default: 16)"),
            ("--group-size", "how many of them have the same prompt (default: 1)"),
            ("--prompt-tokens", "of the longest prompt (default: 40)"),
            ("--tokens", "of the longest completion (default: 256)"),
            ("--rounds", "how often both take their turn (default: 3)"),
        ],
    ),
}
"""What `repl-rl bench` measures: for each module of `repl_rl.bench`, a description and the settings it takes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a command for each measurement, with `run` as its function."""
    measured = parser.add_subparsers(required=True, metavar="WHAT")
    for name, (about, numbers) in _BENCHES.items():
        bench = measured.add_parser(name, help=about)
        bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
        for flag, explanation in numbers:
            bench.add_argument(flag, type=int, metavar="N", help=explanation)
        bench.add_argument("--quick", action="store_true", help="smaller defaults: does it work at all?")
        bench.set_defaults(command=run, bench=name)


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure, print the table and write the figures. Raises ConfigError for invalid options, before measuring."""
    bench = importlib.import_module(f"repl_rl.bench.{options.bench}")
    settings = bench.QUICK if options.quick else bench.DEFAULT
    given = {name: getattr(options, name, None) for name in settings.__dataclass_fields__}
    settings = dataclasses.replace(settings, **{name: value for name, value in given.items() if value is not None})
    if options.json:
        require_file("--json", options.json)
    report = bench.measure(settings, lambda text: console.print(text, style="dim", highlight=False))
    console.print(bench.table(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def require_counts(settings: Any, *names: str) -> None:
    """Raises ConfigError for a count below 1; None is taken."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: give at least 1")
