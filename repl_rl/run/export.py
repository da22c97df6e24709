"""`repl-rl export`: recorded sessions in the formats of others. Importing this loads nothing heavy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from repl_rl.errors import ConfigError
from repl_rl.trajectory import Trajectory, read_labelled
from repl_rl.utils.folders import require_file, require_folder

FORMATS = ("atif", "inspect")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `repl-rl export`, and set `run` as its command."""
    parser.add_argument("file", type=Path, metavar="ROLLOUTS.jsonl", help="recorded sessions")
    parser.add_argument(
        "--to",
        choices=FORMATS,
        required=True,
        help="atif: a JSON document for each session (harbor); inspect: a log that `inspect view` opens",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PATH", help="a folder for atif, FILE.eval for inspect"
    )
    parser.add_argument("--model", metavar="NAME", help="who typed, where the file does not say so")
    parser.add_argument("--name", metavar="NAME", help="of the evaluation (default: after the file)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the sessions. Returns the exit code. Raises ConfigError, RunError and DependencyError."""
    write: Callable[[argparse.Namespace, list[Trajectory], str | None, str], int]
    write = _write_atif if options.to == "atif" else _write_log
    sessions: list[Trajectory] = []
    models: set[str] = set()
    for label, session in read_labelled(options.file):
        sessions.append(session)
        if label:
            models.add(label.removesuffix(f", {session.dialect}"))
    if not sessions:
        raise ConfigError(f"{options.file} holds no session")
    if options.to == "inspect" and len(models) > 1 and options.model is None:
        raise ConfigError(
            f"{options.file} has sessions of {len(models)} models ({', '.join(sorted(models))}), and a log is of one; "
            "evaluate them into files of their own"
        )
    model = options.model or next(iter(models), None)
    files = write(options, sessions, model, options.name or options.file.stem)
    noun = "file" if files == 1 else "files"
    console.print(f"{len(sessions):,} sessions in {files:,} {noun}: {options.out}", highlight=False, soft_wrap=True)
    return 0


def _write_atif(options: argparse.Namespace, sessions: list[Trajectory], model: str | None, name: str) -> int:
    from repl_rl.integrations.atif import require_atif, to_atif

    require_folder("--out", options.out)
    require_atif()
    options.out.mkdir(parents=True, exist_ok=True)
    for number, session in enumerate(sessions):
        session_id = f"{name}-{number:05d}"
        document = to_atif(session, model, session_id).to_json_dict()
        text = json.dumps(document, indent=1, allow_nan=False)
        (options.out / f"{session_id}.json").write_text(text + "\n", encoding="utf-8")
    return len(sessions)


def _write_log(options: argparse.Namespace, sessions: list[Trajectory], model: str | None, name: str) -> int:
    from repl_rl.integrations.inspect_log import require_inspect, to_inspect_log

    if options.out.suffix not in (".eval", ".json"):
        raise ConfigError(f"--out {options.out}: give the name of a file that ends in .eval or .json")
    require_file("--out", options.out)
    require_inspect()
    from inspect_ai.log import write_eval_log

    write_eval_log(to_inspect_log(sessions, name, model or "repl_rl"), str(options.out))
    return 1
