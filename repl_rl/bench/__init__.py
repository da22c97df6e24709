"""`repl-rl bench`: its arguments, and what it prints and writes.

The measurements are the modules beside this one. Importing this loads nothing heavy.
"""

import argparse
import importlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from repl_rl.bench.settings import KernelsSettings, RolloutSettings, TrainSettings
from repl_rl.errors import ConfigError
from repl_rl.utils.folders import require_file

_BENCHES: dict[str, tuple[str, type[Any]]] = {
    "kernels": ("sessions of a kernel pool beside stock Jupyter kernels", KernelsSettings),
    "rollout": ("rollouts beside plain generation", RolloutSettings),
    "train": ("loss and gradient beside TRL's own", TrainSettings),
}
"""What `repl-rl bench` measures: for each module of `repl_rl.bench`, a description and its settings."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a command for each measurement, with `run` as its function."""
    measured = parser.add_subparsers(required=True, metavar="WHAT")
    for name, (about, settings) in _BENCHES.items():
        bench = measured.add_parser(name, help=about)
        bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
        for each in fields(settings):
            if explanation := each.metadata["about"]:
                usual = "" if each.default is None else f" (default: {each.default})"
                flag = f"--{each.name.replace('_', '-')}"
                bench.add_argument(flag, type=int, metavar="N", help=explanation + usual)
        bench.add_argument("--quick", action="store_true", help="smaller defaults: does it work at all?")
        bench.set_defaults(command=run, bench=name)


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure, print the table and write the figures. Raises ConfigError for invalid options, before measuring."""
    _, kind = _BENCHES[options.bench]
    values = {}
    for setting in fields(kind):
        if options.quick:
            values[setting.name] = setting.metadata["quick"]
        value = getattr(options, setting.name, None)
        if value is None:
            continue
        least = setting.metadata["least"]
        if value < least:
            raise ConfigError(f"--{setting.name.replace('_', '-')} {value}: give at least {least}")
        values[setting.name] = value
    settings = kind(**values)
    if options.json:
        require_file("--json", options.json)
    bench = importlib.import_module(f"repl_rl.bench.{options.bench}")
    report = bench.measure(settings, lambda text: console.print(text, style="dim", highlight=False))
    console.print(table(options.bench, report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def table(title: str, report: dict[str, Any]) -> Table:
    """All figures by their names. Those of a peer with the same names stand beside ours, as do several of a name."""
    peers = {}
    for name, value in report.items():
        if isinstance(value, dict) and value.keys() <= report.keys():
            peers[name] = value
    shown = Table("", "ours", *peers, title=title, title_justify="left", show_header=bool(peers))
    for name, value in report.items():
        if name in peers:
            continue
        if isinstance(value, dict):
            for part, figure in value.items():
                shown.add_row(f"{name}.{part}", _figure(figure))
            continue
        figures = value
        if not isinstance(value, list):
            figures = [value]
            figures += [peer[name] for peer in peers.values() if name in peer]
        shown.add_row(name, *map(_figure, figures))
    return shown


def _figure(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
