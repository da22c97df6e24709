from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from repl_rl.trajectory import LineKind, StopReason
from repl_rl.utils.text import visible
from repl_rl.view.transcript import Origin, screen_rows
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
