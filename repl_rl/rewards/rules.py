"""Rewards by text, output, exception, repetition and position: `rewards.rules`.

Of an exception the host sees a name, never the object. Builtins have the hierarchy of the Python that runs here; any
other class counts as an `Exception` of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from repl_rl.config.rewards import BUILTIN_EXCEPTIONS, RewardRule, reported_name
from repl_rl.rewards.history import History
from repl_rl.trajectory import Line, LineKind

BROAD = frozenset({"Exception", "BaseException"})
"""Cover lines of the kind `exception` alone: a syntax error or a time-out has a kind of its own."""


@lru_cache(1024)
def lineage(error_name: str) -> tuple[str, ...]:
    """The names of the class and its bases, most specific first."""
    known = BUILTIN_EXCEPTIONS.get(error_name)
    classes = [cls.__name__ for cls in (known or Exception).__mro__ if issubclass(cls, BaseException)]
    return tuple(classes) if known else (error_name, *classes)


def classes_of(line: Line) -> tuple[str, ...]:
    """The classes that a config may name to mean this line's exception, most specific first; none if it raised none."""
    if line.error_name is None:
        return ()
    bases = lineage(line.error_name)
    if line.kind is LineKind.EXCEPTION:
        return bases
    return tuple(name for name in bases if name not in BROAD)


class Rule:
    """One rule, its patterns compiled."""

    def __init__(self, rule: RewardRule) -> None:
        self.name = rule.name
        self._rule = rule
        self._text = None if rule.text is None else re.compile(rule.text)
        self._output = None if rule.output is None else re.compile(rule.output)
        self._exceptions = frozenset(map(reported_name, rule.exceptions))

    def rewards(self, lines: Sequence[Line], past: History) -> tuple[float, ...]:
        """Of each line: the rule's reward where all its conditions hold, else 0."""
        last = len(lines) - 1
        return tuple(
            self._rule.reward if self._holds(index, line, last, past) else 0.0 for index, line in enumerate(lines)
        )

    def _holds(self, index: int, line: Line, last: int, past: History) -> bool:
        rule = self._rule
        return (
            (not rule.kinds or line.kind in rule.kinds)
            and (not self._exceptions or not self._exceptions.isdisjoint(classes_of(line)))
            and (self._text is None or self._text.search(line.text) is not None)
            and (self._output is None or self._output.search(line.output) is not None)
            and (rule.times is None or (rule.times == "repeated") == (past.earlier[index] > 0))
            and (rule.stale is None or rule.stale == past.stale[index])
            and (rule.at is None or index == (0 if rule.at == "first" else last))
            and (rule.after is None or index >= rule.after)
        )
