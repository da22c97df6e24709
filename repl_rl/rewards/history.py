"""How a line relates to the lines before it: part of a cell, a repetition, or stale. No fact depends on later lines.

Lines that differ only in spaces, comments, quotes or redundant brackets count as the same line, typed again.

Not covered: work that shows nothing and that can't be reached from a name of the session (see `Line.fingerprint`)
counts as stale, and a first line counts as a change only if it binds a name. If the kernel reports no fingerprints, a
line counts as a change if it binds a name and was not typed before.
"""

import ast
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from repl_rl.trajectory import Line, LineKind
from repl_rl.utils.text import parsed

_INSIDE = (LineKind.OPEN, LineKind.COMMENT, LineKind.BLANK)
"""Kinds of lines that do not end an open cell."""
_WORD = re.compile(r"[^\s\[\](){}<>,;:'\"]+")
_LONGEST_CHARS = 8_192
"""Longer text is not parsed but compared as it is: parsing is meant for lines, not for files."""


@dataclass(frozen=True, slots=True)
class History:
    """Facts per line, each of length L. `starts[l]` is the line in which the cell that ends with line l began, or l
    itself if line l completes no block. `earlier[l]` is how often the same was typed before. `stale[l]` is whether the
    line ran nothing, or changed nothing and showed nothing new."""

    starts: tuple[int, ...]
    earlier: tuple[int, ...]
    stale: tuple[bool, ...]


def history(lines: Sequence[Line]) -> History:
    """The facts about a trajectory's lines. A line that completes a cell is judged by the text of the whole cell."""
    starts = cell_starts(lines)
    counts: Counter[str] = Counter()
    open_counts: Counter[str] = Counter()
    states: set[str] = set()
    outputs: set[str] = set()
    earlier: list[int] = []
    stale: list[bool] = []
    for end, (line, start) in enumerate(zip(lines, starts, strict=True)):
        statement = read_statement(_source(lines[start : end + 1]))
        is_news = False
        if line.kind.ran:
            if line.fingerprint is None:
                has_changed = counts[statement.key] == 0 and not statement.is_inert
            elif states:
                has_changed = line.fingerprint not in states
            else:  # no state before the first line is known, so only what it typed says whether it changed anything
                has_changed = not statement.is_inert
            if line.fingerprint is not None:
                states.add(line.fingerprint)
            output = line.shown.strip()
            has_shown = output not in outputs and not statement.constants.issuperset(words(output))
            outputs.add(output)
            is_news = has_changed or has_shown or line.kind is LineKind.ANSWER
        stale.append(not is_news)
        # The one line of a fenced block is part of a cell of the same text, and no repetition of it.
        counted = open_counts if line.kind is LineKind.OPEN else counts
        earlier.append(counted[statement.key])
        counted[statement.key] += 1
    return History(starts, tuple(earlier), tuple(stale))


def _source(lines: Sequence[Line]) -> str:
    """The code that these lines make up: what ran, without the marks that a dialect has around it; or all that was
    typed, if nothing ran or a call was refused."""
    sources = [cell.source for cell in lines[-1].cells]
    if sources and all(sources):
        return "\n".join(sources)
    # The one space after a prompt is not part of what was typed.
    return "".join(line.text.removeprefix(" ") for line in lines)


def no_history(lines: Sequence[Line]) -> History:
    """The facts for configs that never look back: every line is a cell of its own, new, and not stale."""
    count = len(lines)
    return History(tuple(range(count)), (0,) * count, (False,) * count)


def cell_starts(lines: Sequence[Line]) -> tuple[int, ...]:
    """For each line that completes a cell, the line in which the cell began; for every other line, its own index.

    OPEN lines belong to the cell that a later line completes, and so do comments and blank lines between them.
    """
    starts: list[int] = []
    open_since: int | None = None
    for index, line in enumerate(lines):
        if line.kind in _INSIDE:
            starts.append(index)
            if line.kind is LineKind.OPEN and open_since is None:
                open_since = index
        else:
            starts.append(index if open_since is None else open_since)
            open_since = None
    return tuple(starts)


@dataclass(frozen=True, slots=True)
class Statement:
    """`key` is equal for equal statements. `is_inert` says that nothing in it binds a name. `constants` are the words
    of its constants: showing those again is not news."""

    key: str
    is_inert: bool
    constants: frozenset[str]


@lru_cache(2048)
def read_statement(text: str) -> Statement:
    """The statement in a cell as it was typed. Comments and text that does not parse are compared by their words."""
    tree = parsed(text) if len(text) <= _LONGEST_CHARS else None
    if tree is not None and tree.body:
        with suppress(ValueError, MemoryError, RecursionError):  # a number that is too long to show, or deep nesting
            is_inert = all(isinstance(node, ast.Pass | ast.Expr) for node in tree.body)
            constants: set[str] = set()
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant):
                    constants.update(words(str(node.value)))
            return Statement(_key("tree", ast.dump(tree)), is_inert, frozenset(constants))
    return Statement(_key("text", " ".join(text.split())), not text.strip(), frozenset(words(text)))


def words(text: str) -> list[str]:
    """The words of a text: what is between spaces, brackets, quotes, commas and colons."""
    return _WORD.findall(text)


def _key(form: str, text: str) -> str:
    return f"{form} {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
