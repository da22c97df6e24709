from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.trajectory import LineKind
from repl_rl.utils.text import Excerpt, cut, excerpt
from repl_rl.view.transcript import OPEN_ROWS, Part, screen_rows, session_parts, trajectory_parts
from repl_rl.view.words import short
from tests.view.conftest import make_trajectory


def shape(parts: list[Part]) -> list[tuple[str, int]]:
    return [(part.title or part.left_out, len(part.rows)) for part in parts]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 200))
def test_an_excerpt_is_two_ends_and_a_count(costs: list[int], budget: int) -> None:
    items = list(enumerate(costs))
    kept = excerpt(items, budget, lambda item: item[1])
    assert len(kept.head) + kept.left_out + len(kept.tail) == len(items)
    assert list(kept.head) == items[: len(kept.head)]
    assert list(kept.tail) == items[len(items) - len(kept.tail) :]
    if kept.left_out:
        assert sum(cost for _, cost in (*kept.head[1:], *kept.tail[:-1])) <= budget
    if sum(costs) <= budget:
        assert kept == Excerpt(tuple(items))
    if items:
        assert kept.head
        assert (kept.tail or kept.head)[-1] == items[-1]


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [("abcdef", 6, "abcdef"), ("abcdefg", 6, "abc … 1 characters … efg"), ("abcdefghi", 2, "a … 7 characters … i")],
)
def test_a_text_is_cut_in_its_middle(text: str, limit: int, shown: str) -> None:
    assert short(text, limit) == shown
    assert cut(text, limit).left_out == max(0, len(text) - limit)


def test_a_long_session_is_folded_in_its_middle() -> None:
    made = make_trajectory("t", "q", [(f" f({n})\n", LineKind.STATEMENT, None, f"{n}\n>>>") for n in range(200)])
    assert shape(trajectory_parts(made, 10**6)) == [
        ("", 2 + OPEN_ROWS),
        ("rows 61 to 260, lines 31 to 130", 200),
        ("rows 261 to 341, lines 131 to 171", 81),
        ("", OPEN_ROWS),
    ]


@given(st.integers(1, 150), st.integers(1_000, 100_000), st.integers(0, 20))
def test_every_row_is_shown_once_or_counted(lines: int, budget: int, prompt_rows: int) -> None:
    made = make_trajectory("t", "q\n" * prompt_rows, [(" x\n", LineKind.EXPRESSION, None, "1\n2\n>>>")] * lines)
    parts = trajectory_parts(made, budget)
    gaps = [int(part.left_out.split()[0].replace(",", "")) for part in parts if part.left_out]
    shown = [row for part in parts for row in part.rows]
    assert len(shown) + sum(gaps) == len(screen_rows(made))
    numbers = [note.number for row in shown for note in row.notes.head]
    assert numbers == sorted(set(numbers))
    rows = screen_rows(made)
    ends = [[piece.text.head[0] for piece in row.pieces.head] for row in (shown[0], shown[-1])]
    assert ends == [[piece.text for piece in row.pieces] for row in (rows[0], rows[-1])]
    assert len(numbers) == lines or gaps
    assert not any(part.rows and part.left_out for part in parts)


@pytest.mark.parametrize(("pending", "rows"), [(None, []), (" x\n", [3]), (" if x:\n    y\n", [3, 4]), (" x", [3])])
def test_the_rows_that_run_are_the_last_ones(pending: str | None, rows: list[int]) -> None:
    typed = [(" y\n", LineKind.EXPRESSION, None, "1\n>>>")]
    made = make_trajectory("t", "q", typed)
    shown = [row for part in session_parts(">>>", made.lines, pending, 10**6) for row in part.rows]
    assert [index for index, row in enumerate(shown, 1) if row.pending] == rows
