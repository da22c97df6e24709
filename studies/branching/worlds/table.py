"""A table to be wrangled: `rows` holds what nobody has looked at yet, the question says step by step what to do.

Values are missing, and rows are there twice, so a step on unclean rows raises or counts wrongly. Graded by value.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from repl_rl.tasks.families import Family
from repl_rl.trajectory import Task

Row = dict[str, Any]
Step = tuple[str, str]
"""What to do, in words and as a line of code."""

_ROWS = 60
_CITIES = ("Bern", "Cusco", "Dakar", "Lima", "Oslo", "Pune")
_ITEMS = ("lamp", "pen", "rope", "tile")
_CLEAN: tuple[Step, ...] = (
    ("drop rows without qty", "rows = [r for r in rows if r['qty'] is not None]"),
    (
        "put 10 where price is missing",
        "rows = [{**r, 'price': 10 if r['price'] is None else r['price']} for r in rows]",
    ),
    (
        "keep the first of rows that are equal",
        "rows = [r for i, r in enumerate(rows) if r not in rows[:i]]",
    ),
    ("add total, qty times price", "rows = [{**r, 'total': r['qty'] * r['price']} for r in rows]"),
)
"""What longer sessions begin with."""


class Table:
    """The environment: `rows`, a list of dicts."""

    forks = True

    def reset(self, task: Task) -> dict[str, Any]:
        return {"rows": made_rows(*task.metadata["operands"])}


def made_rows(number: int, length: int) -> list[Row]:
    """The table with this number."""
    rng = Random(f"table/{number}/{length}")
    rows: list[Row] = []
    for _ in range(_ROWS):
        if rows and rng.random() < 0.1:
            rows.append(dict(rng.choice(rows)))
            continue
        row: Row = {"city": rng.choice(_CITIES), "item": rng.choice(_ITEMS), "day": rng.randint(1, 28)}
        row["qty"] = None if rng.random() < 0.15 else rng.randint(1, 40)
        row["price"] = None if rng.random() < 0.15 else rng.randint(2, 90)
        rows.append(row)
    return rows


def steps(number: int, length: int) -> list[Step]:
    """The steps of the task with this number, the last one without its submission: `length` - 1 lines."""
    rng = Random(f"steps/{number}/{length}")
    if length - 1 < len(_CLEAN):
        return [_CLEAN[0], ("add total, qty times 3", "rows = [{**r, 'total': r['qty'] * 3} for r in rows]")][
            : length - 1
        ]
    return [*_CLEAN, *(rng.choice(_MORE)(rng) for _ in range(length - 1 - len(_CLEAN)))]


def answer(number: int, length: int) -> int:
    """The sum of the totals after all steps."""
    names = {"rows": made_rows(number, length)}
    for _, line in steps(number, length):
        exec(line, names)  # our own lines, from this file
    return sum(row["total"] for row in names["rows"])


def _add(rng: Random) -> Step:
    more, city = rng.randint(1, 99), rng.choice(_CITIES)
    return (
        f"add {more} to total in {city}",
        f"rows = [{{**r, 'total': r['total'] + {more} * (r['city'] == '{city}')}} for r in rows]",
    )


def _scale(rng: Random) -> Step:
    factor, item = rng.randint(2, 5), rng.choice(_ITEMS)
    return (
        f"multiply the total of {item}s by {factor} and take all totals modulo 9973",
        f"rows = [{{**r, 'total': r['total'] * {factor} ** (r['item'] == '{item}') % 9973}} for r in rows]",
    )


def _drop(rng: Random) -> Step:
    city, day = rng.choice(_CITIES), rng.randint(1, 28)
    return (
        f"drop the rows of {city} on day {day}",
        f"rows = [r for r in rows if (r['city'], r['day']) != ('{city}', {day})]",
    )


def _rank(rng: Random) -> Step:
    key = rng.choice(("city", "item"))
    return (
        f"add to each total the number of rows with its {key}",
        f"rows = [{{**r, 'total': r['total'] + sum(o['{key}'] == r['{key}'] for o in rows)}} for r in rows]",
    )


_MORE: tuple[Callable[[Random], Step], ...] = (_add, _scale, _drop, _rank)


def _question(number: int, length: int) -> tuple[str]:
    return ("; ".join(words for words, _ in steps(number, length)),)


def table(length: int) -> Family:
    """The family `table-LENGTH`: `tasks.families: [studies.branching.worlds.table:table-10]`."""
    return Family(
        f"table-{length}",
        lambda rng: (rng.randrange(10**9), length),
        answer,
        ("rows is a list of dicts. In this order: {0}. Submit the sum of the totals.",),
        present=_question,
        environment="studies.branching.worlds.table:Table",
    )
