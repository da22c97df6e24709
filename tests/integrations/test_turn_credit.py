"""Our credit for the turns of other trainers' batches: what comes of masks, rewards and groups, worked out by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from credit.groups import BATCHES, config, configs
from hypothesis import given
from hypothesis import strategies as st

from repl_rl.config import CreditConfig
from repl_rl.config.estimators import ESTIMATOR_RECORDS
from repl_rl.credit.critic import Critic
from repl_rl.errors import ConfigError, RewardError
from repl_rl.integrations.credit import Session, token_advantages, turn_advantages, turn_rewards_of, turn_spans

RETURN_TO_GO = config("return_to_go")
MASK = [
    [0, 0, 1, 1, 0, 1, 0, 0],  # padded on both sides: two turns
    [1, 0, 0, 1, 1, 1, 0, 1],  # three turns
    [1, 1, 1, 1, 0, 0, 0, 0],  # one turn
]
REWARDS = [[-0.5, 0.0], [0.0, 0.25, 0.0], [0.0]]
OUTCOMES = [1.0, 0.0, 1.0]
# Returns: 0.5 1 | 0.25 0.25 0 | 1. At each place, less the mean of the others (the last turn of one that is over):
# 0.5 - 0.625, 1 - 0.625 | 0.25 - 0.75, 0.25 - 1, 0 - 1 | 1 - 0.375
BY_HAND = [
    [0, 0, -0.125, -0.125, 0, 0.375, 0, 0],
    [-0.5, 0, 0, -0.75, -0.75, -0.75, 0, -1.0],
    [0.625, 0.625, 0.625, 0.625, 0, 0, 0, 0],
]


def test_turns_are_credited_with_what_came_after_them_and_everything_else_with_nothing() -> None:
    made = token_advantages(MASK, ["a"] * 3, RETURN_TO_GO, rewards=REWARDS, outcomes=OUTCOMES)
    assert made == BY_HAND


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_what_comes_out_has_the_form_of_the_mask(dtype: torch.dtype) -> None:
    groups = torch.tensor([4, 4, 4])
    outcomes = torch.tensor(OUTCOMES)
    made = token_advantages(torch.tensor(MASK).to(dtype), groups, RETURN_TO_GO, rewards=REWARDS, outcomes=outcomes)
    assert made.dtype is torch.float32
    assert made.tolist() == BY_HAND
    array = token_advantages(np.array(MASK), np.array(["a"] * 3), RETURN_TO_GO, rewards=REWARDS, outcomes=OUTCOMES)
    assert (array.dtype, array.tolist()) == (np.float32, BY_HAND)
    ragged = [row[: 8 - index] for index, row in enumerate([MASK[1], MASK[0], MASK[2]])]
    made = token_advantages(ragged, ["a"] * 3, config("rloo"), outcomes=[1, 0, 0])
    assert [len(row) for row in made] == [8, 7, 6]
    assert [max(row, key=abs) for row in made] == [1.0, -0.5, -0.5]


def test_groups_may_be_of_any_size_and_stand_in_any_order() -> None:
    mask = [[1, 0, 1]] * 6
    outcomes = [1.0, 1.0, 0.0, 4.0, 0.0, 7.0]
    made = token_advantages(mask, ["a", "b", "a", "b", "a", "c"], config("rloo"), outcomes=outcomes)
    assert [row[0] for row in made] == [1.0, -3.0, -0.5, 3.0, -0.5, 0.0]


def test_void_rows_are_compared_with_nothing() -> None:
    mask = [[1, 0, 1], [1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 1], [1, 0, 0]]
    outcomes = [1.0, 0.0, None, 5.0, float("nan"), 9.0]
    void = torch.tensor([False, False, False, False, False, True])
    rewards = [[0.5, 0.0], [0.0], [float("inf")], [], [1.0, 1.0], [1.0]]
    made = token_advantages(mask, [0] * 6, config("rloo"), rewards=rewards, outcomes=outcomes, void=void)
    assert made == [[1.5, 0.0, 1.5], [-1.5, -1.5, 0.0]] + [[0.0] * 3] * 4


def test_touching_turns_and_masked_tokens_need_spans() -> None:
    mask = [[1, 1, 1, 0], [1, 0, 1, 1]]
    spans = [[(0, 1), (1, 3)], [(0, 4)]]
    made = token_advantages(mask, [0, 0], config("return_to_go"), rewards=[[1.0, 0.0], [0.0]], spans=spans)
    assert made == [[1.0, 0.0, 0.0, 0.0], [-1.0, 0.0, -1.0, -1.0]]


def test_a_masked_token_inside_a_span_has_no_weight_among_sampled_tokens() -> None:
    """`reinforce++` weighs A' by sampled tokens: 0.5 three times, and -0.5 once. Mean 0.25, variance 0.75 / 3."""
    mask = [[1, 0, 1, 1], [1, 0, 0, 0]]
    spans = [[(0, 4)], [(0, 1)]]
    made = token_advantages(mask, [0, 0], config("reinforce++"), outcomes=[1.0, 0.0], spans=spans)
    high = pytest.approx(0.25 / 0.5001)
    assert made == [[high, 0.0, high, high], [pytest.approx(-0.75 / 0.5001), 0.0, 0.0, 0.0]]


