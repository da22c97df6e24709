"""Families for small pretrained models: one operation on numbers of two or three digits, asked in plain words.

They are named in a config (`tasks.families`) and never among the ones that null stands for. A base model without any
training solves some of them by typing the question's expression, which is what reinforcement learning needs to start
from. Pure and stdlib only; the random source is handed in.
"""

from __future__ import annotations

import operator
from random import Random

from repl_rl.tasks.families import Family, Operands


def _draw_two(rng: Random) -> Operands:
    return rng.randint(11, 99), rng.randint(11, 99)


def _draw_larger_first(rng: Random) -> Operands:
    first, second = rng.sample(range(11, 999), 2)
    return max(first, second), min(first, second)


def _draw_small_remainder(rng: Random) -> Operands:
    divisor = rng.randint(3, 29)
    return divisor * rng.randint(11, 99) + rng.randint(1, divisor - 1), divisor


def _draw_three_digits(rng: Random) -> Operands:
    return rng.randint(101, 999), rng.randint(101, 999)


_ALL = (
    Family(
        "small_sum",
        _draw_three_digits,
        operator.add,
        ("What is {0} + {1}?", "Add {0} and {1}.", "What is the sum of {0} and {1}?"),
    ),
    Family(
        "small_difference",
        _draw_larger_first,
        operator.sub,
        ("What is {0} - {1}?", "Subtract {1} from {0}.", "What is {0} minus {1}?"),
    ),
    Family(
        "small_product",
        _draw_two,
        operator.mul,
        ("What is {0} * {1}?", "Multiply {0} by {1}.", "What is {0} times {1}?"),
    ),
    Family(
        "small_remainder",
        _draw_small_remainder,
        operator.mod,
        (
            "What is {0} % {1}?",
            "What is the remainder of {0} divided by {1}?",
            "Find the remainder when {0} is divided by {1}.",
        ),
    ),
)

EASY_FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
"""Every easy family by its name."""
