"""Several runs, or an evaluation of several models, over each other: held-out rates with intervals and differences."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from repl_rl.utils.statistics import Tally, estimate_pass_at_k, paired_difference
from repl_rl.view.run import Run
from repl_rl.view.viewer.index import Target
from repl_rl.view.words import counted, short

_MOST_SETTINGS, _VALUE_CHARS = 20, 60
_TALLIES = """
SELECT run, model, dialect, number, step, family, task_id, count(*), sum(status = 'solved')
FROM trajectory JOIN (SELECT number, split, max(step) AS step FROM file GROUP BY number, split)
    USING (number, split, step)
WHERE status IN ('solved', 'not solved') AND (split = 'eval' OR number IN ({files}))
GROUP BY number, model, dialect, task_id ORDER BY number, min(position)
"""
Answer = dict[str, Any]


def compared(
    connection: sqlite3.Connection, targets: Sequence[Target], known: tuple[Any, list[Answer]]
) -> tuple[Any, list[Answer]]:
    """A row for each family of problems, `all` first, and in it for each run, model and dialect: the problems, pass@1
    with its 95% interval, and the difference to the first one on the problems of both; none for a single one.

    Of a run, its last evaluation counts, of a file all of it. `known` is the last result, the tallies that it was made
    of first, and comes back while they are the same.
    """
    files = [str(target.number) for target in targets if target.folder is None]
    tallies = [tuple(row) for row in connection.execute(_TALLIES.format(files=", ".join(files)))]
    if tallies == known[0]:
        return known
    by_family: dict[str, dict[tuple[Any, ...], dict[str, Tally]]] = {"all": {}}
    for *who, _, step, family, task, samples, right in tallies:
        for name in ("all", family):
            by_family.setdefault(name, {}).setdefault((*who, step), {})[task] = Tally(samples, right)
    first, *others = by_family["all"] or [()]
    if not others:
        return tallies, []
    rows = []
    for name, of in sorted(by_family.items(), key=lambda item: (item[0] != "all", item[0])):
        reference = of.get(first, {})
        for group, tallied in of.items():
            rate = estimate_pass_at_k(list(tallied.values()), 1)
            common = [task for task in tallied if task in reference] if group != first else []
            change = paired_difference([tallied[task] for task in common], [reference[task] for task in common], name)
            row = dict(zip(("run", "model", "dialect", "step"), group, strict=True))
            rows.append({"family": name, **row, "rate": rate and asdict(rate), "change": change and asdict(change)})
    return tallies, rows


def differing_settings(runs: Mapping[str, Run]) -> list[tuple[str, str]]:
    """The settings that the runs' configs don't share, each with its value in every run."""
    flat = [dict(_flat(run.config)) for run in runs.values() if run.config]
    names = dict.fromkeys(name for settings in flat for name in settings if name != "name")
    differing = [name for name in names if any(settings.get(name) != flat[0].get(name) for settings in flat)]
    values = {name: "  |  ".join(_short(settings.get(name)) for settings in flat) for name in differing}
    more = {"and": counted(len(differing) - _MOST_SETTINGS, "more setting")} if len(differing) > _MOST_SETTINGS else {}
    return [*list(values.items())[:_MOST_SETTINGS], *more.items()]


def _short(value: object) -> str:
    return short(value if isinstance(value, str) else json.dumps(value, default=str), _VALUE_CHARS)


def _flat(section: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
