"""`repl-rl eval`: its arguments, and what it prints and writes. Importing this loads nothing heavy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from repl_rl.errors import ConfigError
from repl_rl.trajectory import Trajectory, write_jsonl
from repl_rl.utils.distributed import is_main_process, leave
from repl_rl.utils.folders import require_file

if TYPE_CHECKING:
    from repl_rl.run.evaluation.comparison import Row
    from repl_rl.run.evaluation.plan import EvaluationPlan
    from repl_rl.tasks import Split
    from repl_rl.utils.statistics import Tally


def add_arguments(parser: argparse.ArgumentParser, config_help: str) -> None:
    """Add the arguments of `repl-rl eval`, and set `run` as its command."""
    parser.add_argument("config", help=config_help)
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a value of the config")
    parser.add_argument(
        "--model",
        action="extend",
        nargs="+",
        default=[],
        metavar="PATH",
        help="a run's folder, a checkpoint, a hub id, or nano (default: the config's)",
    )
    parser.add_argument(
        "--dialect",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME",
        help="each with every model (default: the config's)",
    )
    parser.add_argument("-n", type=int, default=1, metavar="SAMPLES", help="rollouts of each problem (default: 1)")
    parser.add_argument("--k", default="", metavar="1,4,8", help="for pass@k (default: 1 and SAMPLES)")
    parser.add_argument("--problems", type=int, metavar="N", help="in place of eval.problems (train: tasks.train)")
    parser.add_argument(
        "--split",
        choices=("heldout", "train"),
        default="heldout",
        help="which problems: held-out ones, or those to train on, sampled as in training (default: heldout)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl", help="keep the rollouts")
    parser.add_argument(
        "--keep",
        metavar="LOW:HIGH",
        help="of the problems to train on, keep those whose pass rate lies between, such as 0.1:0.9",
    )
    parser.add_argument("--to", type=Path, metavar="TASKS.jsonl", help="where --keep puts them, for tasks.only")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Evaluate every combination and print the tables.

    Files are written after each combination, so a crash loses only one. If one is interrupted, the rollouts that have
    ended are kept.
    """
    from repl_rl.run.evaluation.plan import make_plan
    from repl_rl.run.progress import Progress
    from repl_rl.tasks.formats import row_of

    overrides = list(options.set)
    bounds = _bounds(options)
    split: Split = "train" if bounds else options.split
    if options.problems is not None:
        key = "tasks.train" if split == "train" else "eval.problems"
        overrides.append(f"{key}={options.problems}")
    try:
        ks = tuple(int(part) for part in options.k.split(",")) if options.k else ()
    except ValueError as error:
        raise ConfigError(f"--k {options.k!r}: give whole numbers with commas between them, such as 1,4,8") from error
    for flag, path in (("--json", options.json), ("--out", options.out), ("--to", options.to)):
        if path is not None:
            require_file(flag, path)
    plan = make_plan(options.config, overrides, options.model, options.dialect, options.n, ks, split)
    problems = [row_of(task) for task in plan.tasks] if bounds else []
    from repl_rl.run.evaluation.comparison import compare, labels, report, tables, tally

    rows: list[Row] = []
    under_way: dict[int, Trajectory] = {}
    _announce(console, plan, len(rows))
    try:
        progress = Progress(console)
        with progress.interrupts():
            for row in compare(plan, under_way.__setitem__, partial(progress.part, "sessions")):
                under_way.clear()
                rows.append(row)
                if options.json:
                    text = json.dumps(report(plan, rows), indent=2, allow_nan=False)
                    options.json.write_text(text + "\n", encoding="utf-8")
                if options.out:
                    marks = labels(plan, row.combination, range(len(plan.tasks) * plan.samples))
                    write_jsonl(options.out, row.trajectories, labels=marks, append=len(rows) > 1)
                _announce(console, plan, len(rows))
    except BaseException:
        if is_main_process() and options.out and under_way:
            _keep_part(console, plan, options.out, len(rows), under_way)
        raise
    leave()
    if not is_main_process():
        return 0
    for table in tables(plan, rows):
        console.print(table)
    if bounds:
        tallies = [tally(samples) for samples in rows[0].problems]
        sentence = keep(problems, tallies, bounds, options.to)
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    return 0


def _bounds(options: argparse.Namespace) -> tuple[float, float] | None:
    """The pass rates of `--keep`; None without it. Raises ConfigError for what does not go with it."""
    if options.keep is None and options.to is None:
        return None
    if options.keep is None or options.to is None:
        raise ConfigError("--keep LOW:HIGH says which training problems are kept, and --to FILE where; give both")
    low_text, _, high_text = options.keep.partition(":")
    try:
        low = float(low_text)
        high = float(high_text)
    except ValueError:
        low, high = 1.0, 0.0  # refused below, as two rates in the wrong order are
    if not 0 <= low <= high <= 1:
        raise ConfigError(f"--keep {options.keep}: give two pass rates, the lower one first, such as 0.1:0.9")
    if options.n < 2:
        raise ConfigError(f"-n {options.n}: a pass rate needs several sessions of each problem; give -n 4 or more")
    if len(options.model) > 1 or len(options.dialect) > 1:
        raise ConfigError("--keep goes by the pass rates of one model in one dialect; give one of each")
    if options.to.suffix != ".jsonl" or options.to.exists():
        raise ConfigError(f"--to {options.to}: give the name of a new file that ends in .jsonl")
    return low, high


def keep(rows: Sequence[dict[str, Any]], tallies: Sequence[Tally], bounds: tuple[float, float], to: Path) -> str:
    """Write the problems whose pass rates lie within the bounds, and say how many those are."""
    low, high = bounds
    kept = []
    too_hard = too_easy = ungraded = 0
    for row, tally in zip(rows, tallies, strict=True):
        if not tally.samples:
            ungraded += 1
            continue
        rate = tally.right / tally.samples
        if rate < low:
            too_hard += 1
        elif rate > high:
            too_easy += 1
        else:
            kept.append({**row, "pass_rate": rate})
    to.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    sentence = (
        f"{len(kept)} of {len(rows)} training problems are kept in {to}: {too_hard} too hard, {too_easy} too easy"
    )
    if ungraded:
        sentence += f", {ungraded} without a graded session"
    if kept:
        sentence += f"; train on them with --set tasks.only={to}"
    return sentence


def _keep_part(console: Console, plan: EvaluationPlan, out: Path, done: int, ended: dict[int, Trajectory]) -> None:
    """Grade and keep what has ended of a combination whose rest will not come. No figure counts it."""
    from repl_rl.rollout import score
    from repl_rl.run.evaluation.comparison import labels
    from repl_rl.tasks import grade

    combination = plan.combinations[done]
    indices = sorted(ended)
    tasks = [plan.tasks[index // plan.samples] for index in indices]
    trajectories = [ended[index] for index in indices]
    scored = score(tasks, trajectories, grade, combination.checked.table)
    marks = labels(plan, combination, indices)
    write_jsonl(out, [item.trajectory for item in scored], labels=marks, append=done > 0)
    total = len(plan.tasks) * plan.samples
    sentence = f"{len(ended)} of {total} rollouts of {combination.label} are kept in {out}"
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def _announce(console: Console, plan: EvaluationPlan, done: int) -> None:
    if done < len(plan.combinations):
        count = len(plan.tasks) * plan.samples
        place = f"{done + 1} of {len(plan.combinations)}: {plan.combinations[done].label}"
        console.print(f"{place}, {count} rollouts ...", highlight=False, markup=False, soft_wrap=True)
