"""What a file holds beside trajectories is read as far as it fits, whoever wrote it."""

import json
import math

import pytest
from made_trajectories import line, made

from repl_rl.trajectory import LineValues, Recorded, model_of, read_beside, read_record, sign
from repl_rl.view.words import sentence_of_value, worth_of_line

SESSION = made([line("x = 1"), line("x")])
CREDITED = {"rewards": [0.0, 1.0], "advantages": [-1.0, None]}
VALUES = {"values": [0.5, None, 1], "sessions": [8, 0]}


def read(**beside: object) -> tuple[Recorded | None, LineValues | None]:
    record = json.dumps(SESSION.to_dict() | beside).encode()
    found = read_beside(record, SESSION)
    return found.as_recorded, found.line_values


def test_what_fits_is_read() -> None:
    recorded, values = read(as_recorded=CREDITED, line_values=VALUES)
    assert recorded == Recorded((0.0, 1.0), (-1.0, None))
    assert values == LineValues((0.5, None, 1.0), (8, 0))
    assert read() == (None, None)
    assert read(as_recorded=CREDITED)[1] is None


@pytest.mark.parametrize(
    "beside",
    [
        {"as_recorded": {"rewards": [0.0], "advantages": [0.0]}},
        {"as_recorded": {"rewards": [0.0, 1e300], "advantages": [0.0, 0.0]}},
        {"as_recorded": [1, 2]},
        {"as_recorded": {"rewards": ["0", 0.0], "advantages": [0.0, 0.0]}},
        {"line_values": VALUES | {"values": [0.5, 1.0]}},
        {"line_values": VALUES | {"sessions": [8, 10**400]}},
        {"line_values": VALUES | {"sessions": [8, -1]}},
        {"line_values": "as_recorded"},
    ],
)
def test_what_does_not_fit_is_left_out(beside: dict[str, object]) -> None:
    assert read(**beside) == (None, None)


def test_an_output_with_a_lone_surrogate_takes_nothing_away() -> None:
    session = made([line("x = 1"), line("x", output="\ud800")])
    record = json.dumps(session.to_dict() | {"model": "m", "as_recorded": CREDITED}).encode()
    assert read_record(record) == session
    assert model_of(record) == "m"
    assert read_beside(record, session).as_recorded == Recorded((0.0, 1.0), (-1.0, None))


def test_a_model_that_is_no_text_is_none() -> None:
    assert model_of(json.dumps(SESSION.to_dict() | {"model": 3}).encode()) == ""


def test_signs() -> None:
    assert [sign(value) for value in (0.2, -0.2, 0.0, 1e-12, None)] == [1, -1, 0, 0, 0]
    recorded = Recorded((0.0, 0.0), (1.0, None))
    assert list(recorded.other_signs(SESSION)) == [True, False]


def test_inside_of_a_block_nothing_goes_on() -> None:
    """The value after a line is the next one that is known, and a line in a block has none."""
    values = LineValues((0.5, None, 1.0), (8, 0))
    assert values.around(0) == (0.5, 1.0)
    assert values.sizes_around(0) == (8, math.inf)
    assert worth_of_line(values, 1) == "–"
    assert sentence_of_value(values, 1).startswith("Nothing could go on from here")


def test_grades_that_are_no_shares_have_no_interval() -> None:
    assert worth_of_line(LineValues((0.5, 3.0), (4,)), 0) == "+250"
    assert worth_of_line(LineValues((0.5, 1.0), (0,)), 0) == "+50"
