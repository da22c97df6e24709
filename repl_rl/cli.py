"""`repl-rl`: train, rollout, eval, view, replay, bench, doctor, nano. A ReplRLError is one message and exit code 2."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from repl_rl.config import load_config, parse_config, shipped_configs
from repl_rl.engine.environment import silence_libraries
from repl_rl.errors import ConfigError, ReplRLError
from repl_rl.models.nano import SHIPPED
from repl_rl.run.evaluation import command as evaluation
from repl_rl.trajectory import Task, write_jsonl
from repl_rl.utils.distributed import is_main_process, leave
from repl_rl.view import command as viewing
from repl_rl.view.replay import command as replay

if TYPE_CHECKING:
    from repl_rl.kernel import KernelPool, KernelSource


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns the exit code."""
    options = _parser().parse_args(arguments)
    console = Console(quiet=not is_main_process())
    if (here := os.getcwd()) not in sys.path:  # a config may name modules in this folder by import path
        sys.path.append(here)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    if not options.verbose:
        silence_libraries(python_warnings=True)
    try:
        return int(options.command(options, console))
    except ReplRLError as error:
        Console(stderr=True).print(f"repl-rl: {error}", style="bold red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted", style="bold")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="repl-rl", description="RL for models that type into a live Python interpreter"
    )
    parser.add_argument("--verbose", action="store_true", help="show the libraries' own logs and warnings")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shipped = f"a YAML file, or one of: {', '.join(shipped_configs())}"

    train = commands.add_parser("train", help="train a model")
    train.add_argument("config", nargs="?", help=shipped)
    train.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a value of the config")
    train.add_argument("--resume", type=Path, metavar="RUN", help="go on with the run in this folder")
    train.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders go (default: runs)")
    train.add_argument(
        "--dry-run", action="store_true", help="check everything that needs no model and no GPU, say what would be done"
    )
    train.set_defaults(command=_train)

    rollout = commands.add_parser("rollout", help="sample trajectories")
    rollout.add_argument("config", nargs="?", help=shipped)
    rollout.add_argument("--set", action="append", default=[], metavar="a.b=c")
    rollout.add_argument("--model", help="nano, a checkpoint folder or a hub id")
    rollout.add_argument("--task", help="the problem; without it, held-out problems of the config")
    rollout.add_argument("-n", type=int, default=1, help="rollouts of the task, or number of problems (default: 1)")
    rollout.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    rollout.add_argument(
        "--attach", action="store_true", help="let Jupyter clients attach to the session of one rollout"
    )
    rollout.set_defaults(command=_rollout)

    compared = "solve rates on held-out problems, of one model or of several beside each other"
    evaluation.add_arguments(commands.add_parser("eval", help=compared), shipped)

    viewing.add_arguments(commands.add_parser("view", help="look at a run folder or a file of rollouts"))

    replay.add_arguments(commands.add_parser("replay", help="run rollouts again as notebooks, and say what differs"))

    measured = commands.add_parser("bench", help="measure this machine").add_subparsers(required=True, metavar="WHAT")
    for name, (about, numbers) in _BENCHES.items():
        bench = measured.add_parser(name, help=about)
        bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
        for flag, kind, explanation in numbers:
            bench.add_argument(flag, type=kind, metavar="N", help=explanation)
        if name in ("kernels", "rollout", "train"):
            bench.add_argument("--quick", action="store_true", help="smaller defaults: does it work at all?")
        bench.set_defaults(command=_bench, bench=name, quick=False)

    commands.add_parser("doctor", help="what this machine has, and what brings the rest").set_defaults(command=_doctor)

    nano = commands.add_parser("nano", help="the model that ships with the package")
    build = nano.add_subparsers(required=True, metavar="COMMAND").add_parser("build", help="train it from scratch")
    build.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    build.add_argument("--seed", type=int, default=0)
    build.add_argument("--model", choices=SHIPPED, default="nano", help="which one (default: nano)")
    build.set_defaults(command=_nano_build)
    return parser


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
    "train": (
        "loss and gradient beside TRL's own",
        [
            ("--trajectories", int, "in a batch (default: 16)"),
            ("--tokens", int, "of the longest completion (default: 256)"),
            ("--rounds", int, "how often both take their turn (default: 3)"),
        ],
    ),
    "conventions": (
        "calling conventions, each trained for the same time",
        [("--minutes", float, "of training, for each (default: 1.4)"), ("--seed", int, "default: 0")],
    ),
    "view": ("the run viewer on a large run", [("--trajectories", int, "in the run (default: 100000)")]),
}
"""What `repl-rl bench` measures: for each module of `repl_rl.bench`, a description and the settings it takes."""


