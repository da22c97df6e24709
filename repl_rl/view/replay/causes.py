"""Why a cell showed something else when it ran again: named by rules that look at both texts and at the sources.

Heuristics, and meant to be read as such. A name given by the texts alone (an address, an order, a cut) says that
nothing else differs. One given by the sources (the clock, chance, other processes, tools) says that the cell works with
a value from there, by itself or through names of the session: what the difference is made of, nobody checked.

How values are followed: an import of `random`, `time` and their like marks the names that it binds; a cell that reads a
marked name marks every name that it binds or hands to a call, and `_` if it echoes. A cell that reads none clears those
that it binds anew.

Not covered: values that come through `eval`, `globals()`, files, attributes set elsewhere; modules that use chance or
the clock within. Their differences are `other`.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """What a difference comes from."""

    TIMEOUT = "timeout"
    """One of the two ran out of time, here or in a cell whose names this one reads."""
    KILLED = "killed"
    """The interpreter went down in this cell both times; what it had printed went with it."""
    TRUNCATED = "truncated"
    """The record holds the two ends alone, and they are the same."""
    ADDRESS = "address"
    """Only addresses in memory differ; or the cell works with `id` or `hash`."""
    ORDER_OF_SETS = "order of sets"
    """The same words in another order, around a set."""
    TIME = "time"
    RANDOMNESS = "randomness"
    PROCESSES = "processes"
    """Other threads and processes print past the kernel, or at another moment."""
    TOOLS = "tools"
    """It calls a tool of the run, which a notebook has not."""
    MEMORY = "memory"
    """One of the two ran out of memory: a forked session's limit counts what it adds to its packages."""
    OTHER = "other"
    """Unexplained."""


EXPLAINED = frozenset(Cause) - {Cause.OTHER}

_FOLLOWED = (Cause.TIMEOUT, Cause.TIME, Cause.RANDOMNESS, Cause.ADDRESS, Cause.PROCESSES, Cause.TOOLS)
_MODULES = {
    Cause.TIME: frozenset({"time", "datetime", "timeit", "calendar", "sched"}),
    Cause.RANDOMNESS: frozenset({"random", "secrets", "uuid", "tempfile"}),
    Cause.PROCESSES: frozenset({"subprocess", "threading", "multiprocessing", "concurrent", "asyncio", "_thread"}),
}
_ATTRIBUTES = {
    Cause.TIME: frozenset({"now", "today", "utcnow", "perf_counter", "st_mtime"}),
    Cause.RANDOMNESS: frozenset({"random", "urandom", "getrandom", "default_rng"}),
    Cause.PROCESSES: frozenset({"system", "popen", "fork", "spawnv", "Popen", "getpid"}),
}
_BUILTINS = {"id": Cause.ADDRESS, "hash": Cause.ADDRESS}
_STARRED = {
    "random": "random randint randrange choice choices shuffle sample uniform gauss getrandbits",
    "time": "time sleep perf_counter monotonic process_time ctime localtime gmtime strftime",
    "datetime": "datetime date timedelta",
}
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_CUT = re.compile(r"\n\.\.\. \[\d+ (?:characters|bytes) left out\] \.\.\.\n")
_WORD = re.compile(r"\w+|[^\w\s]")
_SET = re.compile(r"\b(?:frozen)?set\b|\{")


@dataclass(slots=True)
class Session:
    """What the names of a session depend on, cell by cell."""

    _marked: dict[str, frozenset[Cause]] = field(default_factory=dict)

    def take(self, source: str, also: Iterable[Cause] = ()) -> frozenset[Cause]:
        """The causes that a cell works with; `also` are those known of it beforehand."""
        tree = _parsed(source)
        if tree is None:
            return frozenset(also)
        for name, cause in _imports(tree):
            self._marked[name] = frozenset({cause})
        reads = [self._marked.get(name, frozenset()) for name in _names(tree, ast.Load)]
        causes = frozenset(also).union(*reads, _attributes(tree), self._builtins(tree))
        bound = {*_names(tree, ast.Store), *_defined(tree), *(_handed(tree) if causes else ())}
        self._bind(bound | ({"_"} if isinstance(tree.body[-1:][0] if tree.body else None, ast.Expr) else set()), causes)
        return causes

    def _bind(self, names: Iterable[str], causes: frozenset[Cause]) -> None:
        for name in names:
            if causes:
                self._marked[name] = self._marked.get(name, frozenset()) | causes
            else:
                self._marked.pop(name, None)

    def _builtins(self, tree: ast.Module) -> Iterator[Cause]:
        return (cause for name, cause in _BUILTINS.items() if name in set(_names(tree, ast.Load)))


def cause_of(expected: str, got: str, works_with: frozenset[Cause], source: str) -> Cause:
    """The name of the difference between two unequal texts. `source` is of the cell."""
    if Cause.TIMEOUT in works_with:
        return Cause.TIMEOUT
    expected, got, addresses = _without_addresses(expected), _without_addresses(got), Cause.ADDRESS
    if expected == got:
        return addresses
    if _is_cut_of(expected, got):
        return Cause.TRUNCATED
    if _is_reordered(expected, got, source):
        return Cause.ORDER_OF_SETS
    if "MemoryError" in expected or "MemoryError" in got:
        return Cause.MEMORY
    return next((cause for cause in _FOLLOWED if cause in works_with), Cause.OTHER)


def _without_addresses(text: str) -> str:
    return _ADDRESS.sub("0x...", text)


def _is_cut_of(expected: str, got: str) -> bool:
    """Whether `expected` is `got` without its middle. A kernel keeps the beginning of long texts only: `got` may itself
    have been cut."""
    found = _CUT.search(expected)
    if found is None:
        return False
    head, tail = expected[: found.start()], expected[found.end() :]
    fits = len(got) >= len(head) + len(tail)
    return fits and got.startswith(head) and got.endswith(tail)


def _is_reordered(expected: str, got: str, source: str) -> bool:
    has_set = _SET.search(source) is not None or "{" in got
    return has_set and sorted(_WORD.findall(expected)) == sorted(_WORD.findall(got))


def _parsed(source: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None


def _imports(tree: ast.Module) -> Iterator[tuple[str, Cause]]:
    """Names that imports bind to something that depends on a cause."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((alias.asname or alias.name.split(".")[0], cause) for cause in _of_module(alias.name))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                causes = [*_of_module(node.module or ""), *_of_attribute(alias.name)]
                names = (
                    _STARRED.get(node.module or "", "").split() if alias.name == "*" else [alias.asname or alias.name]
                )
                yield from ((name, cause) for name in names for cause in causes)


def _of_module(path: str) -> list[Cause]:
    return [cause for cause, modules in _MODULES.items() if modules & set(path.split("."))]


def _of_attribute(name: str) -> list[Cause]:
    return [cause for cause, names in _ATTRIBUTES.items() if name in names]


def _attributes(tree: ast.Module) -> Iterator[Cause]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from _of_attribute(node.attr)


def _names(tree: ast.Module, context: type[ast.expr_context]) -> Iterator[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context))


def _defined(tree: ast.Module) -> Iterator[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return (node.name for node in ast.walk(tree) if isinstance(node, kinds))


def _handed(tree: ast.Module) -> Iterator[str]:
    """Names that a call, a method or a subscript may change what they stand for."""
    for node in ast.walk(tree):
        places: list[ast.expr] = []
        if isinstance(node, ast.Call):
            places = [*node.args, node.func.value] if isinstance(node.func, ast.Attribute) else [*node.args]
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            places = [node.value]
        yield from (place.id for place in places if isinstance(place, ast.Name))
