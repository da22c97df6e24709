"""What a line is to the lines before it: part of a cell, typed before, or idle. No fact depends on later lines.

Not covered: work that shows nothing and that no name of the session leads to (see `Line.fingerprint`) counts as idle,
and a first line is not known to have changed anything unless it binds a name. Where the kernel tells no fingerprints, a
line counts as a change if it binds a name and was not typed before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from repl_rl.rewards.source import Source, read_source, words
from repl_rl.trajectory import Line, LineKind

_INSIDE = (LineKind.OPEN, LineKind.COMMENT, LineKind.BLANK)
"""Kinds of lines that a cell goes on behind."""
_NOTHING_RAN = (*_INSIDE, LineKind.OVERLONG)


@dataclass(frozen=True, slots=True)
class History:
    """Facts per line, each of length L. `starts[l]` is the line in which the cell that ends with line l began: l itself
    for lines that complete no block. `earlier[l]` counts how often the same was typed before."""

    starts: tuple[int, ...]
    earlier: tuple[int, ...]
    stale: tuple[bool, ...]


def history(lines: Sequence[Line]) -> History:
    """The facts of a trajectory's lines. The line that completes a cell is judged by the whole cell's text."""
    starts = cell_starts(lines)
    sources = [read_source(_text(lines[start : end + 1])) for end, start in enumerate(starts)]
    counts: Counter[str] = Counter()
    earlier: list[int] = []
    seen = _Seen()
    stale: list[bool] = []
    for line, source in zip(lines, sources, strict=True):
        stale.append(not seen.is_news(line, source, counts[source.key] == 0))
        earlier.append(counts[source.key])
        counts[source.key] += 1
    return History(starts, tuple(earlier), tuple(stale))


def no_history(lines: Sequence[Line]) -> History:
    """What stands in where nobody looks back: each line alone, typed for the first time, and news."""
    count = len(lines)
    return History(tuple(range(count)), (0,) * count, (False,) * count)


def cell_starts(lines: Sequence[Line]) -> tuple[int, ...]:
    """The line in which each line's cell began, for lines that complete one; every other line's own index.

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


@dataclass(slots=True)
class _Seen:
    """What has been there in a trajectory so far."""

    states: set[str] = field(default_factory=set)
    outputs: set[str] = field(default_factory=set)

    def is_news(self, line: Line, source: Source, is_first: bool) -> bool:
        """Whether the line's run changed or showed anything new. Remembers it."""
        if line.kind in _NOTHING_RAN:
            return False
        changed = self._is_new_state(line, source, is_first)
        shown = self._is_new_output(line, source)
        return changed or shown or line.kind is LineKind.ANSWER

    def _is_new_state(self, line: Line, source: Source, is_first: bool) -> bool:
        if line.fingerprint is None:
            return is_first and not source.is_inert
        known = line.fingerprint in self.states or (not self.states and source.is_inert)
        self.states.add(line.fingerprint)
        return not known

    def _is_new_output(self, line: Line, source: Source) -> bool:
        shown = line.shown.strip()
        known = shown in self.outputs or source.constants.issuperset(words(shown))
        self.outputs.add(shown)
        return not known


def _text(cell: Sequence[Line]) -> str:
    """As it was typed behind the prompts, whose one space is no part of it."""
    return "".join(line.text.removeprefix(" ") for line in cell)
