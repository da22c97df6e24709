"""What docs/training-your-own.md says has been tested is written from the `covers` marks of the tests.

python tests/docs/test_docs_states.py      # writes the table
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "training-your-own.md"
BEGIN, END = "<!-- from the tests -->\n", "<!-- end -->\n"


def table() -> str:
    """A row for each mark: the setup, what is tested with it, and the command that runs it."""
    rows = sorted(row for path in TESTS.rglob("test_*.py") for row in _rows(ast.parse(path.read_text("utf-8"))))
    head = "| setup, on CPUs | what tests show | run by |\n|---|---|---|\n"
    return head + "".join(
        f"| {setup} | {what} | `make {'test-all' if slow else 'test'}` |\n" for setup, what, slow in rows
    )


def _rows(module: ast.Module) -> Iterator[tuple[str, str, bool]]:
    everywhere = [node.value for node in module.body if isinstance(node, ast.Assign) and _names(node) == ["pytestmark"]]
    yield from _marked(everywhere, is_slow=_is_slow(everywhere))
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            yield from _marked(node.decorator_list, is_slow=_is_slow([*everywhere, *node.decorator_list]))


def _marked(nodes: Iterable[ast.expr], is_slow: bool) -> Iterator[tuple[str, str, bool]]:
    for node in (each for marks in nodes for each in ast.walk(marks)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.covers":
            setup, what = map(ast.literal_eval, node.args)
            yield setup, what, is_slow


def _is_slow(nodes: Iterable[ast.expr]) -> bool:
    return any(ast.unparse(each) == "pytest.mark.slow" for marks in nodes for each in ast.walk(marks))


def _names(node: ast.Assign) -> list[str]:
    return [ast.unparse(target) for target in node.targets]


def _split() -> tuple[str, str, str]:
    """The page before the table, the table, and what follows."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    written, _, after = rest.partition(END)
    return before, written, after


def test_the_table_is_what_the_tests_say() -> None:
    assert table().count("\n") > 8
    assert _split()[1] == table(), "python tests/docs/test_docs_states.py writes it"


if __name__ == "__main__":
    before, _, after = _split()
    PAGE.write_text(before + BEGIN + table() + END + after, encoding="utf-8")
