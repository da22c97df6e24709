from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.trajectory import LineKind
from repl_rl.utils.text import Excerpt, excerpt
from repl_rl.view.display import OPEN_ROWS, Part, transcript_parts
from repl_rl.view.transcript import screen_rows, transcript_rows
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


def test_a_long_session_is_folded_in_its_middle() -> None:
    made = make_trajectory("t", "q", [(f" f({n})\n", LineKind.STATEMENT, None, f"{n}\n>>>") for n in range(200)])
    assert shape(transcript_parts(made.prompt, made.lines, None, 10**6)) == [
        ("", 2 + OPEN_ROWS),
        ("281 rows, lines 31 to 171", 281),
        ("", OPEN_ROWS),
    ]


@given(st.integers(1, 150), st.integers(10_000, 200_000), st.integers(0, 20))
def test_every_row_is_shown_once_or_counted(lines: int, budget: int, prompt_rows: int) -> None:
    made = make_trajectory("t", "q\n" * prompt_rows, [(" x\n", LineKind.EXPRESSION, None, "1\n2\n>>>")] * lines)
    parts = transcript_parts(made.prompt, made.lines, None, budget)
    gaps = [int(part.left_out.split()[0].replace(",", "")) for part in parts if part.left_out]
    shown = [row for part in parts for row in part.rows]
    assert len(shown) + sum(gaps) == len(screen_rows(made))
    numbers = [int(found[1]) for row in shown if (found := re.search(r'class="n">(\d+)<', row))]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (1, lines)
    assert len(numbers) == lines or gaps
    assert not any(part.rows and part.left_out for part in parts)


@pytest.mark.parametrize(("pending", "rows"), [(None, []), (" x\n", [3]), (" if x:\n    y\n", [3, 4]), (" x", [3])])
def test_the_rows_that_run_are_the_last_ones(pending: str | None, rows: list[int]) -> None:
    made = make_trajectory("t", "q", [(" y\n", LineKind.EXPRESSION, None, "1\n>>>")])
    shown = transcript_rows(">>>", made.lines, pending)
    assert [index for index, row in enumerate(shown, 1) if row.pending] == rows
