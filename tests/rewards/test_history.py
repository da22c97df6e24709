"""What a line is to those before it: cells, repetitions, and whether its run was news."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import line

from repl_rl.config import RewardsConfig
from repl_rl.rewards.history import cell_starts, history, read_statement
from repl_rl.rewards.table import rule_rewards
from repl_rl.trajectory import Line, LineKind, RecordedCell

OPEN, COMMENT, BLANK, EXPRESSION = LineKind.OPEN, LineKind.COMMENT, LineKind.BLANK, LineKind.EXPRESSION
CASES = yaml.safe_load((Path(__file__).parent / "history.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("kinds", "starts"), CASES["cells"], ids=str)
def test_open_lines_belong_to_the_cell_that_a_later_line_completes(kinds: list[str], starts: list[int]) -> None:
    assert list(cell_starts([line(kind=LineKind(kind)) for kind in kinds])) == starts


@pytest.mark.parametrize(("one", "other"), CASES["same"], ids=str)
def test_spaces_comments_and_quotes_make_no_other_line(one: str, other: str) -> None:
    assert read_statement(one).key == read_statement(other).key


def test_other_lines_are_others() -> None:
    texts = ("x = 1\n", "x = 2\n", "y = 1\n", "# a\n", "# b\n", "1 +\n", "1 -\n", "# x = 1\n")
    assert len({read_statement(text).key for text in texts}) == len(texts)


@given(
    st.text(max_size=40)
    | st.sampled_from(
        ["(" * 5000, "-" * 8000 + "1", "x" * 9000, "\0", "\ud800", "a = '\\N{no}'", f"x = 0x{'f' * 8000}"]
    )
)
def test_any_text_has_a_key(text: str) -> None:
    assert read_statement(text).key.startswith("t")


def test_repetitions_are_counted_by_cell() -> None:
    block = [line("for i in y:", OPEN), line("    i", OPEN), line("", EXPRESSION)]
    lines = [line("x = 1"), line("x=1"), *block, line("x =  1"), line("y"), *block]
    assert history(lines).earlier == (0, 1, 0, 0, 0, 2, 0, 1, 1, 1)


def test_lines_inside_blocks_are_paid_once_and_never_charged_for_as_repetitions() -> None:
    first = [line("try:", OPEN), line("    a", OPEN), line("except E:", OPEN), line("    pass", OPEN)]
    second = [line("try:", OPEN), line("    b", OPEN), line("except E:", OPEN), line("    pass", OPEN)]
    lines = [*first, line("", EXPRESSION), *second, line("x", EXPRESSION)]
    past = history(lines)
    config = RewardsConfig.model_validate(
        {
            "rules": [
                {"name": "again", "reward": -1.0, "times": "repeated"},
                {"name": "new", "reward": 1.0, "times": "first"},
            ]
        }
    )
    again, new = (rule_rewards(rule, lines, past) for rule in config.rules)
    assert again == (0.0,) * len(lines)
    assert new == (1.0,) * 5 + (0.0, 1.0, 0.0, 0.0, 1.0)


def test_what_ran_is_compared_without_the_marks_around_it() -> None:
    def fenced(code: str) -> list[Line]:
        return [line("```python", OPEN), line(code, OPEN), replace(line("```"), cells=(RecordedCell(code, ""),))]

    assert history([*fenced("x = 5"), *fenced("x = 5  # again")]).earlier[-1] == 1
    refused = [replace(line(text), cells=(RecordedCell("", "no call"),)) for text in ("<call>a", "<call>b")]
    assert history(refused).earlier == (0, 0)


def stale(*lines: Line) -> tuple[bool, ...]:
    return history(lines).stale


def test_a_state_that_was_there_before_is_no_news() -> None:
    assert stale(
        line("x = 1", fingerprint="a"),
        line("x = 1", fingerprint="a"),
        line("x = 2", fingerprint="b"),
        line("x = 1", fingerprint="a"),
        line("y = 1", fingerprint="c"),
    ) == (False, True, False, True, False)


def test_nothing_is_known_before_the_first_line_but_what_it_binds() -> None:
    assert stale(line("pass", fingerprint="a"), line("pass", fingerprint="a")) == (True, True)
    assert stale(line("import math", fingerprint="a"), line("pass", fingerprint="a")) == (False, True)


def shows(text: str, output: str) -> Line:
    return line(text, EXPRESSION, output=f"{output}\n", fingerprint="a")


def test_an_output_is_news_once() -> None:
    assert stale(shows("6 * 7", "42"), shows("21 * 2", "42"), shows("6 * 8", "48")) == (False, True, False)


def test_showing_what_was_just_typed_is_no_news_and_what_was_worked_out_is() -> None:
    assert [case for case in CASES["typed"].items() if stale(shows(*case)) != (True,)] == []
    assert [case for case in CASES["worked out"].items() if stale(shows(*case)) != (False,)] == []


def test_prompts_with_numbers_make_no_news() -> None:
    """A terminal that counts shows another prompt after each line; what its cells showed says whether it is news."""

    def numbered(source: str, shown: str, number: int) -> Line:
        output, cells = f"Out[{number}]: {shown}\n\nIn [{number + 1}]:", (RecordedCell(source, f"{shown}\n"),)
        return Line(0, 1, f" {source}\n", EXPRESSION, output=output, fingerprint="a", cells=cells)

    assert stale(*(numbered("x", "42", number) for number in (1, 2, 3))) == (False, True, True)
    assert stale(numbered("5", "5", 4)) == (True,)


@pytest.mark.parametrize("kind", [COMMENT, BLANK, OPEN, LineKind.OVERLONG])
def test_lines_that_run_nothing_are_no_news(kind: LineKind) -> None:
    assert stale(line("something", kind)) == (True,)


def test_an_answer_is_news() -> None:
    answer = line("submit_final_answer(1)", LineKind.ANSWER, fingerprint="a")
    assert stale(line("x = 1", fingerprint="a"), answer) == (False, False)


def test_without_fingerprints_a_line_that_binds_is_news_once() -> None:
    assert stale(line("x = 1"), line("x=1"), line("x = 2"), line("pass")) == (False, True, False, True)


@given(
    st.lists(
        st.builds(
            line,
            st.sampled_from(["x = 1", "x", "# x", "for i in x:", "print(1)"]),
            st.sampled_from(LineKind),
            st.none(),
            st.sampled_from(["", "1\n", "2\n"]),
            st.none() | st.sampled_from("ab"),
        ),
        max_size=8,
    ),
    st.integers(0, 8),
)
def test_no_fact_depends_on_later_lines(lines: list[Line], kept: int) -> None:
    whole, part = history(lines), history(lines[:kept])
    for name in ("starts", "earlier", "stale"):
        assert getattr(whole, name)[:kept] == getattr(part, name)
