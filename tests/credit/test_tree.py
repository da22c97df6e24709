"""Credit on trees: equal to RLOO without forks, exact in expectation with them, and every line weighed once."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from groups import config, of_lines, trajectory
from hypothesis import given
from hypothesis import strategies as st
from test_gradients import Path, Process, assert_equal

from repl_rl.credit import advantages, line_advantages
from repl_rl.credit.tree import roots, weights
from repl_rl.trajectory import Branch, StopReason, Trajectory

SPO, VINE = "studies.branching.credit:spo_tree", "studies.branching.credit:vine"
"""Estimators by import path that follow branches."""


def branched(made: Trajectory, parent: int, line: int) -> Trajectory:
    return replace(made, branch=Branch(parent, line, 1.0))


@st.composite
def groups(draw: st.DrawFn) -> list[Trajectory]:
    """One to three roots, and up to five branches of any of them."""
    tokens = st.lists(st.integers(1, 3), min_size=1, max_size=5)
    group = [trajectory(*draw(tokens)) for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(0, 5))):
        parent = draw(st.integers(0, len(group) - 1))
        line = draw(st.integers(0, len(group[parent].lines)))
        group.append(branched(trajectory(*draw(tokens)), parent, line))
    return group


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=5))
def test_without_forks_it_is_rloo_to_the_bit(rewards: list[list[float]]) -> None:
    group = [trajectory(*[1] * len(values)) for values in rewards]
    assert line_advantages(group, rewards, config("branch")) == line_advantages(group, rewards, config("rloo"))


@given(groups())
def test_weights_sum_to_the_trees_over_any_cut(group: list[Trajectory]) -> None:
    """Leaves are one cut, roots another; every line of every trajectory has a weight."""
    of_lines_ = weights(group)
    assert all(0 < weight <= 1 for values in of_lines_ for weight in values)
    firsts = roots(group)
    leaves, waiting = list[float](), [(each, 1.0) for each in firsts]
    while waiting:
        segment, weight = waiting.pop()
        assert set(of_lines_[segment.member][segment.start : segment.end]) <= {weight}
        if not segment.following:
            leaves.append(weight)
        waiting += [(each, weight / len(segment.following)) for each in segment.following]
    assert math.fsum(leaves) == pytest.approx(len(firsts))


def test_a_fork_by_hand() -> None:
    """Two roots of 3 lines; two branches at line 1 of the first. G after the fork is 1, 0, 0: the root is worth 1/3."""
    group = [trajectory(1, 1, 1), trajectory(1, 1, 1), branched(trajectory(1, 1), 0, 1), branched(trajectory(1), 0, 1)]
    rewards = [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0], [0.0]]
    values = line_advantages(group, rewards, config("branch"))
    third = 1 / 3
    assert values[0] == pytest.approx([-2 / 3, third, third])
    assert values[1] == pytest.approx([2 / 3] * 3)
    assert values[2] == pytest.approx([-third / 2] * 2)
    assert values[3] == pytest.approx([-third / 2])
    spo = line_advantages(group, rewards, config(SPO))
    assert spo[0] == pytest.approx([-third, 2 / 3, 2 / 3])
    assert spo[1] == pytest.approx([third] * 3)
    assert spo[2] == pytest.approx([-third] * 2)


def test_void_branches_are_left_out_and_void_roots_too() -> None:
    group = [trajectory(1, 1), trajectory(1, 1), branched(trajectory(1, stop_reason=StopReason.ABORTED), 0, 1)]
    rewards = [[0.0, 1.0], [0.0, 0.0], [5.0]]
    assert line_advantages(group, rewards, config("branch")) == [[1.0, 0.0], [-1.0, -1.0], [0.0]]
    cut = [replace(group[0], stop_reason=StopReason.UNFINISHED), group[1], branched(trajectory(1), 0, 1)]
    values = line_advantages(cut, [[0.0, 0.0], [0.0, 0.0], [1.0]], config("branch"))
    assert values == [[0.0, 0.0], [-1.0, -1.0], [0.0]]  # the first root's own lines are not trained on


@pytest.mark.parametrize("line", [3, 9])
def test_a_branch_of_nothing_is_refused(line: int) -> None:
    group = [trajectory(1, 1), branched(trajectory(1), 0 if line == 3 else 7, line)]
    with pytest.raises(ValueError, match="which is not there"):
        line_advantages(group, [[0.0, 0.0], [1.0]], config("branch"))


@pytest.mark.more
@pytest.mark.parametrize("estimator", ["branch", pytest.param(VINE, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("branches", "is_filled"), [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize(
    "forks_in", [(3,), *(pytest.param(states, marks=pytest.mark.slow) for states in ((1,), (1, 2), (1, 4)))]
)
def test_with_forks_the_expected_gradient_is_exact(
    branches: int, forks_in: tuple[int, ...], is_filled: bool, estimator: str
) -> None:
    """Each root is forked where it first comes to one of these states, so by its prefix alone. Where it comes to none,
    its branches' places are empty, or sessions from the prompt. All trees are enumerated."""
    process = Process(2)
    probabilities = [process.log_probability(path).exp().item() for path in process.paths]
    every = list(_trees(process, probabilities, forks_in, branches, is_filled))
    assert math.fsum(probability for _, _, probability in every) == pytest.approx(1.0)
    total = torch.zeros_like(process.theta)
    trained = 0.0
    for (paths, starts, one), (others, other_starts, two) in itertools.product(every, repeat=2):
        members = [*paths, *others]
        begun = [*starts, *other_starts]
        group = []
        for index, (path, start) in enumerate(zip(members, begun, strict=True)):
            own = Path(path.states[start:], path.actions[start:], path.rewards[start:])
            made = of_lines(own.typed())
            root = 0 if index < len(paths) else len(paths)
            group.append(made if index == root else branched(made, root, start))
        rewards = [list(path.rewards[start:]) for path, start in zip(members, begun, strict=True)]
        per_token = advantages(group, rewards, config(estimator))
        trained += one * two * sum(start == 0 for start in begun)
        for path, start, made, values in zip(members, begun, group, per_token, strict=True):
            for line, state, action in zip(made.lines, path.states[start:], path.actions[start:], strict=True):
                total[state, action] += one * two * values[line.start]
    assert_equal(process.gradient(total / trained), process.exact_gradient())