def test_of_void_rows_nothing_is_checked() -> None:
    """One is void by its mask, one by its outcome, and one by `void`."""
    spans: Any = [[(0, 2)], [(0, 2)], [(0, 2)], [], None]
    states: Any = [["a"], ["a"], ["b", "c"], "b", 7]
    made = token_advantages(
        [[1, 1], [1, 1], [0, 0], [1, 1], [1, 1]],
        [0] * 5,
        config("gigpo", scale="none"),
        rewards=[[0.0], [0.0], [1.0, 1.0], None, 0.5],
        outcomes=[1.0, 0.0, 1.0, float("nan"), 1.0],
        spans=spans,
        states=states,
        void=[0, 0, 0, 0, 1],
    )
    assert made == [[1.0, 1.0], [-1.0, -1.0]] + [[0.0, 0.0]] * 3


def test_without_outcomes_the_last_turns_reward_is_the_outcome() -> None:
    """`scale: outcome` divides by its deviation, here the square root of a half."""
    credit = config("outcome", scale="outcome")
    made = token_advantages([[1, 0, 1], [1, 0, 1]], [0, 0], credit, rewards=[[0.5, 1.0], [0.5, 0.0]])
    assert made[0][0] == pytest.approx(0.5 / 0.5**0.5)


def test_states_tell_which_turns_gigpo_compares() -> None:
    """The first and third turns of row 0 and the first of row 1 begin in one state, the second of both in another."""
    mask = [[1, 0, 1, 0, 1], [1, 0, 1, 0, 0]]
    rewards = [[0.0, 0.0, 3.0], [0.0, 0.0]]
    states = [["home", "page", "home"], ["home", "page"]]
    credit = config("gigpo", scale="none")
    made = token_advantages(mask, [0, 0], credit, rewards=rewards, states=states)
    # 1.5 for the session, and 3 less the mean of 3, 3, 0 or of 3, 0
    assert made == [[2.5, 0, 3.0, 0, 2.5], [-3.5, 0, -3.0, 0, 0]]
    made = token_advantages(mask, [0, 0], credit, rewards=rewards, states=[["home", None, None], [None, None]])
    assert made == [[3.0, 0, 1.5, 0, 1.5], [-3.0, 0, -1.5, 0, 0]], "a first state is the group's; others are like none"


def test_void_sessions_may_have_any_states() -> None:
    """Three void ones: one began elsewhere, one has too few states, and one has a list for a state."""
    credit = config("gigpo", scale="none")
    made = token_advantages([[1]] * 3, [0] * 3, credit, outcomes=[1, 0, None], states=[["a"], ["a"], ["b"]])
    assert made == [[1.0], [-1.0], [0.0]]
    lists: Any = [["b"], ["b"]]
    sessions = [
        Session(0, [1], [0.0], 1.0, ["a"]),
        Session(0, [1], [0.0], 0.0, ["a"]),
        Session(0, [1, 1], [0.0, 0.0], None, []),
        Session(0, [1, 1], [0.0, 0.0], 1.0, lists, is_left_out=True),
    ]
    assert turn_advantages(sessions, credit) == [[1.0], [-1.0], [0.0, 0.0], [0.0, 0.0]]


