"""`repl-rl export`: recorded sessions in the formats of others. Importing this loads nothing heavy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from repl_rl.errors import ConfigError
from repl_rl.run.recorded import whole_sessions
from repl_rl.trajectory import Trajectory, read_labelled
from repl_rl.utils.folders import require_file, require_folder

FORMATS = ("atif", "inspect")


@dataclass(frozen=True, slots=True)
class ExportedSession:
    """A recorded session, and who typed it."""

    trajectory: Trajectory
    """Whole: a branch has its parents' lines before its own, and still says of which session it is a branch."""
    first_own_line: int
    """The lines before this one are its parents'. 0 if it is no branch."""
    model: str | None
    """As the file says; None if it does not, or can't be read and the file has several."""


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
    parser.add_argument("--model", metavar="NAME", help="who typed (default: what the file says)")
    parser.add_argument("--name", metavar="NAME", help="of the evaluation (default: after the file)")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the sessions. Returns the exit code. Raises ConfigError, RunError and DependencyError."""
    write: Callable[[argparse.Namespace, list[ExportedSession], str], int]
    write = _write_atif if options.to == "atif" else _write_log
    sessions = _read(options.file)
    files = write(options, sessions, options.name or options.file.stem)
    noun = "file" if files == 1 else "files"
    console.print(f"{len(sessions):,} sessions in {files:,} {noun}: {options.out}", highlight=False, soft_wrap=True)
    return 0


def _read(file: Path) -> list[ExportedSession]:
    """The file's sessions, whole. Raises ConfigError if there are none, and for a branch whose parent is not there."""
    recorded: list[Trajectory] = []
    models: list[str | None] = []
    for label, trajectory in read_labelled(file):
        recorded.append(trajectory)
        models.append(label.removesuffix(f", {trajectory.dialect}") or None)
    if not recorded:
        raise ConfigError(f"{file} holds no session")
    named = {model for model in models if model is not None}
    if len(named) == 1:
        # Then all are of this one. `read_labelled` can't read the label of a record with half a character in it.
        models = [*named] * len(models)
    sessions: list[ExportedSession] = []
    try:
        for whole, trajectory, model in zip(whole_sessions(recorded), recorded, models, strict=True):
            first_own_line = len(whole.lines) - len(trajectory.lines)
            sessions.append(ExportedSession(replace(whole, branch=trajectory.branch), first_own_line, model))
    except ConfigError as error:
        raise ConfigError(
            f"{file}#{len(sessions)}: {error}; export a file that holds its parent too, as the one that was recorded"
        ) from error
    return sessions


def _write_atif(options: argparse.Namespace, sessions: Sequence[ExportedSession], name: str) -> int:
    from repl_rl.integrations.atif import require_atif, to_atif

    if "/" in name:
        raise ConfigError(
            f"--name {name}: documents are files of this name, which can't have a / in it; give a name without one "
            "(who typed is said with --model)"
        )
    require_folder("--out", options.out)
    documents = sorted(options.out.glob("*.json"))
    if documents:
        raise ConfigError(
            f"--out {options.out} has documents already ({documents[0].name}, {len(documents):,} in all), and these "
            "would lie beside the new ones; give another folder, or remove them first"
        )
    require_atif()
    options.out.mkdir(parents=True, exist_ok=True)
    for number, session in enumerate(sessions):
        session_id = f"{name}-{number:05d}"
        model = options.model or session.model
        document = to_atif(session.trajectory, model, session_id, session.first_own_line).to_json_dict()
        text = json.dumps(document, indent=1, allow_nan=False)
        (options.out / f"{session_id}.json").write_text(text + "\n", encoding="utf-8")
    return len(sessions)


def _write_log(options: argparse.Namespace, sessions: Sequence[ExportedSession], name: str) -> int:
    from repl_rl.integrations.inspect_log import require_inspect, to_inspect_log

    if options.out.suffix not in (".eval", ".json"):
        raise ConfigError(f"--out {options.out}: give the name of a file that ends in .eval or .json")
    model = _model_of_log(options, sessions)
    require_file("--out", options.out)
    require_inspect()
    from inspect_ai.log import write_eval_log

    written_at = datetime.fromtimestamp(options.file.stat().st_mtime, UTC)
    log = to_inspect_log(
        [session.trajectory for session in sessions],
        name,
        model,
        recorded_at=written_at,
        first_own_lines=[session.first_own_line for session in sessions],
    )
    write_eval_log(log, str(options.out))
    return 1


def _model_of_log(options: argparse.Namespace, sessions: Sequence[ExportedSession]) -> str:
    """Raises ConfigError where it is not known, or there are several: a log is of one."""
    if options.model is not None:
        model: str = options.model
        return model
    named = sorted({session.model for session in sessions if session.model is not None})
    if len(named) > 1:
        raise ConfigError(
            f"{options.file} has sessions of {len(named)} models ({', '.join(named)}), and a log is of one; "
            "evaluate them into files of their own"
        )
    if not named:
        raise ConfigError(f"{options.file} does not say which model typed, and a log has to; say it with --model NAME")
    return named[0]
