"""What `repl-rl view` does: a run folder becomes a report, a file of rollouts is printed."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from repl_rl.errors import RunError
from repl_rl.view.report import write_report
from repl_rl.view.run import Run, number, read_run, read_trajectories
from repl_rl.view.screen import visible
from repl_rl.view.terminal import before_after_table, print_trajectory


def view(target: Path, console: Console) -> None:
    """Refresh the report of a run folder and print its summary, or print the trajectories of a `.jsonl` file.

    Raises RunError if `target` is neither.
    """
    if target.is_dir():
        _view_run(target, console)
    elif target.is_file():
        _view_file(target, console)
    else:
        raise RunError(f"nothing to view at {target}: give a run folder or a .jsonl file of rollouts")


def _view_run(folder: Path, console: Console) -> None:
    run = read_run(folder)
    report = write_report(folder)
    for sentence in summary(run):
        _say(console, sentence)
    if run.before is not None and run.after is not None:
        console.print(before_after_table(run.before, run.after))
    for note in run.notes:
        _say(console, f"note: {note}", style="yellow")
    _say(console, f"report: {report}", style="bold")


def summary(run: Run) -> list[str]:
    """The run in one or two sentences of plain text."""
    model = run.setting("model.path")
    steps = f"{int(run.train[-1]['step'])} steps" if run.train else "no training step yet"
    sentences = [f"{run.path.name}: " + (steps if model is None else f"{steps} on {model}")]
    row = run.after or run.before
    rate = None if row is None else number(row, "solve_rate")
    if row is not None and rate is not None:
        when = "after training" if run.after is not None else "before training"
        problems = row.get("problems")
        of = f" of {problems} held-out problems" if isinstance(problems, int) else " of the held-out problems"
        sentences.append(f"{rate:.1%}{of} solved {when}")
    return sentences


def _view_file(path: Path, console: Console) -> None:
    trajectories, note = read_trajectories(path)
    if note is not None and not trajectories:
        raise RunError(f"{path} holds no trajectory that can be read: {note}")
    for trajectory in trajectories:
        print_trajectory(console, trajectory)
    if note is not None:
        _say(console, f"note: {note}", style="yellow")
    solved = sum((trajectory.outcome_reward or 0.0) > 0 for trajectory in trajectories)
    graded = sum(trajectory.outcome_reward is not None for trajectory in trajectories)
    grades = f", {solved} of {graded} graded ones solved" if graded else ""
    _say(console, f"{len(trajectories)} trajectories{grades}")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text), style=style), soft_wrap=True)
