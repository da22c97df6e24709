"""One percentile for the whole package."""

import statistics
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.utils.statistics import percentile


def test_between_two_values_it_is_interpolated() -> None:
    assert percentile([9, 1], 50) == 5
    assert [percentile([1, 9], percent) for percent in (0, 25, 100)] == [1, 3, 9]
    assert [percentile(range(101), percent) for percent in (0, 50, 99, 100)] == [0, 50, 99, 100]
    assert percentile(range(1, 101), 99) == pytest.approx(99.01)
    assert percentile(deque([7.0]), 99) == 7.0


def test_no_values_have_a_percentile_of_zero() -> None:
    assert percentile([], 50) == 0.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_it_is_that_of_the_standard_library_and_of_numpy(values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")  # numpy's default by another name
    assert [percentile(values, percent) for percent in range(1, 100)] == pytest.approx(cuts, abs=1e-6)
