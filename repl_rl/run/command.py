"""`repl-rl train`: its arguments, and what it prints. Importing this loads nothing heavy."""

import argparse
import json
import shlex
import signal
from pathlib import Path

from rich.console import Console

from repl_rl.errors import ConfigError, ReplRLError, RunError
from repl_rl.run.launch import launch_command
from repl_rl.utils.distributed import is_main_process, leave
from repl_rl.utils.machine import in_a_sentence

_RUNS = Path("runs")


def add_arguments(parser: argparse.ArgumentParser, config_help: str) -> None:
    """Add the arguments of `repl-rl train`, and set `run` as its command."""
    parser.add_argument("config", nargs="?", help=config_help)
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a value of the config")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="go on with the run in this folder, with its own config; --set may change train.steps, train.max_minutes, "
        "train.save_steps, eval.*, the trackers and what the machine needs",
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="roll out on the machines of this Ray cluster: --set cluster.address=ADDRESS",
    )
    parser.add_argument("--runs", type=Path, default=_RUNS, help="where run folders go (default: runs)")
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything that needs no model and no GPU, say what would be done"
    )
    parser.add_argument(
        "--like",
        type=Path,
        metavar="RUN",
        help="with --dry-run: how full the sampler's batches would be, with sessions like those of a run, or of a file "
        "of rollouts",
    )
    parser.add_argument(
        "--gpu",
        metavar="GIB",
        help="with --dry-run: what would fit if each process had a GPU of so many GiB, or a GPU of this name (h100, "
        "a100, ...), of which none need be here",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Train, or say what would be trained. Returns the exit code: 130 after an interrupt."""
    from repl_rl.config import load_config

    if options.config is None and options.resume is None:
        raise ConfigError("give a config to train, or --resume RUN")
    overrides = tuple(options.set)
    if options.cluster is not None:
        overrides = (*overrides, f"cluster.address={json.dumps(options.cluster)}")
    if options.like is not None and not options.dry_run:
        raise ConfigError(f"--like {options.like} is for a forecast: give --dry-run with it, or leave it out")
    if options.gpu is not None and not options.dry_run:
        raise ConfigError(
            f"--gpu {options.gpu} supposes GPUs, and a training takes those that are here: give --dry-run with it, or "
            "leave it out"
        )
    config = load_config(options.config, overrides) if options.config else None
    if options.dry_run:
        from repl_rl.run.dryrun import dry_run, print_dry_run
        from repl_rl.run.suppose import parse_gpu

        gpu = None if options.gpu is None else parse_gpu(options.gpu)
        arguments = ["train"]
        if options.config:
            arguments.append(options.config)
        arguments += [f"--set={override}" for override in options.set]
        flags = {"resume": options.resume, "cluster": options.cluster, "runs": options.runs}
        arguments += [f"--{name}={value}" for name, value in flags.items() if value not in (None, _RUNS)]
        text = shlex.join(arguments)
        result = dry_run(config, options.runs, options.resume, overrides, text, like=options.like, gpu=gpu)
        print_dry_run(console, result)
        return 0
    from repl_rl.run.progress import Progress
    from repl_rl.run.training import choose_run, prepare, train
    from repl_rl.view import before_after_table

    progress = Progress(console)
    if options.resume is not None:
        folder, run_config, _ = choose_run(config, options.runs, options.resume, overrides)
        evaluations = folder.finished(run_config)
        if evaluations:
            steps = run_config.train.steps
            console.print(before_after_table(*evaluations))
            report_file = folder.path / "report.html"
            if not report_file.exists() or report_file.stat().st_mtime < folder.metrics_path.stat().st_mtime:
                progress.say(f"report: {_report(folder.path)}")
            resume = f"{launch_command(run_config)} train --resume {shlex.quote(str(folder.path))}"
            progress.say(
                f"{folder.path} is finished: its {steps} steps are trained, measured and saved. For more of them: "
                f"{resume} --set train.steps={2 * steps}"
            )
            return 0
    with progress.interrupts(), prepare(config, options.runs, options.resume, overrides) as prepared:
        folder = prepared.folder
        go_on = f"go on with: {launch_command(prepared.config)} train --resume {shlex.quote(str(folder.path))}"
        try:
            progress.say(f"run folder: {folder.path}")
            for note in prepared.notes:
                progress.warn(note)
            outcome = train(prepared, progress)
            leave()
            if not is_main_process():
                return 0
            report = _report(folder.path)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # what remains is short, and has to be done whole
            if options.resume is None and folder.is_unused:
                progress.say(f"nothing has been trained or measured yet, so {folder.path} is removed again")
            else:
                progress.say(go_on)
            return 130
        except Exception as error:
            go_on = f"\nThe run is saved up to step {folder.reached()}. Once that is mended, {go_on}"
            if options.resume is None and folder.is_unused:
                go_on = ""
            sentence = in_a_sentence(error, folder.path)
            if sentence is None and isinstance(error, OSError) and not folder.config_path.exists():
                sentence = f"{folder.path} was removed or moved away while the run was on: {error}"
            if sentence is None:  # a fault of ours: its traceback is of use
                error.add_note(go_on.strip())
                raise
            kind = type(error) if isinstance(error, ReplRLError) else RunError
            raise kind(sentence + go_on) from error
    if outcome.after is None:
        progress.say(f"stopped at step {outcome.step}; everything up to there is saved")
        progress.say(go_on)
        return 130
    console.print(before_after_table(outcome.before, outcome.after))
    progress.say(f"trained in {outcome.train_seconds / 60:.1f} minutes; report: {report}")
    return 0


def _report(folder: Path) -> str:
    """Where the report is, or why there is none: the run is complete without it."""
    from repl_rl.view import write_report

    try:
        return str(write_report(folder))
    except (ReplRLError, OSError) as error:
        return f"not written: {error}"
