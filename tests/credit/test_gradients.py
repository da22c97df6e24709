"""The expected gradient that an estimator's advantages give, beside the exact one of the expected return.

A small decision process: three lines, two or three actions each, states that different beginnings share, and (with
`early`) an action that ends the episode. All trajectories are enumerated, and all groups, each with its probability;
nothing is sampled, so equality is equality.
"""

import copy
import itertools
import math
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import yaml
from credit.groups import Typed, config, of_lines
from credit.processes import STATES, Path, Process, add_values, assert_equal
from pages import says

from repl_rl.config import CreditConfig
from repl_rl.config.estimators import NEUTRAL_BASELINES
from repl_rl.credit import batch_line_advantages, line_advantages


def test_the_processes_are_what_the_tests_take_them_for() -> None:
    fixed, early = Process(3), Process(3, early=True)
    assert len(fixed.paths) == 27
    assert {len(path.actions) for path in fixed.paths} == {3}
    assert {len(path.actions) for path in early.paths} == {2, 3}
    for process in (fixed, early):
        assert math.fsum(process.log_probability(path).exp().item() for path in process.paths) == pytest.approx(1.0)
        assert process.visits(0) == pytest.approx(1.0)
        assert process.visits(1) + process.visits(2) == pytest.approx(1.0)
        assert process.exact_gradient().abs().min() > 1e-4


