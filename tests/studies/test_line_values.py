"""What a line changed a value by, and what estimators make of it, by hand."""

import numpy as np
import pytest

from studies.line_values import ceiling, study
from studies.line_values.values import changes, halves

GRADES = [[0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [], [1.0, 1.0, 1.0, 0.0]]


def test_a_line_changed_the_value_from_before_it_to_after_it() -> None:
    """The third line leaves a block open, and the session came to nothing in the end."""
    assert changes(GRADES, 0.0) == [0.25, None, None, -0.75]
    first, second = halves(GRADES)
    assert changes(first, 0.0) == [0.5, None, None, -1.0]
    assert changes(second, 0.0) == [0.0, None, None, -0.5]


def session(changed: list[float | None], advantages: list[float]) -> study.Session:
    pairs = zip(changed, advantages, strict=True)
    return [study.Valued("statement", "x", 0.5, change, (change, change), np.array([value])) for change, value in pairs]


def test_an_estimator_that_knows_the_order_of_lines_has_ranks_within_sessions() -> None:
    knows = [[session([0.0, 0.5, None, -0.5], [1.0, 2.0, 9.0, 0.5]), session([0.25, 0.5, 0.75], [1.0, 2.0, 3.0])]]
    rank, within, sign = study._figures(knows, 0)
    assert within == pytest.approx(1)
    assert rank < 1  # across sessions, 0.0 and 0.25 have one advantage
    assert sign == pytest.approx(4 / 5)  # the line that lost something has an advantage above 0
    one_number = [[session([0.0, 0.5, -0.5], [1.0, 1.0, 1.0])]]
    assert study._figures(one_number, 0)[1] == 0


def test_sessions_without_a_difference_say_nothing_of_order() -> None:
    _, within, sign = study._figures([[session([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]), session([0.5, None], [1.0, 1.0])]], 0)
    assert np.isnan(within)
    assert sign == 1


def test_what_knows_the_values_subtracts_them_and_takes_both_halves_once() -> None:
    """One session of four lines, whose third is inside of a block, and products that keep lines apart."""
    place = np.ones((4, 1))
    lengths = ceiling.lengths(np.eye(4), place, [GRADES], [0.0])
    first, second = np.array([0.0, 0.5, 0.5, 1.0]), np.array([0.5, 0.5, 0.5, 0.5])
    assert lengths == pytest.approx([4, first @ second, 0.5])


def test_the_noise_of_values_does_not_lengthen_a_gradient() -> None:
    """Chance alone decides after the last of three lines: each return is 1/2 off, and the last difference is."""
    rng = np.random.default_rng(0)
    drawn = [
        ceiling.lengths(np.eye(3), np.ones((3, 1)), [rng.integers(2, size=(3, 8)).astype(float).tolist()], [outcome])
        for outcome in rng.integers(2, size=4000).astype(float)
    ]
    found = ceiling.ratios(drawn, ["place"])
    assert found["value as baseline"].value == pytest.approx(1 / 4, abs=0.01)
    assert found["difference of values"].value == pytest.approx(1 / 12, abs=0.01)
