"""The `inline` dialect: calls between tags, wherever they stand in prose, and what answers them."""

import ast

import pytest
from dialect.conftest import Talk
from dialect.talk import FOLDER, turns_of

from repl_rl.dialect.inline import InlineDialect
from repl_rl.trajectory import LineKind

STOPS = "\n>"
SESSIONS = [ast.literal_eval(f'"""{line}"""') for line in (FOLDER / "inline_sessions.txt").read_text().splitlines()]
"""What the model types and what it is answered, by turns."""


@pytest.mark.parametrize("session", SESSIONS)
def test_sessions(talked: Talk, session: str) -> None:
    parts = session.split("|")
    typed = [turn for part in parts[0::2] for turn in turns_of(part, STOPS)]
    text, _ = talked(InlineDialect(), typed)
    assert text == "".join(parts)


@pytest.mark.more
def test_a_call_that_takes_too_long(talked_in_haste: Talk) -> None:
    call = "<fn>while True: pass</fn>"
    text, _ = talked_in_haste(InlineDialect(), turns_of(call, STOPS))
    assert text == call + "<fn_error>KeyboardInterrupt: it ran out of time</fn_error>"


def test_an_answer_handed_over_in_a_call_ends_the_session(talked: Talk) -> None:
    _, rans = talked(InlineDialect(), ["It is <fn>submit_final_answer(6 * 7)</fn>", "<fn>1</fn>"])
    assert [ran.kind for ran in rans] == [LineKind.ANSWER]


def test_the_kinds_of_turns(talked: Talk) -> None:
    typed = turns_of("A thought.\n\n<fn>x = 1</fn> then <fn>x</fn><fn>y</fn><fn>y y</fn>\n", STOPS)
    _, rans = talked(InlineDialect(), typed)
    kinds = "comment blank open statement open expression open exception open syntax_error blank"
    assert [ran.kind for ran in rans] == kinds.split()
