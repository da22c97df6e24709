"""`repl-rl bench`: its settings and arguments, and what it prints and writes.

The measurements are the modules beside this one. Importing this loads nothing heavy.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from repl_rl.errors import ConfigError
from repl_rl.utils.folders import require_file

Say = Callable[[str], None]
"""Is told of the progress."""
FEW = 16
"""The number of sessions that many sessions are compared with."""


def _setting(usual: Any, quick: Any, about: str = "", least: int = 1) -> Any:
    """A setting, and its value under `--quick`. With a text about it, it has a flag, for numbers from `least` on."""
    return field(default=usual, metadata={"quick": quick, "about": about, "least": least})


@dataclass(frozen=True, slots=True)
class KernelsSettings:
    """Sessions of a kernel pool beside stock Jupyter kernels. Raises ConfigError for an invalid `many`."""

    sessions: int = _setting(64, 8, "live sessions")
    rounds: int = _setting(5, 2, "how often both take their turn")
    stock_kernels: int | None = _setting(None, 2, "default: as many as cores and memory allow")
    many: int = _setting(512, 32, "sessions of the last part, 0: none", least=0)
    starts: int = _setting(3, 1)
    """Per round, like all that follow. Lines are per session."""
    solo_lines: int = _setting(225, 45)
    raises: int = _setting(20, 5)
    fleet_lines: int = _setting(90, 27)
    many_lines: int = _setting(18, 9)
    many_rounds: int = _setting(3, 1)
    forks: int = _setting(30, 5)
    """In all, as of the lines run again."""

    def __post_init__(self) -> None:
        if self.many != 0 and self.many <= FEW:
            raise ConfigError(f"--many {self.many}: give more than {FEW}, or 0 to leave that part out")


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Rollouts beside plain generation and TRL's tool loop."""

    trajectories: int = _setting(256, 16, "in a batch")
    concurrency: int = _setting(64, 8, "lines in the engine's batch")
    """For all sides."""
    kernels: int = _setting(128, 12, "trajectories in flight")
    """While one runs a line, another samples in its slot."""
    lines: int = _setting(16, 4, "of each trajectory")
    line_tokens: int = _setting(48, 48)
    rounds: int = _setting(5, 1, "how often both take their turn")
    trl_trajectories: int = _setting(64, 8, "beside TRL, 0: none", least=0)
    trl_lines: int = _setting(8, 3)
    """2 at least: the last one calls no tool."""
    trl_rounds: int = _setting(3, 1)
    tool_latency_ms: tuple[float, ...] = _setting((0.0, 50.0), (0.0, 5.0))


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Loss and gradient beside TRL's own."""

    trajectories: int = _setting(16, 4, "in a batch")
    group_size: int = _setting(1, 1, "how many of them have the same prompt")
    prompt_tokens: int = _setting(40, 40, "of the longest prompt")
    """The shortest has half of it."""
    tokens: int = _setting(256, 80, "of the longest completion", least=40)
    """The shortest has a quarter of it, a line at least."""
    rounds: int = _setting(3, 1, "how often both take their turn")
    vocabularies: tuple[int | None, ...] = _setting((None, 150_000), (None, 2_000))
    """Vocabulary sizes. None is nano's own; a larger one gets new, random rows."""


_BENCHES: dict[str, tuple[str, type[Any]]] = {
    "kernels": ("sessions of a kernel pool beside stock Jupyter kernels", KernelsSettings),
    "rollout": ("rollouts beside plain generation and TRL's tool loop", RolloutSettings),
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
    values = {each.name: each.metadata["quick"] for each in fields(kind)} if options.quick else {}
    for each in fields(kind):
        if (value := getattr(options, each.name, None)) is not None:
            if value < (least := each.metadata["least"]):
                raise ConfigError(f"--{each.name.replace('_', '-')} {value}: give at least {least}")
            values[each.name] = value
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
    found = ((name, value) for name, value in report.items() if isinstance(value, dict))
    peers = {name: value for name, value in found if value.keys() <= report.keys()}
    shown = Table("", "ours", *peers, title=title, title_justify="left", show_header=bool(peers))
    for name, value in report.items():
        if name in peers:
            continue
        if isinstance(value, dict):
            for part, figure in value.items():
                shown.add_row(f"{name}.{part}", _figure(figure))
        else:
            others = [peer[name] for peer in peers.values() if name in peer]
            shown.add_row(name, *map(_figure, value if isinstance(value, list) else [value, *others]))
    return shown


def _figure(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
