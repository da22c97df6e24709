from pathlib import Path

import pytest

from tests.folded_lines import folded_lines, main


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("a = [x for x in b] if c else [*d]", 3),
        ("a, b = (lambda: 1), (c := 2)", 3),
        ("f(*a, *b, *(x for x in c))", 4),
        ("a = [x for x in b] if c else d", 0),
        ("a = [x for x in b]; b = [x for x in a]", 0),
        ("f(\n    *a,\n    *b,\n    *c,\n)", 0),  # each has a line of its own
        ("a, *b = c", 0),
    ],
)
def test_a_line_may_fold_two(line: str, count: int) -> None:
    assert [len(kinds) for _, kinds in folded_lines(line)] == [count] * (count > 0)


def test_what_is_found_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("b = 1\na = [*b, *c, *(x for x in d)]\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        f"{tmp_path}/a.py:2: folds 4 constructs, and 2 are the most: a starred value (3), a comprehension (1)\n"
    )
    (tmp_path / "a.py").write_text("a = [*b, *c]\n")
    assert main([str(tmp_path)]) == 0
