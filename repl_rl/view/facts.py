"""What a run is and what it reached, in the few words and numbers that stand at the head of every view of it.

Pure: a run goes in, sentences and pairs come out. Nothing here is escaped: names out of a config or a file still have
to pass `visible` and the page's escaping.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repl_rl.view.run import Row, Run, number
from repl_rl.view.words import duration, milliseconds


def summary(run: Run) -> list[str]:
    """The run in one or two sentences of plain text."""
    model = run.setting("model.path")
    done = int(run.train[-1]["step"]) if run.train else 0
    steps = f"{done} step{'s' * (done != 1)}" if run.train else "no training step yet"
    sentences = [f"{run.path.name}: " + (steps if model is None else f"{steps} on {model}")]
    row = run.after or run.before
    rate = None if row is None else number(row, "solve_rate")
    if row is not None and rate is not None:
        when = "after training" if run.after is not None else "before training"
        problems = row.get("problems")
        of = f" of {problems} held-out problems" if isinstance(problems, int) else " of the held-out problems"
        sentences.append(f"{rate:.1%}{of} solved {when}")
    return sentences


def facts(run: Run) -> list[tuple[str, str]]:
    """Pairs of name and value for the head of the page; what the run doesn't know is left out."""
    last = run.train[-1] if run.train else {}
    planned = run.setting("train.steps")
    done = int(last["step"]) if last else 0
    rate = number(last, "tokens_per_s")
    facts = {
        "model": run.setting("model.path"),
        "steps": f"{done} of {planned}" if isinstance(planned, int) and planned != done else str(done),
        "training time": duration(run.train_seconds) if run.train_seconds else None,
        "rollouts per step": _rollouts_per_step(run),
        "credit": run.setting("credit.estimator"),
        "learning rate": run.setting("train.learning_rate"),
        "sampling": None if rate is None else f"{rate:,.0f} tokens/s",
        "kernel, median line": _kernel_time(last, "kernel_ms_p50"),
        "kernel, 99th percentile": _kernel_time(last, "kernel_ms_p99"),
        "seed": run.setting("seed"),
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def _rollouts_per_step(run: Run) -> str | None:
    prompts, group = run.setting("train.prompts_per_step"), run.setting("train.group_size")
    return None if prompts is None or group is None else f"{prompts} × {group}"


def _kernel_time(row: Row, key: str) -> str | None:
    value = number(row, key)
    return None if value is None else milliseconds(value / 1000)


def family_rows(run: Run) -> list[dict[str, Any]]:
    """Held-out rates per family, `all` first, with the number of problems that row or stored rollouts tell."""
    if run.before is None:
        return []
    before, after = _mapping(run.before, "families"), _mapping(run.after or {}, "families")
    names = sorted({*before, *after})
    counts = family_counts([t.task_id for t in run.evaluations[0].trajectories], names) if run.evaluations else {}
    told = _mapping(run.before, "family_problems")
    counts |= {name: int(count) for name in names if (count := number(told, name)) is not None}
    total = _family_row("all", number(run.before, "problems"), run.before, run.after or {}, "solve_rate")
    return [total, *(_family_row(name, counts.get(name), before, after, name) for name in names)]


def _family_row(name: str, count: float | None, before: Row, after: Row, key: str) -> dict[str, Any]:
    early, late = number(before, key), number(after, key)
    change = None if early is None or late is None else 100 * (late - early)
    return {"name": name, "count": count, "before": early, "after": late, "change": change}


def family_counts(task_ids: list[str], names: list[str]) -> dict[str, int]:
    """How many of the ids `FAMILY-...` belong to each name; the longest name that fits has it."""
    counts: dict[str, int] = {}
    for task_id in task_ids:
        fitting = [name for name in names if task_id.startswith(f"{name}-")]
        if fitting:
            family = max(fitting, key=len)
            counts[family] = counts.get(family, 0) + 1
    return counts


def _mapping(row: Row, key: str) -> Row:
    value = row.get(key)
    return value if isinstance(value, Mapping) else {}
