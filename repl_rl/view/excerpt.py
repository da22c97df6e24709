"""What is shown of something too long to show: its beginning and its end, and how much lies between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Excerpt(Generic[T]):
    """`head`, then `left_out` items that are not here, then `tail`. All of it is `head` where nothing is left out."""

    head: tuple[T, ...]
    left_out: int = 0
    tail: tuple[T, ...] = ()


def excerpt(items: Sequence[T], budget: int, cost: Callable[[T], int] = lambda item: 1) -> Excerpt[T]:
    """As many items from both ends as cost at most `budget`; the first and the last are there at any cost.

    Each end gets half. `cost` is asked only about items that may be shown, and one beyond.
    """
    if len(items) < 3 or _fitting(items, budget, cost) == len(items):
        return Excerpt(tuple(items))
    first = max(1, _fitting(items, budget // 2, cost))
    last = max(1, _fitting(items[: first - 1 : -1], budget // 2, cost))
    return Excerpt(tuple(items[:first]), len(items) - first - last, tuple(items[len(items) - last :]))


def _fitting(items: Sequence[T], budget: int, cost: Callable[[T], int]) -> int:
    """How many items from the first on cost no more than `budget` together."""
    for count, item in enumerate(items):
        budget -= cost(item)
        if budget < 0:
            return count
    return len(items)


def cut(text: str, limit: int) -> Excerpt[str]:
    """A text of at most `limit` characters, head and tail as one string each."""
    if len(text) <= limit:
        return Excerpt((text,))
    half = limit // 2
    return Excerpt((text[:half],), len(text) - 2 * half, (text[len(text) - half :],))


def short(text: str, limit: int) -> str:
    """The same as plain text, with a note of what is missing in its place."""
    found = cut(text, limit)
    return "".join([*found.head, *([f" … {found.left_out:,} characters … "] if found.left_out else []), *found.tail])
