"""What docs/training-your-own.md says has been tested is written from the `covers` marks of the tests.

python tests/docs/test_docs_states.py      # writes the table
"""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "training-your-own.md"
BEGIN, END = "<!-- from the tests -->\n", "<!-- end -->\n"
TARGETS = {"pytest.mark.slow": "test-all", "pytest.mark.more": "test-more"}


def table() -> str:
    """A row for each mark: the setup, what is tested with it, and the command that runs it."""
    texts = [path.read_text("utf-8") for path in TESTS.rglob("test_*.py")]
    rows = sorted(row for text in texts if "mark.covers(" in text for row in _rows(ast.parse(text)))
    head = "| setup, on CPUs | what tests show | run by |\n|---|---|---|\n"
    return head + "".join(f"| {setup} | {what} | `make {target}` |\n" for setup, what, target in rows)


def _rows(module: ast.Module) -> Iterator[tuple[str, str, str]]:
    everywhere = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for own in (everywhere, *(node.decorator_list for node in functions)):
        marks = [each for part in own for each in ast.walk(part)]
        said = {ast.unparse(each) for each in [*marks, *(each for part in everywhere for each in ast.walk(part))]}
        for node in marks:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.covers":
                setup, what = map(ast.literal_eval, node.args)
                yield setup, what, next((target for mark, target in TARGETS.items() if mark in said), "test")


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
