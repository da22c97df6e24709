"""The critic: a value from what the host knows of a state, exact in expectation, and a memory that fades."""

import math
from dataclasses import replace

import pytest
import torch
from groups import Typed, config, of_lines, rewards_of
from made_trajectories import line, made
from test_gradients import Process, assert_equal

from repl_rl.credit import batch_line_advantages
from repl_rl.credit.critic import Critic, assigned, states_of
from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import LineKind, RecordedCell

OTHERS = [[Typed(1, 0.5), Typed(1, 1.0), Typed(2, -0.25)], [Typed(1, 2.0)], [Typed(1, 0.0), Typed(1, 1.0)]]


def test_what_is_read_off_a_state() -> None:
    kinds = {"x = y = 1": LineKind.STATEMENT, "x": LineKind.EXPRESSION, "import os.path as p, sys": LineKind.STATEMENT}
    session = made([line(source, kind) for source, kind in kinds.items()])
    lines = [
        replace(each, cells=(RecordedCell(source, ""),)) for each, source in zip(session.lines, kinds, strict=True)
    ]
    states = states_of(replace(session, lines=tuple(lines)), [False, True, False])
    assert [state[:5] for state in states] == [
        [1.0, 0.0, 0.0, 0.0, 0.0],
        [1.0, 0.1, math.log1p(1), math.log1p(2), 0.0],
        [1.0, 0.2, math.log1p(2), math.log1p(2), 1.0],
    ]
    last_kinds = [[kind for kind, one in zip(LineKind, state[5:], strict=True) if one] for state in states]
    assert last_kinds == [[], [LineKind.STATEMENT], [LineKind.EXPRESSION]]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = [y for z in w]", {"x"}),
        ("def f(a): b = 1", {"f"}),
        ("import a.b, c as d", {"a", "d"}),
        ("for i, j in p: pass", {"i", "j"}),
        ("1 +", set()),
        ("(" * 500, set()),
        ("x = 1\0", set()),
    ],
)
def test_names_that_a_cell_binds(source: str, names: set[str]) -> None:
    assert assigned(source) == names


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
