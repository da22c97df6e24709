"""`repl-rl view`: opens a run in the viewer, prints a file of rollouts, or exports either as one HTML file.

    view RUN                    the summary, a fresh report.html, then the viewer, until Ctrl-C
    view RUN --summary          without the viewer; of several, with the held-out rates over each other
    view RUN --export [FILE]    the viewer as one file, by default RUN/viewer.html
    view RUN RUN ...            runs and files over each other: curves, held-out rates, sessions of the same task
    view FILE.jsonl             its trajectories in the terminal; with --serve or --export as above
    view FILE.jsonl --summary   a few lines about them

A browser is opened only when the command runs in a terminal and a graphical display is available. Importing this loads
nothing heavy.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from repl_rl.errors import ConfigError, ReplRLError, RunError
from repl_rl.trajectory import Trajectory, read_labelled
from repl_rl.utils.text import visible
from repl_rl.view.terminal import before_after_table, print_trajectory, say
from repl_rl.view.words import is_graded, outcome, solved

if TYPE_CHECKING:
    from repl_rl.view.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `repl-rl view`."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders, or .jsonl files of rollouts")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument(
        "--summary", action="store_true", help="print a short summary, of a run also write report.html; serve nothing"
    )
    actions.add_argument(
        "--serve", action="store_true", help="open a file in the viewer too, which run folders do anyway"
    )
    actions.add_argument(
        "--export", type=Path, nargs="?", const=Path(), metavar="FILE", help="write the viewer as one HTML file"
    )
    parser.add_argument("--most", type=int, metavar="N", help="trajectories in an export (default: what 25 MB hold)")
    parser.add_argument("--port", type=int, default=0, help="of the viewer on 127.0.0.1 (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    parser.set_defaults(command=command)


def command(options: argparse.Namespace, console: Console) -> int:
    """Entry point; returns the exit code."""
    targets: list[Path] = options.runs
    _require(targets)
    if options.most is not None and (options.export is None or options.most < 1):
        raise ConfigError(f"--most {options.most}: it takes a number from 1 on, and goes with --export")
    if options.export is not None:
        _export(targets, options.export, options.most, console)
    elif options.serve or (not options.summary and (len(targets) > 1 or targets[0].is_dir())):
        _serve(targets, options.port, not options.no_browser, console)
    else:
        for target in targets:
            view(target, console, options.summary)
        if options.summary and len(targets) > 1:
            _print_compared(targets, console)
    return 0


def view(target: Path, console: Console, is_short: bool = False) -> None:
    """Refresh the report of a run folder and print its summary, or print the trajectories of a `.jsonl` file.

    With `is_short`, only the summary of a file is printed. Raises RunError if `target` is neither.
    """
    from repl_rl.view.run import read_run, rollouts_summary

    _require([target])
    if not target.is_dir():
        _print_file(target, console, is_short)
        return
    run = read_run(target)
    _print_summary(run, console)
    if run.rollouts:
        newest = run.rollouts[-1]
        say(console, f"step {newest.step}:")
        for sentence in rollouts_summary(newest.trajectories):
            say(console, f"  {sentence}")
    _refresh_report(target, console)


def _require(targets: Sequence[Path]) -> None:
    for target in targets:
        if not target.exists():
            raise RunError(f"nothing to view at {target}: give a run folder or a .jsonl file of rollouts")
        if target.is_file() and not target.stat().st_size:
            raise RunError(f"{target} is empty: it holds no trajectory")


def _serve(targets: Sequence[Path], port: int, browser: bool, console: Console) -> None:
    import asyncio
    import webbrowser

    from repl_rl.view.run import read_run
    from repl_rl.view.viewer.api import RunApi
    from repl_rl.view.viewer.indexer import following

    api = RunApi(*targets)
    folders = [target for target in targets if target.is_dir()]
    with following(api.targets, api.index) as look_again:  # indexes while the server's modules load
        from repl_rl.view.viewer.server import serve

        for folder in folders:
            _print_summary(read_run(folder, with_rollouts=False), console)

        def ready(address: str) -> None:
            say(console, f"viewer: {address}", style="bold")
            say(console, "Ctrl-C ends it")
            in_thread = asyncio.get_running_loop().run_in_executor
            # A browser that gets a window of its own; one in text mode would take over this terminal.
            names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
            has_screen = sys.platform == "darwin" or any(os.environ.get(name) for name in names)
            if browser and console.is_terminal and has_screen:
                in_thread(None, webbrowser.open, address)
            for folder in folders:
                in_thread(None, _refresh_report, folder, console)

        asyncio.run(serve(api, look_again, port, ready))


def _refresh_report(folder: Path, console: Console) -> None:
    from repl_rl.view.viewer.export import write_report

    try:
        say(console, f"report: {write_report(folder)}")
    except ReplRLError as error:
        say(console, f"note: the report is not written: {error}", style="yellow")


def _export(targets: Sequence[Path], file: Path, most: int | None, console: Console) -> None:
    from repl_rl.view.viewer.api import RunApi
    from repl_rl.view.viewer.export import export

    if file == Path():  # no name was given
        if len(targets) > 1:
            raise ConfigError("--export of several runs needs the name of a file to write: --export FILE.html")
        [target] = targets
        file = target / "viewer.html" if target.is_dir() else target.with_suffix(".html")
    if file.exists() and any(map(file.samefile, targets)):
        raise ConfigError(f"--export {file} is the file to view itself; give another name")
    exported, total = export(RunApi(*targets), file, most)
    say(console, f"{file}: {exported} of {total} trajectories, {file.stat().st_size / 1e6:.1f} MB")


def _print_summary(run: Run, console: Console) -> None:
    from repl_rl.view.health import health
    from repl_rl.view.run import summary
    from repl_rl.view.state import state

    head, *others = summary(run)
    say(console, f"{head}, {state(run).word}")
    for sentence in others:
        say(console, sentence)
    signs = health(run)
    if signs:
        say(console, "the last steps: " + ", ".join(f"{sign.name} {sign.value}" for sign in signs))
    for sign in signs:
        if sign.sentence:
            say(console, f"  {sign.sentence}", style="yellow")
    if run.before is not None and run.after is not None:
        console.print(before_after_table(run.before, run.after))
    for note in run.notes:
        say(console, f"note: {note}", style="yellow")


def _print_compared(targets: Sequence[Path], console: Console) -> None:
    from repl_rl.view.viewer.api import RunApi
    from repl_rl.view.viewer.indexer import update

    api = RunApi(*targets)
    update(api.targets, api.index)
    for row in api.run()["compared"]:
        if row["family"] != "all" or not row["rate"]:
            continue
        names = [row["run"], row["model"], row["dialect"]]
        label = ", ".join(name for name in names if name)
        change = f"; over the first: {_estimate(row['change'], ' points')}" if row["change"] else ""
        say(console, f"{label}, step {row['step']}: solved {_estimate(row['rate'], '%')}{change}")


def _estimate(estimate: Mapping[str, float], unit: str) -> str:
    value, low, high = (100 * estimate[name] for name in ("value", "low", "high"))
    return f"{value:.1f}{unit} [{low:.1f}, {high:.1f}] on {estimate['problems']} problems"


def _print_file(path: Path, console: Console, is_short: bool) -> None:
    from repl_rl.view.run import rollouts_summary

    notes: list[str] = []
    groups: dict[str, list[Trajectory]] = {}  # several models can't be told about together
    for label, trajectory in read_labelled(path, notes):
        groups.setdefault(visible(label), []).append(trajectory)
    if not groups:
        reason = f" that can be read: {notes[0]}" if notes else ""
        raise RunError(f"{path} holds no trajectory{reason}")
    if not is_short:
        for trajectories in groups.values():
            for trajectory in trajectories:
                print_trajectory(console, trajectory)
    for note in notes:
        say(console, f"note: {note}", style="yellow")
    for label, trajectories in groups.items():
        if is_short:
            if label:
                say(console, label)
            for sentence in rollouts_summary(trajectories):
                say(console, sentence)
        else:
            solves = sum(map(solved, trajectories))
            graded = sum(map(is_graded, trajectories))
            say(console, outcome(label, len(trajectories), solves, graded))