def _trees(  # type: ignore[no-untyped-def]
    process: Process, probabilities: list[float], forks_in: tuple[int, ...], branches: int, is_filled: bool
):
    """(paths, first line of each, probability) of a root and its branches."""
    everything = list(zip(process.paths, probabilities, strict=True))
    for path, probability in everything:
        at = next((place for place, state in enumerate(path.states) if place and state in forks_in), None)
        if at is None and not is_filled:
            yield [path], [0], probability
            continue
        same = [(other, each) for other, each in everything if at is None or other.actions[:at] == path.actions[:at]]
        prefix = math.fsum(each for _, each in same)
        for chosen in itertools.product(same, repeat=branches):
            factor = math.prod(each / prefix for _, each in chosen)
            yield [path, *(other for other, _ in chosen)], [0, *[at or 0] * branches], probability * factor


def test_a_vine_by_hand() -> None:
    """The branches say that the state after the first line is worth 1/2; the other root says 1 for the prompt."""
    group = [trajectory(1, 1, 1), trajectory(1, 1), branched(trajectory(1, 1), 0, 1), branched(trajectory(1), 0, 1)]
    values = line_advantages(group, [[0.1, 0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0]], config(VINE))
    assert values == [pytest.approx([-0.4, 0.5, 0.5]), pytest.approx([1 - 0.1 - 2 / 3] * 2), [0.0, 0.0], [0.0]]


def test_a_session_in_place_of_a_fork_is_compared_with_the_roots_and_no_root_with_it() -> None:
    group = [trajectory(1, 1), trajectory(1), branched(trajectory(1, 1), 0, 0)]
    rewards = [[0.0, 1.0], [0.0], [0.0, 1.0]]
    for estimator, of_roots in (("branch", [[1.0, 1.0], [-1.0]]), (SPO, [[0.5, 0.5], [-0.5]])):
        assert line_advantages(group, rewards, config(estimator)) == [*of_roots, [0.5, 0.5]]


def test_other_estimators_see_whole_sessions() -> None:
    """The first line costs 0.1, the branch's parent's too."""
    group = [trajectory(1, 1), trajectory(1, 1), branched(trajectory(1), 0, 1)]
    group[2] = replace(group[2], prompt_ids=(*group[0].prompt_ids, *group[0].completion_ids[: group[0].lines[1].start]))
    values = line_advantages(group, [[-0.1, 1.0], [0.0, 0.0], [1.0]], config("outcome"))
    mean = (0.9 + 0.0 + 0.9) / 3
    assert values == [pytest.approx([0.9 - mean] * 2), pytest.approx([-mean] * 2), pytest.approx([0.9 - mean])]


@pytest.mark.parametrize("reason", [StopReason.ABORTED, StopReason.UNFINISHED])
@pytest.mark.parametrize("rewards", [[0.0, 1.0, 0.5], [1.0], [2.0, 2.0]])
def test_without_roots_sessions_in_place_of_forks_are_compared_with_one_another(
    reason: StopReason, rewards: list[float]
) -> None:
    """All roots were lost: leave-one-out among the others, by hand; zeros for one alone."""
    lost = [trajectory(1, 1, stop_reason=reason), trajectory(1, stop_reason=reason)]
    group = [*lost, *(branched(trajectory(1, 1), index % 2, 0) for index in range(len(rewards)))]
    paid = [[0.0, 0.0], [0.0], *([0.0, value] for value in rewards)]
    wanted = [
        value - math.fsum(others) / len(others) if (others := [*rewards[:index], *rewards[index + 1 :]]) else 0.0
        for index, value in enumerate(rewards)
    ]
    for estimator in ("branch", SPO, VINE):
        assert line_advantages(group, paid, config(estimator)) == [[0.0, 0.0], [0.0], *([each] * 2 for each in wanted)]


@pytest.mark.parametrize("estimator", ["branch", SPO, VINE])
def test_a_group_of_nothing_but_lost_sessions_gets_zeros(estimator: str) -> None:
    lost = trajectory(1, 1, stop_reason=StopReason.ABORTED)
    group = [lost, lost, branched(lost, 0, 0), branched(lost, 1, 1)]
    assert line_advantages(group, [[1.0, 1.0]] * 4, config(estimator)) == [[0.0, 0.0]] * 4
