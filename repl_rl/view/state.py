"""Whether a run is going on or how it ended, judged by its lock, its rows and its config."""

import time
from contextlib import suppress
from dataclasses import dataclass

from repl_rl.utils.locks import LOCK_NAME, is_held, writer
from repl_rl.view.run import RESCORED, Run

_FRESH_S = 300.0
"""If nobody can say whether a run's lock is held, a run whose files are older is taken for stopped."""


@dataclass(frozen=True, slots=True)
class State:
    """`word` goes on "24 steps on nano, ..."; `sentence` stands alone, and says at which step it was."""

    is_running: bool
    word: str
    sentence: str


def state(run: Run) -> State:
    """The state of a run at this moment. Reads a few small files."""
    done = run.steps_done
    planned = run.setting("train.steps")
    steps = f"{done:,} of {planned:,} steps" if isinstance(planned, int) else f"{done:,} steps"
    is_trained = isinstance(planned, int) and done >= planned
    is_measured = done > 0 and bool(run.evals) and run.evals[-1]["step"] == done
    if (run.path / RESCORED).exists():
        return State(False, "rescored", "rescored: sessions of another folder, and nothing is trained here")
    if _is_running(run, is_trained):
        return State(True, "running", f"running, {steps} so far")
    if is_trained:
        word = "finished" if is_measured else "trained, not measured yet"
        return State(False, word, word)
    if is_measured and run.setting("train.max_minutes") is not None:
        word = "stopped by train.max_minutes"
    elif writer(run.path) is not None:
        word = "killed" if is_held(run.path) is False else "no new row for over five minutes"
    else:
        word = "stopped"
    return State(False, word, f"{word} at {steps}")


def _is_running(run: Run, is_trained: bool) -> bool:
    has_lock = (run.path / LOCK_NAME).exists()
    held = is_held(run.path) if has_lock else None
    if held is not None:
        return held
    # A trainer that was made in Python has no lock, and the process of another machine can't be seen.
    return not is_trained and time.time() - _last_change(run) < _FRESH_S


def _last_change(run: Run) -> float:
    """When a row was added last, or the config was written; seconds since the epoch."""
    times = [0.0]
    for name in ("metrics.jsonl", "config.yaml"):
        with suppress(OSError):
            times.append((run.path / name).stat().st_mtime)
    return max(times)
