"""Finds lines that fold too much: `python tests/folded_lines.py repl_rl kernels`, a part of `make lint`.

Comprehensions, conditional expressions, lambdas, assignments in expressions, starred values and `a, b = x, y` each fold
a statement into a part of a line. One or two read well; a line that holds three has to be read twice.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MOST = 2
"""So many may begin on one line."""
_FOLDS = {
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.IfExp: "a conditional expression",
    ast.Lambda: "a lambda",
    ast.NamedExpr: "an assignment in an expression",
    ast.Starred: "a starred value",
}


def folded_lines(source: str) -> Iterator[tuple[int, list[str]]]:
    """The numbers of lines on which more than `MOST` folds begin, and what these are."""
    folds: dict[int, list[str]] = {}
    for node in ast.walk(ast.parse(source)):
        kind = _FOLDS.get(type(node))
        if _assigns_several(node):
            kind = "several values assigned at once"
        if kind is not None:
            folds.setdefault(node.lineno, []).append(kind)
    for number in sorted(folds):
        if len(folds[number]) > MOST:
            yield number, folds[number]


def _assigns_several(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def main(folders: list[str]) -> int:
    """Print what is found in the folders; 1 if there is anything."""
    count = 0
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            for number, kinds in folded_lines(path.read_text(encoding="utf-8")):
                names = ", ".join(f"{name} ({times})" for name, times in Counter(kinds).items())
                print(f"{path}:{number}: folds {len(kinds)} constructs, and {MOST} are the most: {names}")
                count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
