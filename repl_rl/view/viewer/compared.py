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

_MOST_SETTINGS = 20
_VALUE_CHARS = 60
_TALLIES = """
SELECT run, model, dialect, number, step, family, task_id, count(*), sum(status = 'solved')
FROM trajectory JOIN (SELECT number, split, max(step) AS step FROM file GROUP BY number, split)
    USING (number, split, step)
WHERE status IN ('solved', 'not solved') AND (split = 'eval' OR number IN ({files}))
GROUP BY number, model, dialect, task_id ORDER BY number, min(position)
"""
Answer = dict[str, Any]
Group = tuple[Any, ...]
"""A run, a model, a dialect and a step: what one rate is of."""


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
    by_family: dict[str, dict[Group, dict[str, Tally]]] = {"all": {}}
    for run, model, dialect, _, step, family, task, samples, solves in tallies:
        for name in ("all", family):
            groups = by_family.setdefault(name, {})
            groups.setdefault((run, model, dialect, step), {})[task] = Tally(samples, solves)
    if len(by_family["all"]) < 2:
        return tallies, []
    first = next(iter(by_family["all"]))
    rows = []
    for family in ["all", *sorted(by_family.keys() - {"all"})]:
        groups = by_family[family]
        reference = groups.get(first, {})
        for group, by_task in groups.items():
            common = [] if group == first else [task for task in by_task if task in reference]
            rate = estimate_pass_at_k(list(by_task.values()), 1)
            change = paired_difference([by_task[task] for task in common], [reference[task] for task in common], family)
            run, model, dialect, step = group
            rows.append(
                {
                    "family": family,
                    "run": run,
                    "model": model,
                    "dialect": dialect,
                    "step": step,
                    "rate": rate and asdict(rate),
                    "change": change and asdict(change),
                }
            )
    return tallies, rows


def differing_settings(runs: Mapping[str, Run]) -> list[tuple[str, str]]:
    """The settings that the runs' configs don't share, each with its value in every run."""
    configs = [dict(_flat(run.config)) for run in runs.values() if run.config]
    keys: dict[str, None] = {}  # a set in the order of the configs
    for settings in configs:
        keys.update(dict.fromkeys(settings))
    keys.pop("name", None)  # the name of a run is shown anyway
    rows = []
    for key in keys:
        values = [settings.get(key) for settings in configs]
        if any(value != values[0] for value in values):
            rows.append((key, "  |  ".join(map(_short, values))))
    more = len(rows) - _MOST_SETTINGS
    if more > 0:
        rows[_MOST_SETTINGS:] = [("and", counted(more, "more setting"))]
    return rows


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return short(text, _VALUE_CHARS)


def _flat(section: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
