"""The critic: a value from what the host knows of a state, exact in expectation, and a memory that fades."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from groups import Typed, config, of_lines, rewards_of
from made_trajectories import line, made
from test_gradients import Process, assert_equal

from repl_rl.credit import batch_line_advantages
from repl_rl.credit.critic import FEATURES, Critic, assigned, states_of
from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import LineKind, RecordedCell

OTHERS = [[Typed(1, 0.5), Typed(1, 1.0), Typed(2, -0.25)], [Typed(1, 2.0)], [Typed(1, 0.0), Typed(1, 1.0)]]


def test_what_is_read_off_a_state() -> None:
    typed = [
        line("x = y = 1\n", LineKind.STATEMENT),
        line("x\n", LineKind.EXPRESSION),
        line("import os.path as p, sys\n", LineKind.STATEMENT),
    ]
    cells = ["x = y = 1", "x", "import os.path as p, sys"]
    session = made(typed)
    lines = [
        replace(each, cells=(RecordedCell(source, ""),)) for each, source in zip(session.lines, cells, strict=True)
    ]
    states = states_of(replace(session, lines=tuple(lines)), [False, True, False])
    assert [state[:5] for state in states] == [
        [1.0, 0.0, 0.0, 0.0, 0.0],
        [1.0, 0.1, math.log1p(1), math.log1p(2), 0.0],
        [1.0, 0.2, math.log1p(2), math.log1p(2), 1.0],
    ]
    kinds = [state[5:] for state in states]
    assert sum(kinds[0]) == 0
    assert [kinds[1].index(1.0), kinds[2].index(1.0)] == [
        list(LineKind).index(LineKind.STATEMENT),
        list(LineKind).index(LineKind.EXPRESSION),
    ]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = [y for z in w]", {"x", "z"}),
        ("def f(a): b = 1", {"f", "b"}),
        ("import a.b, c as d", {"a", "d"}),
        ("for i, j in p: pass", {"i", "j"}),
        ("1 +", set()),
        ("(" * 500, set()),
        ("x = 1\0", set()),
    ],
)
def test_names_that_a_cell_binds(source: str, names: set[str]) -> None:
    assert assigned(source) == names


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_with_lambda_one_it_is_the_return_to_go_less_the_value(gamma: float) -> None:
    groups = [[of_lines(typed) for typed in OTHERS], [of_lines(OTHERS[0])]]
    rewards = [rewards_of(OTHERS), rewards_of(OTHERS[:1])]
    values = batch_line_advantages(groups, rewards, config("critic", gamma=gamma))
    sums = np.zeros((FEATURES, FEATURES + 1))
    for typed in OTHERS:  # the second group's value comes from the first
        returns = discounted_returns([one.reward for one in typed], gamma)
        for state, target in zip(states_of(of_lines(typed)), returns, strict=True):
            sums += np.outer(state, [*state, target])
    weights = np.linalg.solve(sums[:, :-1] + np.eye(FEATURES), sums[:, -1])
    own = discounted_returns([one.reward for one in OTHERS[0]], gamma)
    expected = [g - float(weights @ state) for g, state in zip(own, states_of(groups[1][0]), strict=True)]
    assert values[1][0] == pytest.approx(expected)


def test_its_expected_gradient_is_exact_with_lambda_one() -> None:
    """Whatever the other groups were: here three sessions that have nothing to do with the process."""
    process = Process(2)
    total = torch.zeros_like(process.theta)
    beside = [of_lines(typed) for typed in OTHERS]
    for path in process.paths:
        session = of_lines(path.typed())
        [_, [values]] = batch_line_advantages(
            [beside, [session]], [rewards_of(OTHERS), [list(path.rewards)]], config("critic")
        )
        probability = process.log_probability(path).exp().item()
        for value, state, action in zip(values, path.states, path.actions, strict=True):
            total[state, action] += probability * value
    assert_equal(process.gradient(total), process.exact_gradient())


def test_the_memory_fades_and_a_lone_group_is_judged_by_it() -> None:
    critic = Critic()
    group, rewards = [of_lines(typed) for typed in OTHERS], rewards_of(OTHERS)
    credit = config("critic", decay=0.5)
    [alone] = batch_line_advantages([group], [rewards], credit, critic=critic)
    assert alone == [discounted_returns(values, 1.0) for values in rewards]  # nothing is known yet
    first = critic.sums.copy()
    assert first[0, 0] == 6  # lines
    [again] = batch_line_advantages([group], [rewards], credit, critic=critic)
    assert again != alone
    assert critic.sums == pytest.approx(1.5 * first)
    [without] = batch_line_advantages([group], [rewards], credit)
    assert without == alone
