"""What was typed, seen through to the statement: equal for lines that differ by spaces, comments or brackets only."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

_WORD = re.compile(r"[^\s\[\](){}<>,;:'\"]+")
_LONGEST_CHARS = 8_192
"""Beyond it, text is taken as it is: parsing is for lines, not for files."""


@dataclass(frozen=True, slots=True)
class Source:
    """`key` is equal for equal statements. `is_inert`: nothing in it binds a name. `constants` are the words of the
    constants in it: what showing them again does not tell."""

    key: str
    is_inert: bool
    constants: frozenset[str]


@lru_cache(2048)
def read_source(text: str) -> Source:
    """The statement in a cell as it was typed. What does not parse, and comments, go by their words."""
    if len(text) <= _LONGEST_CHARS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(text)
                if tree.body:
                    return _of_tree(tree)
            except (SyntaxError, ValueError, MemoryError, RecursionError):
                pass
    return Source(_key("text", " ".join(text.split())), not text.strip(), frozenset(words(text)))


def words(text: str) -> list[str]:
    """What stands between spaces, brackets, quotes and commas."""
    return _WORD.findall(text)


def _of_tree(tree: ast.Module) -> Source:
    is_inert = all(isinstance(statement, ast.Pass | ast.Expr) for statement in tree.body)
    constants = [str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return Source(_key("tree", ast.dump(tree)), is_inert, frozenset(word for text in constants for word in words(text)))


def _key(form: str, text: str) -> str:
    return f"{form} {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