def test_the_baseline_of_a_state_is_that_of_the_same_state() -> None:
    states = [["s", "x"], ["s", "y"], ["s", "x"]]
    rewards = [[0.0, 4.0], [0.0, 0.0], [0.0, 1.0]]
    made = token_advantages(
        [[1, 0, 1]] * 3, [0] * 3, config("return_to_go", baseline="state"), rewards=rewards, states=states
    )
    assert made == [[3.5, 0, 3.0], [-2.5, 0, -2.5], [-1.0, 0, -3.0]]


def test_a_critic_remembers_earlier_batches() -> None:
    """With no other group in the batch, the value is that of what came before: ridge regression on two returns of 1."""
    critic = Critic()
    credit = config("critic", decay=0.5)
    first, second = [token_advantages([[1]], ["a"], credit, outcomes=[1.0], critic=critic) for _ in range(2)]
    assert first == [[1.0]]
    # x = (1, 0, ...): sum x x' = 0.5 and sum x G = 0.5 after decay, so w = 0.5 / (0.5 + 1)
    assert second[0][0] == pytest.approx(1.0 - 0.5 / 1.5)
    assert token_advantages([[1]], ["a"], credit, outcomes=[1.0]) == [[1.0]]


@given(BATCHES, st.data())
def test_any_estimator_gives_each_turn_a_number_whatever_the_order(batch: list, data: st.DataObject) -> None:
    """All but `branch`, which needs trees, and `maxrl`, which takes no negative returns."""
    names = sorted(name for name in ESTIMATOR_RECORDS if name not in ("branch", "maxrl"))
    credit = data.draw(configs(data.draw(st.sampled_from(names))))
    sessions = []
    for number, group in enumerate(batch):
        for typed in group:
            rewards = [line.reward for line in typed]
            states = ["start", *(line.left for line in typed[:-1])]
            sessions.append(Session(number, [line.tokens for line in typed], rewards, 0.0, states))
    if len({session.group for session in sessions}) == len(sessions):
        sessions += sessions
    made = turn_advantages(sessions, credit)
    assert [len(values) for values in made] == [len(session.token_counts) for session in sessions]
    again = turn_advantages(sessions[::-1], credit)[::-1]
    for values, same in zip(made, again, strict=True):
        assert values == pytest.approx(same, rel=1e-6, abs=1e-6)


