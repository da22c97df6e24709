"""What two equal problems have in common, and the split that it decides.

A problem is its content: the family, the values in its question, in any order, its context, and what its environment
shows and gives a session when it begins, with the answer. Not the numbers that it was drawn by: two numbers may make
one puzzle. All of it is computed from the family, so that no family has to say it, and none can forget it.
"""

import asyncio
import hashlib
import inspect
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from string import Formatter
from typing import Any, Literal

from repl_rl.errors import ConfigError, DependencyError
from repl_rl.tasks.families import Family
from repl_rl.trajectory import Task
from repl_rl.utils.import_path import imported

Split = Literal["train", "heldout"]

_HELDOUT_ONE_IN = 8
_SALT = "6"
"""With it, each shipped puzzle has problems on both sides, those included of which there are six in all."""
_SEEN: set[str] = set()
"""Families whose environments have been seen to begin in the same way twice."""


def identity_of(name: str, family: Family | None, operands: Sequence[int]) -> bytes:
    """A digest of the problem's content, the same in every process.

    Raises ConfigError if the family's environment can't be begun here, or begins differently each time, unless all
    operands stand in the question.
    """
    said: Sequence[Any] = operands
    if family is not None:
        said = _asked(family, operands) if family.identity is None else [family.identity(*operands)]
    parts = [family.name if family else name, *map(_words, sorted(said, key=_order))]
    if family is not None and family.identity is None:
        if family.context is not None:
            parts.append(_data(family.context(*operands)))
        elif family.environment and ":" in family.environment:
            try:
                parts += [_SALT, *_beginning(name, family, operands)]
            except ConfigError:
                if not all(operand in said for operand in operands):
                    raise
    return hashlib.sha256(" ".join(parts).encode(errors="surrogatepass")).digest()


def split_by(identity: bytes) -> Split:
    """The split of a problem, for every seed."""
    return "heldout" if int.from_bytes(identity[:8], "big") % _HELDOUT_ONE_IN == 0 else "train"


def _asked(family: Family, operands: Sequence[int]) -> list[Any]:
    """The values that stand in the question."""
    fields = {
        re.split(r"[.\[]", field)[0] for text in family.phrasings for _, field, *_ in Formatter().parse(text) if field
    }
    return [value for index, value in enumerate(family.present(*operands)) if str(index) in fields]


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then everything else by its text."""
    return (False, value) if isinstance(value, int) else (True, _words(value))


def _words(value: Any) -> str:
    return " ".join(str(value).split())


def _data(value: Any) -> str:
    """Plain data as a text. What is no plain data is left out, which can only make more problems equal."""

    def plain(other: Any) -> Any:
        return sorted(map(repr, other)) if isinstance(other, (set, frozenset)) else type(other).__name__

    try:
        return json.dumps(value, sort_keys=True, default=plain)
    except (TypeError, ValueError):  # keys of several types, a circle
        return type(value).__name__


def _beginning(name: str, family: Family, operands: Sequence[int]) -> list[str]:
    """What a session of the problem begins with, as texts: the answer, what is shown, and the values it is given."""
    answer = str(family.solve(*operands))
    question = family.phrasings[0].format(*family.present(*operands))
    task = Task(family.name, question, answer, name, {"operands": list(operands)})
    begun = imported(str(family.environment), "environment", "package.module:Class")

    async def begin() -> list[str]:
        environment = begun() if callable(begun) else deepcopy(begun)
        try:
            names = await _awaited(environment.reset(task))
            shown = await _awaited(environment.observe()) if hasattr(environment, "observe") else None
            values = {key: value for key, value in sorted((names or {}).items()) if not callable(value)}
            return [answer, _words(shown or ""), *([_data(values)] if values else [])]
        finally:
            if hasattr(environment, "close"):
                await _awaited(environment.close())

    try:
        with ThreadPoolExecutor(1) as thread:  # a loop may be running in this one
            begun_twice = [thread.submit(asyncio.run, begin()).result() for _ in range(2 if name not in _SEEN else 1)]
    except DependencyError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(
            f"tasks.families: the environment of {name!r} can't be begun to see what its problems are "
            f"({type(error).__name__}: {error}); say it with Family(identity=...), from the operands"
        ) from error
    if begun_twice[0] != begun_twice[-1]:
        raise ConfigError(
            f"tasks.families: the environment of {name!r} begins differently each time, so its problems can't be told "
            "apart; let everything follow from the task's operands, or say what a problem is with Family(identity=...)"
        )
    _SEEN.add(name)
    return begun_twice[0]


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
