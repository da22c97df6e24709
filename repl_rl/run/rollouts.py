"""`repl-rl rollout`: its arguments, and what it prints and writes. Importing this loads nothing heavy."""

from __future__ import annotations

import argparse
import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from repl_rl.errors import ConfigError, ReplRLError
from repl_rl.run import recorded
from repl_rl.trajectory import Task, Trajectory, write_jsonl
from repl_rl.utils.folders import require_file
from repl_rl.view.words import counted

if TYPE_CHECKING:
    from repl_rl.config import Config
    from repl_rl.kernel import KernelPool, KernelSource

_SHOWN = 4
"""How many trajectories are printed where a file holds them all."""


def add_arguments(parser: argparse.ArgumentParser, config_help: str) -> None:
    """Add the arguments of `repl-rl rollout`, and set `run` as its command."""
    parser.add_argument("config", nargs="?", help=config_help)
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a value of the config")
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="a run's folder (with its config, if no other is given), a checkpoint, a hub id, or nano",
    )
    parser.add_argument("--task", metavar="TEXT", help="the problem; without it, held-out problems of the config")
    parser.add_argument("--answer", metavar="TEXT", help="the answer to --task: shows grades, rewards and advantages")
    parser.add_argument("-n", type=int, default=1, help="rollouts of the task, or number of problems (default: 1)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.jsonl", help="keep the rollouts; as they end, in FILE.part.jsonl"
    )
    parser.add_argument(
        "--attach", action="store_true", help="let Jupyter clients attach to the session of one rollout"
    )
    recorded.add_arguments(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Roll out, grade what has an answer, print and write. Raises ConfigError for invalid options before loading."""
    if options.n < 1:
        raise ConfigError(f"-n {options.n}: give at least one rollout")
    if options.source is None and options.line is not None:
        raise ConfigError(f"--line {options.line}: say of which session, with --from FILE.jsonl#N")
    if options.source is not None and (options.attach or options.task is not None):
        raise ConfigError("--from goes on from a recorded session; leave out --task and --attach")
    if options.attach and options.n != 1:
        raise ConfigError(f"--attach is for one rollout at a time; leave out -n {options.n}")
    require_task(options)
    if options.out is not None:
        require_file("--out", options.out)
    if options.source is not None:
        return recorded.roll_out(options, console)
    config = _config(options, console)
    from repl_rl.rollout import check_rollouts, credit, open_service, score
    from repl_rl.run.progress import Progress
    from repl_rl.tasks import grade
    from repl_rl.view import print_trajectory
    from repl_rl.view.run import unanswered
    from repl_rl.view.watch import Board, TerminalCanvas, watched

    tasks = asked_tasks(options, config, options.n)
    task_count = len(tasks)  # a data set may have fewer problems than -n asks for
    progress = Progress(console)
    attached = _attached(options, console)  # says what is missing, before all else
    checked = check_rollouts(config)
    completed: dict[int, Trajectory] = {}
    part_file = options.out and options.out.with_suffix(".part.jsonl")

    def keep(index: int, trajectory: Trajectory) -> None:
        """Write it as it ends: if this process is killed, those that have ended are left."""
        completed[index] = trajectory
        if part_file is not None:
            with contextlib.suppress(OSError):  # a full disk; the whole file is still to come
                write_jsonl(part_file, [trajectory], append=len(completed) > 1)

    failure: KeyboardInterrupt | ReplRLError | None = None
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(progress.interrupts())
            sampling = config.sampling.seeded(f"{config.seed}/rollout")
            if console.is_terminal and task_count == 1 and not options.attach:  # shown line by line
                board = Board(TerminalCanvas(console, shows_ended=False), 1, f"loading {config.model.path}")
                completed = dict(enumerate(watched(config, tasks[0], board, sampling, checked)))
            else:
                with progress.stage("loading the model and the first kernels"):
                    service = stack.enter_context(open_service(config, attached, task_count, checked))
                if not options.attach:  # which prints and waits for Enter meanwhile
                    progress.say(f"{counted(task_count, 'rollout')} ...")
                    service.watched = partial(progress.part, "sessions")
                service.generate(tasks, sampling, on_end=keep)
    except (KeyboardInterrupt, ReplRLError) as error:
        failure = error
    order = sorted(completed)
    trajectories = [completed[index] for index in order]
    tasks = [tasks[index] for index in order]
    if failure and all(trajectory.is_void for trajectory in trajectories):
        raise failure
    if tasks[0].answer:
        scored = score(tasks, trajectories, grade, checked.table)
        trajectories = [item.trajectory for item in scored]
        if options.task is not None and options.n > 1 and not failure:  # a group
            credited = credit(scored, options.n, config.credit, config.rewards.outcome)
            trajectories = [item.trajectory for item in credited]
    if options.out is not None:
        write_jsonl(options.out, trajectories)
        part_file.unlink(missing_ok=True)
        shutil.rmtree(part_file.with_suffix(".images"), ignore_errors=True)
    for trajectory in trajectories if options.out is None else trajectories[:_SHOWN]:
        print_trajectory(console, trajectory)
    count = f"{len(trajectories)} of {task_count}" if failure else str(len(trajectories))
    noun = "trajectories" if task_count > 1 else "trajectory"
    summary = f"{count} {noun}"
    if options.out is not None:
        summary += f" in {options.out}"
    if tasks[0].answer:
        solved = sum((trajectory.outcome_reward or 0.0) > 0 for trajectory in trajectories)
        summary += f", {solved} solved"
    reasons = unanswered(trajectories)
    if reasons:
        summary += f"; without an answer, {reasons}"
    progress.say(summary)
    if failure:
        raise failure
    return 0


def _config(options: argparse.Namespace, console: Console) -> Config:
    """The config, with a run's folder as its model replaced by the run's newest checkpoint. Without a config, the model
    is sampled as its own generation settings say, and this is printed."""
    from repl_rl.config import load_config, parse_config
    from repl_rl.models.find import own_sampling
    from repl_rl.run.evaluation.plan import checkpoint_of

    overrides = list(options.set)
    source = options.config
    if options.model is None and source is None:
        raise ConfigError("give a config or --model")
    if options.model is not None:
        overrides.append(f"model.path={options.model}")
        config_of_run = Path(options.model).expanduser() / "config.yaml"  # if the model is a run's folder
        if source is None and config_of_run.is_file():
            source = str(config_of_run)
    if source is None:
        settings = own_sampling(checkpoint_of(options.model))
        config = parse_config({"sampling": settings}, tuple(overrides))
        applied = []  # those that no override has replaced
        for name, value in settings.items():
            if getattr(config.sampling, name) == value:
                applied.append(f"{name} {value}")
        if applied:
            text = f"{', '.join(applied)}: the model's generation settings, unless --set sampling... says otherwise"
            console.print(text, highlight=False, soft_wrap=True)
    else:
        config = load_config(source, tuple(overrides))
    model = config.model.model_copy(update={"path": checkpoint_of(config.model.path)})
    return config.model_copy(update={"model": model})


def require_task(options: argparse.Namespace) -> None:
    """Raises ConfigError for an `--answer` without a `--task`."""
    if options.answer is not None and options.task is None:
        raise ConfigError(f"--answer {options.answer!r} belongs to a --task; held-out problems have their own answers")


def asked_tasks(options: argparse.Namespace, config: Config, count: int) -> list[Task]:
    """`--task`, so many times, or else so many held-out problems. Raises ConfigError for an unreadable `--answer`."""
    from repl_rl.rollout import environment_pays
    from repl_rl.tasks import load_tasks, require_gradable

    compared = not environment_pays(config)
    if options.task is None:
        return load_tasks(config.tasks, "heldout", 0, count, compared=compared)
    tasks = [Task("task", options.task, options.answer or "")] * count
    if options.answer is not None and compared:
        require_gradable(tasks[:1])
    return tasks


def _attached(options: argparse.Namespace, console: Console) -> Callable[[KernelPool], KernelSource] | None:
    """For `--attach`: kernels that say where to attach, and keep the session until Enter is pressed. Else None."""
    if not options.attach:
        return None
    from repl_rl.rollout import AttachedKernels
    from repl_rl.utils.machine import install_command, jupyter_console

    command = jupyter_console()
    if command is None:
        remedy = install_command("attach")
        missing = f"jupyter console, which attaches to a session, is not installed; bring it with: {remedy}"
        console.print(missing, style="yellow", markup=False, highlight=False, soft_wrap=True)

    def say(file: Path) -> None:
        console.print(f"attach with: {command or 'jupyter console'} --existing {file}", highlight=False, soft_wrap=True)

    def wait() -> None:
        console.print("the rollout is over and its session lives on; press Enter to end it")
        with contextlib.suppress(EOFError):
            input()

    return lambda pool: AttachedKernels(pool, say, wait)