def test_rewards_on_tokens_belong_to_the_turn_that_came_before_them() -> None:
    mask = [0, 1, 1, 0, 0, 1, 0, 0]
    spans = turn_spans(mask)
    assert spans == [(1, 3), (5, 6)]
    assert turn_rewards_of([0.5, 0, 1, 0, 2, 4, 0, 8], spans) == [3.5, 12.0]
    assert turn_rewards_of([1.0], turn_spans([0])) == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"outcomes": [1.0]}, ConfigError, "outcomes has 1 rows, and the mask has 2"),
        ({"groups": ["a"]}, ConfigError, "groups has 1 rows, and the mask has 2"),
        ({"void": [True]}, ConfigError, "void has 1 rows, and the mask has 2"),
        ({"outcomes": None, "rewards": [[1.0], [float("nan")]]}, RewardError, "turn 0 of a session .* earned nan"),
        ({"outcomes": None}, ConfigError, "neither rewards nor outcomes"),
        ({"mask": [[1, 2], [1, 0]]}, ConfigError, "row 0 of the mask holds 2; it has to be 1 on sampled tokens"),
        ({"groups": ["a", "b"]}, ConfigError, "each of these 2 groups has one session; give those of one prompt"),
        ({"rewards": [[1.0, 1.0], [0.0]]}, RewardError, "of group 'a' has 1 turns and 2 rewards; each turn needs one"),
        ({"rewards": [[1.0], [float("nan")]]}, RewardError, "turn 0 of a session of group 'a' earned nan"),
        ({"spans": [[(0, 1)], [(0, 1)]]}, ConfigError, "row 0 has turns at tokens .* all 2 sampled tokens"),
        ({"spans": [[(0, 2), (1, 2)], [(0, 1)]]}, ConfigError, "they have to be in order"),
        ({"credit": config("gigpo")}, ConfigError, "gigpo compares turns that began in equal states; say in `states`"),
        ({"credit": config("return_to_go", baseline="state")}, ConfigError, "or take baseline place"),
        ({"credit": config("branch")}, ConfigError, "branch compares the branches of forked sessions"),
        ({"credit": config("maxrl"), "outcomes": [-1, 0]}, RewardError, "a session of task 'a' earned -1"),
        (
            {"credit": config("gigpo"), "states": [["s"], ["t"]]},
            ConfigError,
            "group 'a' begin in 2 different states; those that are compared have to begin in one",
        ),
        ({"credit": config("gigpo"), "states": [["s"], ["s", "t"]]}, ConfigError, "has 1 turns and 2 states"),
        (
            {"rewards": [0.5, 0.0]},
            RewardError,
            "row 0 of rewards is 0.5; .* a number for each turn. What a whole session earned goes into `outcomes`",
        ),
        ({"rewards": torch.tensor([0.5, 0.0]), "outcomes": None}, RewardError, "row 0 of rewards is 0.5"),
        ({"rewards": [[0.5], [[0.5]]]}, RewardError, r"row 1 of rewards is \[\[0.5\]\]"),
        ({"rewards": [[0.5], None]}, RewardError, "row 1 of rewards is None"),
        ({"rewards": 0.5}, ConfigError, "rewards is 0.5; it has to hold a value for each row"),
        ({"outcomes": [[1.0], [0.0]]}, RewardError, r"row 0 of outcomes is \[1.0\]; .* one number, or None .*: \(B,\)"),
        ({"outcomes": torch.ones(2, 1)}, RewardError, r"row 0 of outcomes is \[1.0\]"),
        ({"groups": [["a"], ["a"]]}, ConfigError, r"row 0 of groups is \['a'\]; it has to be one value, .*: \(B,\)"),
        ({"groups": torch.zeros(2, 1)}, ConfigError, r"row 0 of groups is \[0.0\]"),
        ({"groups": None}, ConfigError, "groups is None; it has to hold a value for each row"),
        ({"void": [[False], [False]]}, ConfigError, r"row 0 of void is \[False\]; it has to be true or false: \(B,\)"),
        ({"mask": [1, 1]}, ConfigError, r"row 0 of the mask is 1; .* a row of tokens for each session: \(B, T\)"),
        ({"mask": torch.ones(2, 2, 1)}, ConfigError, r"row 0 of the mask holds \[1.0\]; .*: \(B, T\)"),
        ({"spans": [(0, 2), (0, 1)]}, ConfigError, r"row 0 of spans is \(0, 2\); .* \(start, end\), for each turn"),
        ({"spans": [[(0, 1, 2)], [(0, 1)]]}, ConfigError, r"row 0 of spans is \[\(0, 1, 2\)\]"),
        ({"spans": [[(0.0, 2.0)], [(0, 1)]]}, ConfigError, r"row 0 of spans is \[\(0.0, 2.0\)\]"),
        ({"spans": [[(0, 2)], [(0, 1), (1, 2)]]}, ConfigError, "row 1 has turns .* hold a sampled token each"),
        ({"credit": config("gigpo"), "states": ["s", "s"]}, ConfigError, "row 0 of states is 's'; .* a text for each"),
        (
            {"credit": config("gigpo"), "states": [[["s"]], [["s"]]]},
            ConfigError,
            r"turn 0 .* in state \['s'\]; a state",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_the_way_out(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    given_arguments: dict[str, object] = {
        "mask": [[1, 1], [1, 0]],
        "groups": ["a", "a"],
        "credit": CreditConfig(),
        "outcomes": [1.0, 0.0],
        **arguments,
    }
    with pytest.raises(error, match=message):
        token_advantages(**given_arguments)  # type: ignore[arg-type]


def test_no_groups_are_needed_where_nothing_is_compared() -> None:
    for credit in (config("return_to_go", baseline="none"), config("outcome", baseline="none"), config("critic")):
        assert token_advantages([[1], [1]], ["a", "b"], credit, outcomes=[1.0, 0.0])[0][0] > 0


def test_an_empty_batch_and_one_of_void_rows_have_no_advantages() -> None:
    assert token_advantages([], [], RETURN_TO_GO, outcomes=[]) == []
    assert token_advantages(torch.zeros(0, 5), [], RETURN_TO_GO, outcomes=[]).shape == (0, 5)
    assert token_advantages([[0, 0], [0, 0]], [1, 1], config("reinforce++"), outcomes=[1, 2]) == [[0.0] * 2] * 2
