"""`repl-rl bench`: its arguments, what it prints and writes, and a description of the machine for its reports.

The measurements are the modules beside this one. Importing this loads nothing heavy.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from repl_rl.utils.folders import require_file

_BENCHES: dict[str, tuple[str, list[tuple[str, type, str]]]] = {
    "kernels": (
        "sessions of a kernel pool beside stock Jupyter kernels",
        [
            ("--sessions", int, "live sessions (default: 64)"),
            ("--rounds", int, "how often both take their turn (default: 5)"),
            ("--stock-kernels", int, "default: as many as cores and memory allow"),
            ("--many", int, "sessions of the last part, 0: none (default: 512)"),
        ],
    ),
    "profile": (
        "sessions of a sandbox profile: start, memory, the first use of each package beside later ones",
        [
            ("--profile", str, "a shipped profile's name, or a .toml file (default: math)"),
            ("--sessions", int, "live sessions (default: 16)"),
            ("--rounds", int, "fresh sessions for each package (default: 15)"),
        ],
    ),
    "rollout": (
        "rollouts beside plain generation and TRL's tool loop",
        [
            ("--trajectories", int, "in a batch (default: 256)"),
            ("--concurrency", int, "places in the engine's batch (default: 64)"),
            ("--kernels", int, "trajectories in flight (default: 128)"),
            ("--lines", int, "of each trajectory (default: 16)"),
            ("--rounds", int, "how often both take their turn (default: 5)"),
            ("--trl-trajectories", int, "beside TRL, 0: none (default: 64)"),
            ("--deep", int, "trajectories of 205 lines, 0: none (default: 16)"),
        ],
    ),
    "trees": (
        "trees of 16 leaves beside independent sessions",
        [
            ("--groups", int, "trees in a batch (default: 4)"),
            ("--rounds", int, "how often all take their turn (default: 5)"),
        ],
    ),
    "train": (
        "loss and gradient beside TRL's own",
        [
            ("--trajectories", int, "in a batch (default: 16)"),
            ("--group-size", int, "how many of them have the same prompt (default: 1)"),
            ("--prompt-tokens", int, "of the longest prompt (default: 40)"),
            ("--tokens", int, "of the longest completion (default: 256)"),
            ("--rounds", int, "how often both take their turn (default: 3)"),
        ],
    ),
    "conventions": (
        "calling conventions, each trained for the same time",
        [("--minutes", float, "of training, for each (default: 1.4)"), ("--seed", int, "default: 0")],
    ),
    "asynchronous": (
        "training that waits for its rollouts beside training that doesn't: training runs, an hour of them",
        [
            ("--seeds", int, "of each arm (default: 3)"),
            ("--steps", int, "of each run (default: 30)"),
            ("--line-ms", float, "what each line takes longer (default: 50)"),
            ("--sessions", int, "how many may be at work at once, in every arm (default: 64)"),
            ("--runs", Path, "folder for the figures of each run, which is not repeated (default: runs/asynchronous)"),
        ],
    ),
    "branching": (
        "what trees and estimators make of long sessions: training runs, hours of them",
        [
            ("--seeds", int, "of each arm (default: 5)"),
            ("--steps", int, "of each run (default: 20)"),
            ("--jobs", int, "runs side by side (default: 2)"),
            ("--length", int, "3, 10, 20 or 40 (default: all)"),
            ("--runs", Path, "folder for the figures of each run, which is not repeated (default: runs/branching)"),
        ],
    ),
    "cluster": (
        "rollouts by way of Ray beside those of a process of this machine",
        [
            ("--trajectories", int, "in a batch (default: 128)"),
            ("--kernels", int, "trajectories in flight (default: 32)"),
            ("--lines", int, "of each trajectory (default: 8)"),
            ("--rounds", int, "how often both take their turn (default: 7)"),
        ],
    ),
    "capacity": (
        "how many cores and engines rollouts need: a model, checked by real rollouts",
        [
            ("--trajectories", int, "of each real rollout (default: 256)"),
            ("--most-gpus", int, "of the fleets that the model is asked about (default: 512)"),
            ("--rates", Path, "an earlier report (--json), whose rates are taken; nothing is measured"),
            ("--step-ms", float, "a step of an engine on a GPU (default: 12)"),
            ("--sequence-us", float, "a step, more for each line in it (default: 40)"),
            ("--read-us", float, "a step, more for each token that it reads (default: 20)"),
            ("--places", int, "lines that an engine samples at once (default: 256)"),
            ("--in-flight", int, "sessions for each GPU (default: 704)"),
            ("--lines", int, "of a session, on average (default: 20)"),
            ("--line-tokens", int, "sampled tokens of a line, on average (default: 40)"),
            ("--tool-s", float, "what a line waits for without a core, on average (default: 0.3)"),
            ("--cell-ms", float, "what a line computes, on average (default: as measured, with nano's lines)"),
        ],
    ),
    "view": ("the run viewer on a large run", [("--trajectories", int, "in the run (default: 100000)")]),
}
"""What `repl-rl bench` measures: for each module of `repl_rl.bench`, a description and the settings it takes."""
_QUICK = ("kernels", "profile", "rollout", "trees", "asynchronous", "branching", "cluster", "capacity", "train")
_METAVARS: dict[type, str] = {Path: "PATH", str: "NAME"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a command for each measurement, with `run` as its function."""
    measured = parser.add_subparsers(required=True, metavar="WHAT")
    for name, (about, numbers) in _BENCHES.items():
        bench = measured.add_parser(name, help=about)
        bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
        for flag, kind, explanation in numbers:
            bench.add_argument(flag, type=kind, metavar=_METAVARS.get(kind, "N"), help=explanation)
        if name in _QUICK:
            bench.add_argument("--quick", action="store_true", help="smaller defaults: does it work at all?")
        bench.set_defaults(command=run, bench=name, quick=False)


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


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Cores that this process may use, date, and versions; None for a package that is not installed."""
    return {
        "cores": cores(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
