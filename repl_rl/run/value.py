"""`repl-rl value`: what each line of a recorded session was worth, by going on from before it and after it.

Importing this loads nothing heavy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repl_rl.errors import ConfigError
from repl_rl.run.recorded import RecordedSession, model_of, recorded_session
from repl_rl.trajectory import LineValues, Trajectory, write_jsonl
from repl_rl.utils.folders import require_file
from repl_rl.utils.text import visible
from repl_rl.view.terminal import say
from repl_rl.view.words import counted, one_line, signed, worth_of_line

if TYPE_CHECKING:
    from repl_rl.rewards import RewardTable
    from repl_rl.rollout import Continuations

_TEXT_CHARS = 60


def add_arguments(parser: argparse.ArgumentParser, config_help: str) -> None:
    """Add the arguments of `repl-rl value`, and set `run` as its command."""
    parser.add_argument(
        "source",
        metavar="FILE#N",
        help="the N-th session of a file of rollouts, counted from 0, as its run's config says",
    )
    parser.add_argument("-n", type=int, default=8, help="how often to go on from each line (default: 8)")
    parser.add_argument("--model", metavar="PATH", help="who goes on (default: the run's newest checkpoint)")
    parser.add_argument("--config", metavar="CONFIG", help=f"for a file in no run's folder; {config_help}")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a value of the config")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.jsonl", help="keep the session with its values, and what went on, as branches"
    )
    parser.set_defaults(command=run, line=None)


def run(options: argparse.Namespace, console: Console) -> int:
    """Go on from each line and print the values. Raises ConfigError for invalid options before anything is loaded."""
    if options.n < 1:
        raise ConfigError(f"-n {options.n}: go on at least once")
    if options.out is not None:
        require_file("--out", options.out)
    recorded = recorded_session(options)
    if recorded.trajectory.outcome_reward is None:
        raise ConfigError(f"{recorded.name} was never graded, so nobody knows what it came to")
    if recorded.ungraded:
        raise ConfigError(f"{recorded.name}: what goes on from it can't be graded: {recorded.ungraded}")
    config, model = model_of(recorded, options.model)
    import asyncio

    from repl_rl.rollout import check_rollouts, continued_from_each_line, open_rollout
    from repl_rl.run.progress import Progress

    checked = check_rollouts(config)
    progress = Progress(console)
    lines = len(recorded.trajectory.lines)
    sampling = config.sampling.seeded(f"{config.seed}/value")

    async def go_on() -> Continuations:
        async with open_rollout(config, sessions=lines * options.n, checked=checked) as rollout:
            progress.say(f"{options.n} sessions of {model} from the start of each of {counted(lines, 'line')} ...")
            return await continued_from_each_line(rollout, recorded.task, recorded.trajectory, options.n, sampling)

    with progress.interrupts():
        went_on = asyncio.run(go_on())
    values = LineValues(went_on.values(recorded.task), tuple(map(_counting, went_on.after)))
    console.print(values_table(recorded.trajectory, values))
    if went_on.differs_at is not None:
        number = went_on.differs_at
        text = one_line(recorded.trajectory.lines[number].text.strip())
        say(console, f"line {number} came out otherwise than recorded, so nothing goes on after it: {text}", "yellow")
    if options.out is not None:
        _write(options.out, recorded, went_on, values, checked.table)
        say(console, f"line by line, and what went on from each: repl-rl view {options.out} --serve")
    return 0


def _counting(sessions: Sequence[Trajectory]) -> int:
    """How many sessions a value is the mean of."""
    return sum(not session.is_void for session in sessions)


def values_table(recorded: Trajectory, values: LineValues) -> Table:
    """A row for each line: its advantage, the value before and after it, and what it changed."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("line", overflow="fold")
    for name in ("kind", "adv.", "value", "after", "change, 95%"):
        table.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
    for index, line in enumerate(recorded.lines):
        text = visible(one_line(line.text.strip()))
        if len(text) > _TEXT_CHARS:
            text = text[: _TEXT_CHARS - 1] + "…"
        before, after = values.around(index)
        shares = ["–" if value is None else f"{value:.0%}" for value in (before, after)]
        kind = line.kind.replace("_", " ")
        table.add_row(str(index), Text(text), kind, signed(line.advantage), *shares, worth_of_line(values, index))
    table.caption = "value: how often what goes on from before the line ends right; last, what the session came to"
    return table


def _write(
    out: Path, recorded: RecordedSession, went_on: Continuations, values: LineValues, table: RewardTable
) -> None:
    """The session with its values beside it, then what went on, as its branches; those from the prompt are whole."""
    from repl_rl.rollout import score
    from repl_rl.tasks import grade

    members = [recorded.trajectory]
    for line, sessions in enumerate(went_on.after):
        tasks = [recorded.task] * len(sessions)
        for scored in score(tasks, sessions, grade, table):
            session = scored.trajectory
            is_branch = line and len(session.lines) > line
            members.append(session.as_branch(line, 0, 1 / (len(sessions) + 1)) if is_branch else session)
    labels = [values.label(), *({} for _ in members[1:])]
    write_jsonl(out, members, labels=labels)
