"""The identity of a problem: equal problems have the same one, and it decides the split that a problem belongs to.

The identity is made from the problem's content: the family, the values in its question, in any order, its context, and
what its environment shows and gives a session when it begins, with the answer. The numbers that the problem was drawn
by do not count, because two numbers may make one puzzle. The identity is computed from the family, so that no family
can forget to state it.
"""

import asyncio
import hashlib
import inspect
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import count
from random import Random
from string import Formatter
from typing import Any, Literal

from repl_rl.errors import ConfigError, DependencyError
from repl_rl.tasks.families import Family
from repl_rl.trajectory import Task
from repl_rl.utils.import_path import imported
from repl_rl.utils.text import shown
from repl_rl.utils.user_code import Seam, boundary, called, failure

Split = Literal["train", "heldout"]

_HELDOUT_ONE_IN = 8
_SALT = "6"
"""With it, each puzzle of `notebooks/puzzles.py` has problems on both sides, those of which there are six included."""
_SEEN: set[str] = set()
"""Families whose environments have been seen to begin in the same way twice."""


def identity_of(name: str, family: Family | None, operands: Sequence[int]) -> bytes:
    """A digest of the problem's content, the same in every process.

    Raises ConfigError if the family's environment can't be begun here, or begins differently each time, unless all
    operands stand in the question.
    """
    values: Sequence[Any] = operands
    if family is not None and family.identity is not None:
        values = [called(Seam.FAMILY, family.identity, *operands)]
    elif family is not None:
        values = _question_values(family, operands)
    parts = [family.name if family else name]
    for value in sorted(values, key=_order):
        parts.append(_words(value))
    if family is not None and family.identity is None:
        if family.context is not None:
            parts.append(_data(called(Seam.FAMILY, family.context, *operands)))
        elif family.environment and ":" in family.environment:
            try:
                beginning = _beginning(name, family, operands)
                parts += [_SALT, *beginning]
            except ConfigError:
                is_told_by_question = all(operand in values for operand in operands)
                if not is_told_by_question:
                    raise
    return hashlib.sha256(" ".join(parts).encode(errors="surrogatepass")).digest()


def split_by(identity: bytes) -> Split:
    """The split of a problem, for every seed."""
    return "heldout" if int.from_bytes(identity[:8], "big") % _HELDOUT_ONE_IN == 0 else "train"


def drawn_operands(family: Family, rng: Random) -> Sequence[int]:
    """Raises ExtensionError if `draw` returns something else."""
    operands = called(Seam.FAMILY, family.draw, rng)
    return _require_tuple(family.draw, operands)


def question_of(family: Family, phrasing: str, operands: Sequence[int]) -> str:
    """Raises ConfigError for a phrasing that can't be filled in, ExtensionError if `present` returns no tuple."""
    values = _presented(family, operands)
    try:
        return phrasing.format(*values)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"tasks.families: phrasing {phrasing!r} of family {family.name!r} can't be filled in with its "
            f"{len(values)} values ({type(error).__name__}: {error}); {{0}}, {{1}}, ... stand for what `present` "
            "returns, and braces themselves are written twice"
        ) from error


def _presented(family: Family, operands: Sequence[int]) -> Sequence[Any]:
    values = called(Seam.FAMILY, family.present, *operands)
    return _require_tuple(family.present, values)


def _require_tuple(function: Any, returned: Any) -> Sequence[Any]:
    if isinstance(returned, tuple | list):
        return returned
    raise failure(Seam.FAMILY, function, f"returned {shown(returned)}, not a tuple")


def _question_values(family: Family, operands: Sequence[int]) -> list[Any]:
    """The values that stand in the question."""
    fields = set()
    for phrasing in family.phrasings:
        automatic = count()
        for _, field, *_ in Formatter().parse(phrasing):
            if field is None:
                continue
            number, *_ = re.split(r"[.\[]", field)  # {0[1]} and {0.name} are of value 0
            fields.add(number or str(next(automatic)))
    return [value for index, value in enumerate(_presented(family, operands)) if str(index) in fields]


def _order(value: Any) -> tuple[bool, Any]:
    """A key for sorting: numbers by size, then everything else by its text."""
    if isinstance(value, int):
        return False, value
    return True, _words(value)


def _words(value: Any) -> str:
    return " ".join(str(value).split())


def _data(value: Any) -> str:
    """Plain data as a text. Of other values only the type counts, which can only make more problems equal."""

    def plain(other: Any) -> Any:
        if isinstance(other, (set, frozenset)):
            return sorted(map(repr, other))
        return type(other).__name__

    try:
        return json.dumps(value, sort_keys=True, default=plain)
    except (TypeError, ValueError):  # keys of several types, a circle
        return type(value).__name__


def _beginning(name: str, family: Family, operands: Sequence[int]) -> list[str]:
    """The beginning of a session of the problem, as texts: the answer, what is shown, and the values it is given."""
    answer = str(called(Seam.FAMILY, family.solve, *operands))
    question = question_of(family, family.phrasings[0], operands)
    task = Task(family.name, question, answer, name, {"operands": list(operands)})
    class_or_instance = imported(str(family.environment), "environment", "package.module:Class")

    async def begin() -> list[str]:
        environment = class_or_instance() if callable(class_or_instance) else deepcopy(class_or_instance)
        try:
            names = await _awaited(environment.reset(task)) or {}
            observation = ""
            if hasattr(environment, "observe"):
                observation = await _awaited(environment.observe()) or ""
            texts = [answer, _words(observation)]
            values = {name: value for name, value in sorted(names.items()) if not callable(value)}
            if values:
                texts.append(_data(values))
            return texts
        finally:
            if hasattr(environment, "close"):
                await _awaited(environment.close())

    times = 1 if name in _SEEN else 2
    beginnings = []
    # All but a missing package becomes a ConfigError, which `identity_of` may do without.
    with (
        boundary(Seam.BEGINNING, class_or_instance, where=f"for {name!r}", through=(DependencyError,)),
        ThreadPoolExecutor(1) as thread,  # a loop may be running in this one
    ):
        for _ in range(times):
            beginnings.append(thread.submit(asyncio.run, begin()).result())
    if beginnings[0] != beginnings[-1]:
        raise ConfigError(
            f"tasks.families: the environment of {name!r} begins differently each time, so its problems can't be told "
            "apart; let everything follow from the task's operands, or say what a problem is with Family(identity=...)"
        )
    _SEEN.add(name)
    return beginnings[0]


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
