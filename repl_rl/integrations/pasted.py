"""A program that a model hands over in one piece, as the turn of someone who types it statement by statement.

A terminal would end a function at the first blank line inside it, and refuse a statement right behind an indented
block. Models that write whole programs know neither, so a program that parses is taken apart by its grammar: one cell
per statement, its expressions echoed. One that doesn't parse is typed line by line, which shows the error where a
terminal shows it, behind the output of what came before it.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from itertools import pairwise

from repl_rl.dialect import Cell, PythonReader, Turn
from repl_rl.trajectory import LineKind

_OPENS_BLOCK = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)


def read_program(code: str) -> Turn:
    """`code` as one turn, behind which nothing stays open."""
    body = _statements(code)
    if body is None:
        return PythonReader().read(code.encode("utf-8", "surrogatepass"), end_of_input=True)
    return Turn(code, tuple(_cells(code, body)), LineKind.COMMENT if code.strip() else LineKind.BLANK)


def _statements(code: str) -> list[ast.stmt] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code).body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None


def _cells(code: str, body: list[ast.stmt]) -> Iterator[Cell]:
    """Statements that share a line make one cell."""
    lines = re.split(r"\r\n|\r|\n", code)
    for group in _by_line(body):
        end = group[-1].end_lineno
        source = "\n".join(lines[_first_line(group[0]) - 1 : end])
        is_block = isinstance(group[-1], _OPENS_BLOCK)
        kind = LineKind.EXPRESSION if isinstance(group[-1], ast.Expr) else LineKind.STATEMENT
        yield Cell(f"{source}\n" if is_block else source, kind)


def _by_line(body: list[ast.stmt]) -> list[list[ast.stmt]]:
    groups = [[statement] for statement in body[:1]]
    for before, statement in pairwise(body):
        if _first_line(statement) == before.end_lineno:
            groups[-1].append(statement)
        else:
            groups.append([statement])
    return groups


def _first_line(statement: ast.stmt) -> int:
    """Where a statement begins, its decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])
