"""The rows of a transcript: who wrote what, what is written out, and what is folded or left out of long ones."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.trajectory import LineKind, StopReason
from repl_rl.utils.text import Excerpt, excerpt, visible
from repl_rl.view.display import OPEN_ROWS, Part, transcript_parts
from repl_rl.view.transcript import Origin, screen_rows, transcript_rows
from repl_rl.view.words import short
from tests.view.conftest import failed_trajectory, make_trajectory

KINDS = st.sampled_from([LineKind.STATEMENT, LineKind.EXPRESSION, LineKind.ANSWER])
TURNS = st.lists(st.tuples(st.text(max_size=12), KINDS, st.none(), st.text(max_size=12)), min_size=1, max_size=5)


def test_a_row_of_prompt_and_typed_text_says_who_wrote_what() -> None:
    row = screen_rows(failed_trajectory())[-1]
    assert [(piece.origin, piece.text) for piece in row.pieces] == [
        (Origin.INTERPRETER, ">>>"),
        (Origin.TYPED, " submit_final_answer(12)"),
    ]
    assert row.lines == (failed_trajectory().lines[1],)


def test_typed_ahead_text_opens_the_next_line_on_the_same_row() -> None:
    typed = [
        (" if x:\n    ", LineKind.OPEN, None, ""),
        ("y = 1\n\n", LineKind.STATEMENT, None, ">>>"),
        (" y\n", LineKind.EXPRESSION, None, "1\n"),
    ]
    trajectory = make_trajectory("t", "q", typed)
    rows = [(row.mark, "".join(p.text for p in row.pieces), row.lines) for row in screen_rows(trajectory)[1:]]
    first, second, third = trajectory.lines
    assert rows == [
        ("¶", ">>> # q", ()),
        ("›", ">>> if x:", (first,)),
        ("›", "    y = 1", (second,)),
        ("›", "", ()),
        ("›", ">>> y", (third,)),
        ("‹", "1", ()),
    ]


def test_a_line_of_nothing_visible_still_has_a_row_and_blank_rows_of_output_stay() -> None:
    trajectory = make_trajectory("t", "q", [("", LineKind.BLANK, None, "")], stop=StopReason.EOS)
    assert screen_rows(trajectory)[-1].lines == trajectory.lines
    assert screen_rows(trajectory)[-1].origin is Origin.TYPED
    blank = make_trajectory("t", "q", [(" print('\\n')\n", LineKind.STATEMENT, None, "\n\n>>>")])
    assert [row.mark for row in screen_rows(blank)[-3:]] == ["‹", "‹", "‹"]


@given(TURNS)
def test_rows_hold_the_whole_transcript_and_every_line_once(typed: list[tuple[str, LineKind, None, str]]) -> None:
    trajectory = make_trajectory("t", "q", typed)
    rows = screen_rows(trajectory)
    transcript = trajectory.prompt + "".join(line.text + line.output for line in trajectory.lines)
    shown = "\n".join("".join(piece.text for piece in row.pieces) for row in rows)
    assert shown == "\n".join(visible(part) for part in transcript.removesuffix("\n").split("\n")) or (
        # A last line that shows nothing has a row of its own.
        shown.rstrip("\n") == visible(transcript).rstrip("\n")
    )
    assert [line for row in rows for line in row.lines] == list(trajectory.lines)


def test_what_steers_or_hides_is_written_out() -> None:
    assert visible("\x1b[31mred\x07\r") == "\\x1b[31mred\\x07\\r"
    assert visible("\u202eevil\u2066\u200b\ufeff") == "\\u202eevil\\u2066\\u200b\\ufeff"
    assert visible("\udc80 \x9b1m \U000e0041") == "\\udc80 \\x9b1m \\U000e0041"
    assert visible("tab\tnewline\n é 漢 🙂") == "tab\tnewline\n é 漢 🙂"


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_visible_text_always_encodes_and_is_stable(text: str) -> None:
    visible(text).encode("utf-8")
    assert visible(visible(text)) == visible(text)


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