def _train(options: argparse.Namespace, console: Console) -> int:
    from repl_rl.run.progress import Progress
    from repl_rl.run.training import prepare, train

    if options.config is None and options.resume is None:
        raise ConfigError("give a config to train, or --resume RUN")
    config = load_config(options.config, tuple(options.set)) if options.config else None
    if options.dry_run:
        from repl_rl.run.dryrun import dry_run, print_dry_run
        from repl_rl.run.folder import open_run

        if options.resume is not None:
            _, config = open_run(options.resume, config)
        assert config is not None
        print_dry_run(console, dry_run(config, options.runs))
        return 0
    prepared = prepare(config, options.runs, options.resume)
    console.print(f"run folder: {prepared.folder.path}", highlight=False)
    try:
        outcome = train(prepared, Progress(console))
    except KeyboardInterrupt:
        _say_how_to_resume(console, prepared.folder.path)
        return 130
    leave()
    if not is_main_process():
        return 0
    from repl_rl.view import before_after_table, write_report

    try:
        report = str(write_report(outcome.folder.path))
    except ReplRLError as error:  # the run is complete without it
        report = f"not written: {error}"
    if outcome.stopped_at is not None:
        console.print(f"stopped at step {outcome.stopped_at}; everything up to there is saved", highlight=False)
        _say_how_to_resume(console, outcome.folder.path)
        return 130
    assert outcome.before is not None
    assert outcome.after is not None
    console.print(before_after_table(outcome.before, outcome.after))
    console.print(f"trained in {outcome.train_seconds / 60:.1f} minutes; report: {report}", highlight=False)
    return 0


def _say_how_to_resume(console: Console, folder: Path) -> None:
    console.print(f"go on with: repl-rl train --resume {folder}", highlight=False, soft_wrap=True)


def _rollout(options: argparse.Namespace, console: Console) -> int:
    from repl_rl.rollout.service import open_service
    from repl_rl.tasks import load_tasks

    if options.n < 1:
        raise ConfigError(f"-n {options.n}: give at least one rollout")
    overrides = list(options.set)
    if options.model:
        overrides.append(f"model.path={options.model}")
    elif options.config is None:
        raise ConfigError("give a config or --model")
    config = load_config(options.config, tuple(overrides)) if options.config else parse_config({}, tuple(overrides))
    if options.task:
        tasks = [Task(id=f"task-{number}", question=options.task, answer="") for number in range(options.n)]
    else:
        tasks = load_tasks(config.tasks, "heldout", 0, options.n)
    with open_service(config, _attached(options, console)) as service:
        trajectories = service.generate(tasks, config.sampling.seeded(f"{config.seed}/rollout"))
    write_jsonl(options.out, trajectories)
    from repl_rl.view import print_trajectory

    for trajectory in trajectories[:4]:
        print_trajectory(console, trajectory)
    console.print(f"{len(trajectories)} trajectories in {options.out}", highlight=False)
    return 0


def _attached(options: argparse.Namespace, console: Console) -> Callable[[KernelPool], KernelSource] | None:
    """With `--attach`: say where to attach, and keep the session until Enter is pressed."""
    if not options.attach:
        return None
    if options.n != 1:
        raise ConfigError(f"--attach is for one rollout at a time; leave out -n {options.n}")
    from repl_rl.doctor import attach_remedy, jupyter_console
    from repl_rl.rollout.service import AttachedKernels

    command = jupyter_console()
    if command is None:
        missing = f"jupyter console, which attaches to a session, is not installed; bring it with: {attach_remedy()}"
        console.print(missing, style="yellow", markup=False, highlight=False, soft_wrap=True)

    def say(file: Path) -> None:
        console.print(f"attach with: {command or 'jupyter console'} --existing {file}", highlight=False, soft_wrap=True)

    def wait() -> None:
        console.print("the rollout is over and its session lives on; press Enter to end it")
        with contextlib.suppress(EOFError):
            input()

    return lambda pool: AttachedKernels(pool, say, wait)


def _bench(options: argparse.Namespace, console: Console) -> int:
    bench = importlib.import_module(f"repl_rl.bench.{options.bench}")
    settings = bench.QUICK if options.quick else bench.DEFAULT
    given = {name: getattr(options, name, None) for name in settings.__dataclass_fields__}
    settings = dataclasses.replace(settings, **{name: value for name, value in given.items() if value is not None})
    if options.json and not options.json.parent.is_dir():  # before any time is spent on measuring
        raise ConfigError(f"--json {options.json}: there is no folder {options.json.parent}; make it first")
    report = bench.measure(settings, lambda text: console.print(text, style="dim", highlight=False))
    console.print(bench.table(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _doctor(options: argparse.Namespace, console: Console) -> int:
    from repl_rl.doctor import print_report

    return 0 if print_report(console) else 1


def _nano_build(options: argparse.Namespace, console: Console) -> int:
    from repl_rl.models.nano.build import RECIPES, build

    build(options.out, seed=options.seed, recipe=RECIPES[options.model])
    console.print(f"{options.model} is in {options.out}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
