"""pass@k against every subset, intervals against simulated problems."""

import math
from fractions import Fraction
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.utils.statistics import (
    Estimate,
    Tally,
    difference_of_shares,
    estimate_pass_at_k,
    mean_of_shares,
    paired_difference,
    pass_at_k,
    wilson,
)


@st.composite
def tallies(draw: st.DrawFn, most: int = 8) -> Tally:
    samples = draw(st.integers(1, most))
    return Tally(samples, draw(st.integers(0, samples)))


@given(tallies(), st.integers(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(tally: Tally, k: int) -> None:
    k = min(k, tally.samples)
    grades = [index < tally.right for index in range(tally.samples)]
    subsets = list(combinations(grades, k))
    assert pass_at_k(tally.samples, tally.right, k) == pytest.approx(
        float(Fraction(sum(map(any, subsets)), len(subsets))), abs=1e-15
    )


def test_pass_at_k_of_the_paper_s_size() -> None:
    assert pass_at_k(200, 3, 1) == pytest.approx(0.015)
    assert pass_at_k(200, 3, 200) == 1.0
    assert pass_at_k(200, 0, 100) == 0.0
    assert pass_at_k(200, 3, 100) == pytest.approx(1 - (100 * 99 * 98) / (200 * 199 * 198))
    for samples, k in ((4, 5), (4, 0), (0, 1)):  # more than there are, or none, can't be drawn
        with pytest.raises(ValueError, match=f"pass@{k} needs"):
            pass_at_k(samples, 0, k)


def test_wilson_s_interval_as_published() -> None:
    """Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3."""
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_samples_count_by_what_they_tell() -> None:
    all_or_nothing = [Tally(8, 8)] * 5 + [Tally(8, 0)] * 5
    all_alike = [Tally(8, 4)] * 10
    assert estimate_pass_at_k(all_or_nothing, 1) == Estimate(0.5, *wilson(0.5, 10), 10)
    assert estimate_pass_at_k(all_alike, 1) == Estimate(0.5, *wilson(0.5, 80), 10)
    chance = pass_at_k(8, 4, 3)
    assert estimate_pass_at_k(all_alike, 3) == Estimate(chance, *wilson(chance, 20), 10)
    one_each = [Tally(1, 1)] * 15 + [Tally(1, 0)] * 133
    assert estimate_pass_at_k(one_each, 1) == Estimate(15 / 148, *wilson(15 / 148, 148), 148)


def test_the_effective_size_worked_out_by_hand() -> None:
    """Shares 1/4, 1/2, 3/4: s² = 1/16, of the mean 1/48, and 1/4 over it is 12 tosses; of 12 that were made."""
    assert mean_of_shares([0.25, 0.5, 0.75], most=99) == Estimate(0.5, *wilson(0.5, 12), 3)
    assert mean_of_shares([0.25, 0.5, 0.75], most=9) == Estimate(0.5, *wilson(0.5, 9), 3)


def test_problems_with_too_few_graded_samples_are_left_out_and_not_failed() -> None:
    problems = [Tally(4, 4), Tally(3, 0), Tally(0, 0)]
    assert estimate_pass_at_k(problems, 4) == Estimate(1.0, *wilson(1.0, 1), 1)
    assert estimate_pass_at_k(problems, 1) == Estimate(0.5, *wilson(0.5, 2), 2)
    assert estimate_pass_at_k([Tally(3, 3)], 4) is None
    assert estimate_pass_at_k([], 1) is None


@given(st.lists(tallies(), min_size=1, max_size=30), st.integers(1, 8))
def test_the_interval_lies_around_the_value(problems: list[Tally], k: int) -> None:
    found = estimate_pass_at_k(problems, k)
    if found is None:
        assert all(tally.samples < k for tally in problems)
    else:
        assert 0 <= found.low <= found.value <= found.high <= 1
        assert found.high - found.low > 0


def draw_tally(rng: Random, chance: float, samples: int) -> Tally:
    return Tally(samples, sum(rng.random() < chance for _ in range(samples)))


def beta_pass_at_k(a: float, b: float, k: int) -> float:
    """The true pass@k of problems whose chances are Beta(a, b): one minus the mean of (1 - p)**k."""
    failed = 1.0
    for index in range(k):
        failed *= (b + index) / (a + b + index)
    return 1 - failed


@pytest.mark.more
@pytest.mark.parametrize(("a", "b"), [(0.3, 0.5), (2.0, 2.0), (0.5, 8.0)])
@pytest.mark.parametrize("k", [1, 4])
def test_95_of_100_intervals_hold_the_truth(a: float, b: float, k: int) -> None:
    rng, truth, held, trials = Random(f"{a}/{b}/{k}"), beta_pass_at_k(a, b, k), 0, 800
    for _ in range(trials):
        found = estimate_pass_at_k([draw_tally(rng, rng.betavariate(a, b), 8) for _ in range(40)], k)
        held += found is not None and found.low <= truth <= found.high
    assert 0.93 <= held / trials <= 0.98


@pytest.mark.more
def test_the_paired_interval_holds_the_true_difference() -> None:
    """The second policy is right 0.1 more often on every problem, and both find the same problems hard."""
    rng, held, trials = Random("paired"), 0, 100
    for _ in range(trials):
        chances = [0.9 * rng.betavariate(0.5, 0.5) for _ in range(50)]
        first = [draw_tally(rng, chance, 4) for chance in chances]
        ours = [draw_tally(rng, chance + 0.1, 4) for chance in chances]
        found = paired_difference(ours, first, "0")
        held += found is not None and found.low <= 0.1 <= found.high
    assert 90 <= held <= 99


@pytest.mark.parametrize(
    ("right", "drawn", "expected"),
    [((2, 0, 0), (1, 0, 0, 1, -1), (-0.4, 0.8)), ((0, 0, 0), (0, 0, 0, 1, -1), (-0.6, 0.6))],
)
def test_a_bootstrap_that_can_be_counted(
    right: tuple[int, ...], drawn: tuple[int, ...], expected: tuple[float, float]
) -> None:
    """Three problems, and the two that are drawn along: 5**5 resamples."""
    means = sorted(sum(resample) / 5 for resample in product(drawn, repeat=5))
    assert (means[round(0.025 * len(means))], means[round(0.975 * len(means))]) == expected
    found = paired_difference([Tally(2, count) for count in right], [Tally(2, 0)] * 3, "0")
    assert found == Estimate(sum(right) / 6, *expected, 3)


@pytest.mark.parametrize(("gained", "is_shown"), [(0, False), (4, False), (8, True)])
def test_a_few_gained_problems_prove_nothing(gained: int, is_shown: bool) -> None:
    """McNemar's exact test, two-sided: p = 0.125 for four gained and none lost, and 0.008 for eight."""
    first = [Tally(1, 0)] * 240
    found = paired_difference([Tally(1, 1)] * gained + first[gained:], first, "0")
    assert found is not None
    assert found.value == gained / 240
    assert (found.low > 0) == is_shown
    assert found.low < found.value < found.high


def test_only_problems_that_both_have_are_compared() -> None:
    ours = [Tally(2, 2), Tally(0, 0), Tally(2, 0)]
    first = [Tally(2, 1), Tally(2, 2), Tally(0, 0)]
    found = paired_difference(ours, first, "0")
    assert found is not None
    assert (found.value, found.problems) == (0.5, 1)
    assert paired_difference(ours[1:], first[1:], "0") is None
    many = [Tally(7, n % 8) for n in range(30)], [Tally(11, n % 12) for n in range(30)]
    assert paired_difference(*many, "3") == paired_difference(*many, "3") != paired_difference(*many, "4")


@pytest.mark.parametrize(
    ("after", "before", "expected"),
    [  # Newcombe 1998, table II, column 10: contrasts (a), (c), (e), (g)
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((6, 7), (2, 7), (0.0582, 0.8062)),
        ((5, 56), (0, 29), (-0.0381, 0.1926)),
        ((0, 10), (0, 20), (-0.1611, 0.2775)),
    ],
)
def test_the_difference_of_two_shares(
    after: tuple[int, int], before: tuple[int, int], expected: tuple[float, float]
) -> None:
    bounds = difference_of_shares(before[0] / before[1], before[1], after[0] / after[1], after[1])
    assert bounds == pytest.approx(expected, abs=5e-5)


def test_a_share_that_is_known_adds_no_width() -> None:
    low, high = wilson(0.25, 8)
    assert difference_of_shares(0.25, 8, 1.0, math.inf) == pytest.approx((1 - high, 1 - low))