CREDIT = yaml.safe_load((pathlib.Path(__file__).parent / "gradients.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CREDIT["exact"], ids=lambda case: str(case["credit"]))
@pytest.mark.parametrize(("group_size", "actions"), [(2, 3), (3, 2)])
def test_the_expected_gradient_is_the_exact_one_or_a_share_of_it(
    case: dict[str, Any], group_size: int, actions: int
) -> None:
    """A mean that counts oneself: E[(R_i - (R_i + sum of others) / G) grad] = (1 - 1 / G) E[R_i grad]."""
    for kind in case["processes"]:
        process = Process(actions, **kind)
        factor = {"whole": 1.0, "shrunk": (group_size - 1) / group_size}[case["share"]]
        found = process.expected_gradient(CreditConfig(**case["credit"]), group_size)
        assert_equal(found, factor * process.exact_gradient())


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("omega", [1.0, 0.5])
def test_gigpo_shrinks_each_states_gradient_by_how_often_it_is_shared(omega: float, early: bool) -> None:
    """In a group of two, a line has a peer where the other visits its state, with probability d: 1/2 + omega d / 2."""
    process = Process(3, early=early)
    result = process.expected_gradient(config("gigpo", scale="none", omega=omega), 2)
    factors = torch.tensor([0.5 + omega * process.visits(s) / 2 for s in range(STATES)], dtype=torch.float64)  # (S,)
    assert_equal(result, factors[:, None] * process.exact_gradient())


@pytest.mark.parametrize("baseline", ["mean", "none"])
def test_over_the_batch_of_all_that_can_happen_only_a_scale_is_left_of_reinforce_pp(baseline: str) -> None:
    """All trajectories are equally likely here, so a batch of each group once is the whole distribution."""
    process = Process(3, uniform=True)
    size = 2 if baseline == "mean" else 1
    groups = list(itertools.product(process.paths, repeat=size))
    per_line = batch_line_advantages(
        [[of_lines(path.typed()) for path in group] for group in groups],
        [[path.rewards for path in group] for group in groups],
        config("reinforce++", baseline=baseline),
    )
    weights = torch.zeros_like(process.theta)  # (S, A)
    tokens = []
    for group, of_group in zip(groups, per_line, strict=True):
        returns = [math.fsum(path.rewards) for path in group]
        subtracted = sum(returns) / 2 if baseline == "mean" else 0.0
        if size == 1 or abs(returns[0] - returns[1]) > 1e-9:
            tokens += [value - subtracted for value in returns for _ in range(3)]
        for path, values in zip(group, of_group, strict=True):
            add_values(weights, path, [value / len(groups) / size for value in values])
    deviation = torch.tensor(tokens, dtype=torch.float64).std().item() + 1e-4
    factor = (0.5 if baseline == "mean" else 1.0) / deviation
    assert_equal(process.gradient(weights), factor * process.exact_gradient())


@pytest.mark.parametrize("case", CREDIT["turned"], ids=lambda case: str(case["credit"]))
def test_the_others_turn_the_gradient(case: dict[str, Any]) -> None:
    process = Process(3, early=True)
    found = process.expected_gradient(CreditConfig(**case["credit"]), 2).flatten()
    cosine = torch.cosine_similarity(found, process.exact_gradient().flatten(), dim=0)
    assert case["least"] <= cosine.item() < case["most"]


POTENTIAL = [0.0, 0.3, -0.2, 0.5, 0.1]
"""Of each state; 0 at the start and after the end."""


def with_potential(process: Process, potential: Sequence[float] = POTENTIAL) -> Process:
    """The same process, whose lines earn the differences of a potential, too."""
    shaped = copy.copy(process)
    shaped.paths = []
    for path in process.paths:
        after = [potential[state] for state in path.states[1:]] + [0.0]
        before = [potential[state] for state in path.states]
        earned = [r + a - b for r, a, b in zip(path.rewards, after, before, strict=True)]
        shaped.paths.append(Path(path.states, path.actions, tuple(earned)))
    return shaped


@pytest.mark.parametrize("early", [False, True])
def test_a_potential_changes_no_gradient_where_it_is_allowed_and_pushes_elsewhere(early: bool) -> None:
    process = Process(3, early=early)
    for baseline in NEUTRAL_BASELINES:
        credit = config("return_to_go", baseline=baseline)
        assert_equal(with_potential(process).expected_gradient(credit, 2), process.exact_gradient())
    for credit in (config("return_to_go", baseline="mean"), config("return_to_go", scale="floor")):
        moved = with_potential(process).expected_gradient(credit, 2) - process.expected_gradient(credit, 2)
        assert moved.abs().max() > 1e-3


def ends_with_the_first_action(path: Path, group: Sequence[Path]) -> bool:
    """A mask, of what the last line typed."""
    return path.actions[-1] == 0


def ended_in_one_way(path: Path, group: Sequence[Path]) -> bool:
    """What redrawing keeps: groups whose outcomes differ, if a session is right that ends with the first action."""
    return len({ends_with_the_first_action(each, group) for each in group}) > 1


@pytest.mark.parametrize("stays", [ends_with_the_first_action, ended_in_one_way])
def test_a_potential_pushes_where_sessions_are_left_out_by_what_they_typed_unless_whole_ones_are_compared(
    stays: Callable[[Path, Sequence[Path]], bool],
) -> None:
    process = Process(3, early=True)
    for credit, is_neutral in (
        (config("return_to_go"), False),
        (config("rloo"), True),
        (config("outcome"), True),
        (config("reinforce++"), True),
    ):
        assert credit.leaves_potentials_neutral
        assert credit.leaves_potentials_neutral_line_by_line == (not is_neutral)
        plain, shaped = (each.expected_gradient(credit, 2, stays=stays) for each in (process, with_potential(process)))
        moved = (shaped - plain).abs().max()
        assert (moved < 1e-9) if is_neutral else (moved > 1e-2)


def of_a_session(own: int, of_all: int) -> int:
    """What the loss type `grpo` divides by."""
    return own


def of_a_batch(own: int, of_all: int) -> int:
    """What `dapo` divides by."""
    return of_all


def test_a_potential_changes_nothing_if_the_loss_divides_by_a_constant_and_something_else_where_it_does_not() -> None:
    """The figures of docs/rewards.md. The change is linear in the potential, so the worst is that of the signs."""
    process, credit = Process(3, early=True), CreditConfig()
    plain = process.expected_gradient(credit, 2, lambda own, of_all: 1)
    shaped = with_potential(process, [0.0, 1.0, 2.0, 0.0, 1.0])
    assert_equal(plain, 2 * process.exact_gradient())
    assert_equal(shaped.expected_gradient(credit, 2, lambda own, of_all: 1), plain)
    largest = max(abs(reward) for path in process.paths for reward in path.rewards)
    moved = {}
    for divided_by in (of_a_session, of_a_batch):
        plain = process.expected_gradient(credit, 2, divided_by)
        worst = torch.zeros_like(plain)
        for state in range(1, STATES):
            potential = [largest * (each == state) for each in range(STATES)]
            worst += (with_potential(process, potential).expected_gradient(credit, 2, divided_by) - plain).abs()
        moved[divided_by] = float(worst.max() / plain.abs().max())
    assert says(
        "rewards.md",
        f"the worst moved the gradient's largest component by {moved[of_a_session]:.0%} under `grpo` and by "
        f"{moved[of_a_batch]:.0%} under `dapo`",
    )


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.cosine_similarity(one.flatten(), other.flatten(), dim=0))


@pytest.mark.more
@pytest.mark.parametrize("estimator", ["return_to_go", "rloo"])
def test_a_loss_that_divides_by_what_was_typed_turns_the_gradient_as_the_page_says(estimator: str) -> None:
    """docs/credit.md: forty processes with sessions of two and three lines."""
    found: dict[Any, list[float]] = {of_a_session: [], of_a_batch: []}
    for seed in range(40):
        process = Process(3, early=True, seed=seed)
        for divided_by, cosines in found.items():
            turned = process.expected_gradient(CreditConfig(estimator=estimator), 2, divided_by)
            cosines.append(cosine(turned, process.exact_gradient()))
    of_session, of_batch = found.values()
    assert statistics.median(of_session) == pytest.approx(0.995, abs=1e-3)
    assert statistics.median(of_batch) == pytest.approx(0.999, abs=1e-3)
    assert min(of_session) == pytest.approx(0.978, abs=3e-3)
    assert min(of_batch) == pytest.approx(0.995, abs=1e-3)
    assert says(
        "credit.md",
        "the cosine with the exact gradient is 0.995 under `grpo` and 0.999 under `dapo` in the median of forty small "
        "processes with sessions of two and three lines, and 0.978 and 0.995 in the worst of them.",
    )


def test_the_more_lengths_differ_the_further_a_loss_over_a_sessions_tokens_turns_the_gradient() -> None:
    """docs/credit.md. Half of the sessions end with their first line and earn 0.4. The others have ten lines, and half
    of them earn 1. Parameters: the logit of going on, and that of being right then."""
    ways = [(0.5, 1, 0.4, (-0.5, 0.0)), (0.25, 10, 1.0, (0.5, 0.5)), (0.25, 10, 0.0, (0.5, -0.5))]
    divisors: list[Callable[[int, int], int]] = [lambda own, of_all: 1, of_a_session, of_a_batch]
    gradients = torch.zeros(3, 2, dtype=torch.float64)
    for group in itertools.product(ways, repeat=2):
        lines = [count for _, count, _, _ in group]
        rewards = [[0.0] * (count - 1) + [reward] for _, count, reward, _ in group]
        made = [of_lines([Typed()] * count) for count in lines]
        per_line = line_advantages(made, rewards, CreditConfig())
        for (_, count, _, scores), (advantage, *_) in zip(group, per_line, strict=True):
            for row, divided_by in zip(gradients, divisors, strict=True):
                share = math.prod(chance for chance, *_ in group) / divided_by(count, sum(lines))
                row += share * advantage * torch.tensor(scores, dtype=torch.float64)
    exact, *turned = gradients
    of_session, of_batch = (cosine(each, exact) for each in turned)
    assert says("credit.md", f"Where a session has either one line or ten, it is {of_session:.2f} and {of_batch:.3f}.")
