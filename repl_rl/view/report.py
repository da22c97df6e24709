"""`report.html` of a run: one file that needs no network, in light and dark, at the width of a desk or of a phone.

All text goes through the template's escaping and through `visible`; a content security policy in the page forbids
whatever is not in it. The charts are drawn by plotly's script, which makes up nearly all of the file's 5 MB.

Not covered: a page without JavaScript shows numbers and transcripts, but no charts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from repl_rl.errors import RunError
from repl_rl.view.charts import charts
from repl_rl.view.examples import examples
from repl_rl.view.facts import facts, family_rows
from repl_rl.view.run import Run, number, read_run
from repl_rl.view.transcript import screen_rows

if TYPE_CHECKING:
    from markupsafe import Markup


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into the run folder and return its path; an earlier one is replaced whole.

    Raises RunError if the folder is no run, or can't be written to.
    """
    path = run_dir / "report.html"
    write_whole(path, render_report(read_run(run_dir)))
    return path


def write_whole(path: Path, page: str) -> None:
    """Write a page so that an earlier one is replaced whole or stays. Raises RunError if it can't be written."""
    unfinished = path.with_name(path.name + ".part")
    try:
        try:
            unfinished.write_text(page, encoding="utf-8")
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path} can't be written: {error.strerror}") from error


def render_report(run: Run) -> str:
    """The page as text. Encodes as UTF-8 whatever the run holds."""
    from repl_rl.view.display import environment

    drawn = charts(run)
    return (
        environment()
        .get_template("report.html")
        .render(
            run=run,
            name=run.setting("name") or run.path.name,
            charts=drawn,
            figures={chart.id: {"data": chart.data, "layout": chart.layout} for chart in drawn},
            facts=facts(run),
            families=family_rows(run),
            examples=examples(run),
            rows_of=screen_rows,
            number=number,
            plotly_js=_plotly_js() if drawn else "",
        )
    )


def _plotly_js() -> Markup:
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())
