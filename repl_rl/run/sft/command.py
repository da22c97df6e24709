"""`repl-rl sft`: its arguments, and what it prints. Importing this loads nothing heavy."""

from __future__ import annotations

import argparse
import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from repl_rl.errors import ConfigError
from repl_rl.utils.distributed import from_main, is_main_process, leave

if TYPE_CHECKING:
    from repl_rl.config import Config
    from repl_rl.run.folder import RunFolder
    from repl_rl.run.sft.training import SftInputs

_RUNS = Path("runs")


def add_arguments(parser: argparse.ArgumentParser, config_help: str) -> None:
    """Add the arguments of `repl-rl sft`, and set `run` as its command."""
    parser.add_argument("config", nargs="?", help=config_help)
    parser.add_argument(
        "--from",
        dest="sources",
        action="extend",
        nargs="+",
        type=Path,
        default=[],
        metavar="ROLLOUTS.jsonl",
        help="recorded sessions: files of rollouts, or folders of runs",
    )
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a value of the config")
    parser.add_argument("--runs", type=Path, default=_RUNS, help="where run folders go (default: runs)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with the run in this folder")
    parser.add_argument("--dry-run", action="store_true", help="check everything, and say which sessions it would take")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Fine-tune. Returns the exit code: 130 after an interrupt."""
    from repl_rl.config import load_config
    from repl_rl.run.launch import launch_command, require_a_gpu_each, require_processes
    from repl_rl.run.progress import Progress
    from repl_rl.run.resume import open_run
    from repl_rl.run.sft.sessions import session_files
    from repl_rl.run.sft.training import check_inputs, fine_tune, prepare_sessions, steps_of
    from repl_rl.view import before_after_table, write_report

    _require_sources(options)
    overrides = tuple(options.set)
    if options.resume is not None:
        _, config = open_run(options.resume, None, overrides)
    else:
        config = load_config(options.config, overrides)
        config = config.model_copy(update={"name": f"{config.name}-sft"})
    progress = Progress(console)
    if not options.dry_run:
        require_processes(config, "sft")
        require_a_gpu_each()
    inputs = check_inputs(config, session_files(options.sources))
    if options.dry_run:
        _print_dry_run(console, inputs, options.resume)
        return 0
    with progress.interrupts(), _run_folder(options, config) as folder:
        progress.say(f"run folder: {folder.path}")
        go_on = f"go on with: {launch_command(config)} sft --resume {shlex.quote(str(folder.path))}"
        try:
            sessions = prepare_sessions(inputs, folder, progress)
            plan = config.train.model_copy(update={"steps": steps_of(config, len(sessions))})
            config = config.model_copy(update={"train": plan})
            if is_main_process():
                folder.keep_config(config)
            inputs = replace(inputs, config=config)
            typed = sum(session.sampled_tokens for session in sessions)
            progress.say(f"{len(sessions):,} sessions, {typed:,} typed tokens, {config.train.steps} steps")
            outcome = fine_tune(inputs, folder, sessions, progress)
            leave()
            if not is_main_process():
                return 0
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # what remains is short, and has to be done whole
            if options.resume is None and folder.is_unused:
                go_on = f"nothing has been trained yet, so {folder.path} is removed again"
            progress.say(go_on)
            return 130
        if outcome.after is None:
            progress.say(f"stopped at step {outcome.step}; everything up to there is saved")
            progress.say(go_on)
            return 130
        console.print(before_after_table(outcome.before, outcome.after))
        report = write_report(folder.path)
        progress.say(f"trained in {outcome.train_seconds / 60:.1f} minutes; report: {report}")
        progress.say(f"go on with rewards: {_training_command(options, folder)}")
    return 0


def _training_command(options: argparse.Namespace, folder: RunFolder) -> str:
    """The command that trains the model that was left, in the same dialect and with what else was overridden."""
    command = ["repl-rl", "train", options.config or "CONFIG"]
    for override in options.set:
        if not override.startswith(("model.path=", "sft.")):
            command += ["--set", override]
    return shlex.join([*command, "--set", f"model.path={folder.model}"])


def _require_sources(options: argparse.Namespace) -> None:
    """Raises ConfigError unless there is a config with sessions, or a run to resume, which has both."""
    if options.resume is None:
        if options.config is None:
            raise ConfigError("give a config to train, or --resume RUN")
        if not options.sources:
            raise ConfigError(
                "give recorded sessions to train on: --from ROLLOUTS.jsonl; `repl-rl eval CONFIG --split train -n 4 "
                "--out ROLLOUTS.jsonl` makes some"
            )
    elif options.config is not None or options.sources:
        raise ConfigError(f"--resume {options.resume} has its config and its sessions; leave the config and --from out")


@contextmanager
def _run_folder(options: argparse.Namespace, config: Config) -> Iterator[RunFolder]:
    """The run's folder, which no other command can write until the block ends. A new one without a file is removed.

    All processes get the same one, and the main one holds it.
    """
    from repl_rl.run.folder import RunFolder, new_run
    from repl_rl.utils.folders import require_folder

    if options.resume is not None:
        folder = RunFolder(options.resume)
    else:
        require_folder("--runs", options.runs)
        folder = from_main(lambda: new_run(config, options.runs))
    with ExitStack() as stack:
        if is_main_process():
            if options.resume is None:
                stack.callback(folder.discard_if_unused)
            stack.enter_context(folder.locked())
        yield folder


def _print_dry_run(console: Console, inputs: SftInputs, resumed: Path | None) -> None:
    from repl_rl.run.folder import RunFolder
    from repl_rl.run.launch import launch_command
    from repl_rl.run.sft.training import kept_sessions
    from repl_rl.view.terminal import say
    from repl_rl.view.words import counted

    config = inputs.config
    if resumed is not None:
        kept = counted(len(kept_sessions(RunFolder(resumed))), "session")
        say(console, f"{kept}, typed again in the tokens of {config.model.path} before, would be trained on")
    else:
        sessions = counted(len(inputs.chosen), "session")
        say(console, f"{sessions} would be typed again in the tokens of {config.model.path}, and trained on")
        say(console, "  but for those that come out otherwise than recorded, or longer than the config allows")
        if config.sft.shortest is not None:
            say(console, f"  and for all but the shortest of each problem (sft.shortest: {config.sft.shortest})")
    for sentence in inputs.left_out.sentences():
        say(console, f"  left out: {sentence}")
    if config.train.processes > 1:
        say(console, f"start it with: {launch_command(config)} sft ...")
