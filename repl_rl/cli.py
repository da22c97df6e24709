"""`repl-rl`: train, sft, rollout, play, eval, view, rescore, value, replay, export, push, serve, bench, config, doctor.

A ReplRLError is a message and exit code 2.

Each command's package names its arguments and runs it; what a command needs is imported when it runs.
"""

import argparse
import atexit
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any

from rich.console import Console

from repl_rl import __version__, bench
from repl_rl.at_start import end_quietly
from repl_rl.errors import ConfigError, ReplRLError
from repl_rl.integrations import command as serving
from repl_rl.run import command as training
from repl_rl.run import export, play, rollouts, value
from repl_rl.run.evaluation import command as evaluation
from repl_rl.run.push import command as push
from repl_rl.run.rescore import command as rescoring
from repl_rl.run.sft import command as fine_tuning
from repl_rl.utils.distributed import is_main_process
from repl_rl.utils.folders import resource_folder, shipped_configs
from repl_rl.utils.machine import in_a_sentence
from repl_rl.utils.output import guarded_output
from repl_rl.utils.text import nearest
from repl_rl.view import command as viewing
from repl_rl.view.replay import command as replay

_END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that interrupt a command besides Ctrl-C."""
_WIDTH = 160
"""Columns of what is printed to a file or a pipe, unless COLUMNS is set."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns the exit code."""
    with guarded_output():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    is_verbose = False
    previous_handlers = {number: signal.getsignal(number) for number in _END_SIGNALS}
    try:
        options = make_parser().parse_args(arguments)
        is_verbose = options.verbose
        _require_umask()
        interrupt = interrupting()
        for number, previous in previous_handlers.items():
            # nohup has SIGHUP ignored, which stays so: the command is to outlive its terminal.
            if number == signal.SIGTERM or previous is not signal.SIG_IGN:
                signal.signal(number, interrupt)
        if signal.getsignal(signal.SIGINT) is end_quietly:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        from repl_rl.engine.environment import silence_libraries

        console = Console(quiet=not is_main_process())
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _WIDTH
        folder = os.getcwd()
        if folder not in sys.path:  # a config may name modules in this folder by import path
            sys.path.append(folder)
        logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
        if not options.verbose:
            silence_libraries(python_warnings=True)
        return int(options.command(options, console))
    except Exception as error:
        message = str(error) if isinstance(error, ReplRLError) else in_a_sentence(error, Path.cwd())
        if message is None:
            raise
        if is_verbose:
            traceback.print_exc()
        text = f"repl-rl: {message}"
        Console(stderr=True).print(text, style="bold red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted", style="bold")
        return 130
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)
        # Nothing is left to be printed, so Ctrl-C at exit just ends the process, without a traceback.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)


def _require_umask() -> None:
    """Raises ConfigError where this process could not read what it writes."""
    mask = os.umask(0o077)  # the only way to read it is to set it
    os.umask(mask)
    if mask & 0o700:
        raise ConfigError(f"umask {mask:04o} takes files from the user who writes them; set one such as 0022 or 0077")


def interrupting() -> Callable[[int, FrameType | None], None]:
    """A handler by which SIGTERM, the way schedulers end a job, and SIGHUP, of a terminal that is closed, do what
    Ctrl-C would do. Some send them several times: the first one counts."""
    first = Lock()

    def handle(number: int, frame: FrameType | None) -> None:
        if first.acquire(blocking=False):
            handler = signal.getsignal(signal.SIGINT)
            if not callable(handler):
                handler = signal.default_int_handler
            handler(signal.SIGINT, frame)

    return handle


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="repl-rl", description="RL for models that type into a live Python interpreter"
    )
    parser.add_argument("--version", action="version", version=f"repl-rl {__version__}")
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs and warnings, and tracebacks")
    shells = ("bash", "zsh", "tcsh")
    parser.add_argument("--print-completion", action=_PrintCompletion, choices=shells, help="of a shell, to be eval'ed")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shipped = f"a YAML file, or one of: {', '.join(shipped_configs())}"

    training.add_arguments(commands.add_parser("train", help="train a model"), shipped)
    recorded = "fine-tune on recorded sessions, before training or between trainings"
    fine_tuning.add_arguments(commands.add_parser("sft", help=recorded), shipped)
    rollouts.add_arguments(commands.add_parser("rollout", help="sample trajectories"), shipped)
    play.add_arguments(commands.add_parser("play", help="type a session yourself, in the model's place"), shipped)
    compared = "solve rates on held-out problems, of one model or of several beside each other"
    evaluation.add_arguments(commands.add_parser("eval", help=compared), shipped)
    viewing.add_arguments(commands.add_parser("view", help="look at a run folder or a file of rollouts"))
    rescoring.add_arguments(commands.add_parser("rescore", help="recorded sessions under other rewards or credit"))
    worth = "what each line of a recorded session was worth, by going on from it"
    value.add_arguments(commands.add_parser("value", help=worth), shipped)
    replay.add_arguments(commands.add_parser("replay", help="run rollouts again as notebooks, and say what differs"))
    export.add_arguments(commands.add_parser("export", help="recorded sessions in the formats of others"))
    push.add_arguments(commands.add_parser("push", help="publish a run's model, card and rollouts"))
    serving.add_arguments(commands.add_parser("serve", help="interpreters for other trainers, over a socket"), shipped)
    bench.add_arguments(commands.add_parser("bench", help="measure this machine"))

    shown = commands.add_parser("config", help="print a config that ships, to begin one of your own with")
    shown.add_argument("name", metavar="NAME", help=f"one of: {', '.join(shipped_configs())}")
    shown.set_defaults(command=_print_config)

    doctor = commands.add_parser("doctor", help="what this machine has, and what brings the rest")
    doctor.add_argument("--train", action="store_true", help="train two steps with every engine that is here")
    doctor.add_argument("--config", metavar="CONFIG", help="with --train: two steps of this config")
    doctor.add_argument("--model", metavar="MODEL", help="with --train: of this model instead of nano")
    doctor.add_argument("--cluster", metavar="ADDRESS", help="what each machine of this Ray cluster has")
    doctor.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a value of the config")
    doctor.set_defaults(command=_doctor)
    return parser


class _PrintCompletion(argparse.Action):
    """Prints the completion of a shell, made by shtab, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        import shtab

        print(shtab.complete(parser, values))
        parser.exit()


def _print_config(options: argparse.Namespace, console: Console) -> int:
    """The file as it ships, with its comments. Raises ConfigError for another name."""
    if options.name not in shipped_configs():
        raise ConfigError(f"no config {options.name!r} ships; {nearest(options.name, shipped_configs())}")
    sys.stdout.write((resource_folder("configs") / f"{options.name}.yaml").read_text(encoding="utf-8"))
    return 0


def _doctor(options: argparse.Namespace, console: Console) -> int:
    from repl_rl.doctor import checks, cluster_checks, print_report

    if options.cluster is not None:
        has_all = print_report(cluster_checks(options.cluster), console)
    elif options.train:
        from repl_rl.run.trial import configs, run_trials

        has_all = run_trials(configs(options.config, options.model, options.set), console)
    else:
        if options.config or options.model or options.set:
            raise ConfigError("--config, --model and --set say what to train: give --train with them")
        has_all = print_report(checks(), console)
    return 0 if has_all else 1


if __name__ == "__main__":
    sys.exit(main())
