"""Text: what is safe to show, the ends of what is too long to show whole, Python code, and hints at misspelt names."""

import ast
import difflib
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

# C0 and C1 controls, bidirectional and zero-width ones, line separators, lone surrogates, byte order mark, tags.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)

_STRING = re.compile(
    r"""(['"])(?:(?!\1)[^\\\n]|\\(?:[\\'"abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}))*+\1"""
)
"""A string as its `repr` shows it."""
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
"""How a box begins in LaTeX."""


def string_of(written: str) -> str | None:
    """The string whose `repr` this is; None for any other text. Nothing is parsed or evaluated as Python, which hostile
    text could make slow, or fail in unforeseen ways."""
    if not _STRING.fullmatch(written):
        return None
    try:
        return written[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:  # beyond the last character there is
        return None


def parsed(source: str) -> ast.Module | None:
    """The syntax tree of Python code; None if it does not parse. Python's warnings about the code are not shown."""
    with warnings.catch_warnings(action="ignore"):
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None


def nearest(name: str, known: Collection[str]) -> str:
    """A hint for an error message: the known name nearest to a misspelt one, or all known names if none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {str(close[0])!r}?"
    return f"known are {', '.join(map(str, known))}"


def whole(text: str) -> str:
    """The text with halves of characters (lone surrogates), which no tokenizer takes, as Python writes them."""
    return text.encode("utf-8", "backslashreplace").decode()


def sendable(text: str) -> str:
    """The text with question marks for halves of characters."""
    return text.encode("utf-8", "replace").decode()


def last_box(text: str) -> str | None:
    """What the last `\\boxed{...}` or `\\fbox{...}` holds, inner braces included; None if none is closed."""
    pieces = BOX.split(text)
    if len(pieces) == 1:
        return None
    content = pieces[-1]
    depth = 1
    for index, character in enumerate(content):
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        if depth == 0:
            return content[:index].strip()
    return None


def shown(value: object) -> str:
    """Its `repr`, cut to 200 characters; its type where `repr` fails, as it does for a very long number."""
    try:
        return repr(value)[:200]
    except Exception:  # noqa: BLE001 - an object's own __repr__ may raise anything
        return f"<{type(value).__name__}>"


def visible(text: str) -> str:
    """`text` with everything that steers a terminal or hides on a page written as a Python escape.

    Newline and tab stay. Lone surrogates become escapes too, so the result always encodes as UTF-8.
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


@dataclass(frozen=True, slots=True)
class Excerpt(Generic[T]):
    """`head`, then `left_out` items that are missing, then `tail`. All of it is `head` where nothing is left out."""

    head: tuple[T, ...]
    left_out: int = 0
    tail: tuple[T, ...] = ()


def excerpt(items: Sequence[T], budget: int, cost: Callable[[T], int] = lambda item: 1) -> Excerpt[T]:
    """As many items from both ends as cost at most `budget`; the first and the last are always included.

    Each end gets half. `cost` is asked only about items that may be shown, and one beyond.
    """

    def count_within(items: Sequence[T], budget: int) -> int:
        for count, item in enumerate(items):
            budget -= cost(item)
            if budget < 0:
                return count
        return len(items)

    if len(items) < 3 or count_within(items, budget) == len(items):
        return Excerpt(tuple(items))
    head = max(1, count_within(items, budget // 2))
    rest_reversed = items[: head - 1 : -1]
    tail = max(1, count_within(rest_reversed, budget // 2))
    tail_start = len(items) - tail
    return Excerpt(tuple(items[:head]), tail_start - head, tuple(items[tail_start:]))


def cut_middle(text: str, limit_chars: int, marker: str, *, marker_counts: bool = False) -> str:
    """`text`; if it is longer than `limit_chars`, its two ends around `marker.format(NUMBER OF MISSING CHARACTERS)`.

    The ends have `limit_chars` characters together; with `marker_counts`, the result has at most that many.
    """
    if len(text) <= limit_chars:
        return text
    ends_chars = limit_chars
    if marker_counts:
        ends_chars -= len(marker.format(len(text)))
    tail_chars = ends_chars // 2
    head = text[: ends_chars - tail_chars]
    tail = text[len(text) - tail_chars :]
    return head + marker.format(len(text) - ends_chars) + tail
