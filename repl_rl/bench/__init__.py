"""`repl-rl bench`: its arguments, and what it prints and writes.

The measurements are the modules beside this one. Importing this loads nothing heavy.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
from pathlib import Path

from rich.console import Console

from repl_rl.errors import ConfigError
from repl_rl.utils.folders import require_file

_BENCHES: dict[str, tuple[str, list[tuple[str, int, str]]]] = {
    "kernels": (
        "sessions of a kernel pool beside stock Jupyter kernels",
        [
            ("--sessions", 1, "live sessions (default: 64)"),
            ("--rounds", 1, "how often both take their turn (default: 5)"),
            ("--stock-kernels", 1, "default: as many as cores and memory allow"),
            ("--many", 0, "sessions of the last part, 0: none (default: 512)"),
        ],
    ),
    "rollout": (
        "rollouts beside plain generation and TRL's tool loop",
        [
            ("--trajectories", 1, "in a batch (default: 256)"),
            ("--concurrency", 1, "lines in the engine's batch (default: 64)"),
            ("--kernels", 1, "trajectories in flight (default: 128)"),
            ("--lines", 1, "of each trajectory (default: 16)"),
            ("--rounds", 1, "how often both take their turn (default: 5)"),
            ("--trl-trajectories", 0, "beside TRL, 0: none (default: 64)"),
        ],
    ),
    "train": (
        "loss and gradient beside TRL's own",
        [
            ("--trajectories", 1, "in a batch (default: 16)"),
            ("--group-size", 1, "how many of them have the same prompt (default: 1)"),
            ("--prompt-tokens", 1, "of the longest prompt (default: 40)"),
            ("--tokens", 40, "of the longest completion (default: 256)"),
            ("--rounds", 1, "how often both take their turn (default: 3)"),
        ],
    ),
}
"""What `repl-rl bench` measures: for each module of `repl_rl.bench`, a description and the settings it takes,
each with the smallest value that makes sense."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a command for each measurement, with `run` as its function."""
    measured = parser.add_subparsers(required=True, metavar="WHAT")
    for name, (about, numbers) in _BENCHES.items():
        bench = measured.add_parser(name, help=about)
        bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
        for flag, _, explanation in numbers:
            bench.add_argument(flag, type=int, metavar="N", help=explanation)
        bench.add_argument("--quick", action="store_true", help="smaller defaults: does it work at all?")
        bench.set_defaults(command=run, bench=name)


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure, print the table and write the figures. Raises ConfigError for invalid options, before measuring."""
    bench = importlib.import_module(f"repl_rl.bench.{options.bench}")
    settings = bench.QUICK if options.quick else bench.DEFAULT
    given: dict[str, int] = {}
    for flag, least, _ in _BENCHES[options.bench][1]:
        name = flag.removeprefix("--").replace("-", "_")
        if (value := getattr(options, name)) is None:
            continue
        if value < least:
            raise ConfigError(f"{flag} {value}: give at least {least}")
        given[name] = value
    settings = dataclasses.replace(settings, **given)
    if options.json:
        require_file("--json", options.json)
    report = bench.measure(settings, lambda text: console.print(text, style="dim", highlight=False))
    console.print(bench.table(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0
