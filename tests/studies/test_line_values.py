"""What a line changed a value by, and what estimators make of it, by hand."""

import numpy as np
import pytest

from studies.line_values import study
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
