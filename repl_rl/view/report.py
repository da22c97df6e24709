"""`report.html` of a run: one file that needs no network, in light and dark, at the width of a desk or of a phone.

All text goes through the template's escaping and through `visible`; a content security policy in the page forbids
whatever is not in it. The charts are drawn by plotly's script, which makes up nearly all of the file's 5 MB.

Not covered: a page without JavaScript shows numbers and transcripts, but no charts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from repl_rl.view.charts import charts
from repl_rl.view.examples import examples
from repl_rl.view.jinja import environment
from repl_rl.view.run import Row, Run, number, read_run
from repl_rl.view.screen import screen_rows
from repl_rl.view.words import duration, milliseconds


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into the run folder and return its path; an earlier one is replaced whole.

    Raises RunError if the folder is no run.
    """
    path = run_dir / "report.html"
    page = render_report(read_run(run_dir))
    unfinished = path.with_suffix(".html.part")
    unfinished.write_text(page, encoding="utf-8")
    os.replace(unfinished, path)
    return path


def render_report(run: Run) -> str:
    """The page as text. Encodes as UTF-8 whatever the run holds."""
    drawn = charts(run)
    return (
        environment()
        .get_template("report.html")
        .render(
            run=run,
            name=run.setting("name") or run.path.name,
            charts=drawn,
            figures={chart.id: {"data": chart.data, "layout": chart.layout} for chart in drawn},
            facts=_facts(run),
            families=_family_rows(run),
            examples=examples(run),
            rows_of=screen_rows,
            number=number,
            plotly_js=_plotly_js() if drawn else "",
        )
    )


def _plotly_js() -> Markup:
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())


def _facts(run: Run) -> list[tuple[str, str]]:
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


def _family_rows(run: Run) -> list[dict[str, Any]]:
    """Held-out rates per family with the number of problems that the stored rollouts show, `all` first."""
    if run.before is None:
        return []
    before, after = _mapping(run.before, "families"), _mapping(run.after or {}, "families")
    names = sorted({*before, *after})
    counts = family_counts([t.task_id for t in run.evaluations[0].trajectories], names) if run.evaluations else {}
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
