"""What a line's reward is made of: by hand, and that its parts add up to it whatever is paid and limited."""

import json
import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import line, made

from repl_rl.config import RewardsConfig
from repl_rl.rewards import RewardTable
from repl_rl.rollout import score
from repl_rl.trajectory import Branch, LineKind, RewardPart, Task, Trajectory


def lengths(trajectory: Trajectory) -> list[float]:
    return [len(each.text) / 7 - 1 for each in trajectory.lines]


def test_each_source_is_named_with_what_the_limits_left_of_it() -> None:
    """A look pays whole, nothing without news, a quarter for the third time, and then what is left of the cap."""
    config = RewardsConfig(
        exceptions={"ArithmeticError": -0.5},
        kinds={"comment": -0.125},
        rules=[{"name": "looks", "reward": 0.5, "kinds": ["expression"]}],
        shaping={"novelty": True, "decay": 0.5, "caps": {"gain": 0.875}},
    )
    looks = [line(text, LineKind.EXPRESSION, output=shown) for text, shown in zip("xxxyz", "11234", strict=True)]
    session = made(
        [line("w"), *looks, line("#", LineKind.COMMENT), line("1/0", LineKind.EXCEPTION, "ZeroDivisionError")]
    )
    scored = RewardTable(config).score(session, 1.0).with_bonus(0.25)
    parts = [each.reward_parts for each in scored.trajectory.lines]
    assert parts == [
        (),
        (RewardPart("looks", 0.5),),
        (RewardPart("looks", 0.0, 0.5, (("novelty", 0.0),)),),
        (RewardPart("looks", 0.125, 0.5, (("decay", 0.125),)),),
        (RewardPart("looks", 0.25, 0.5, (("caps", 0.25),)),),
        (RewardPart("looks", 0.0, 0.5, (("caps", 0.0),)),),
        (RewardPart("kinds.comment", -0.125),),
        (RewardPart("outcome", 1.0), RewardPart("exceptions.ArithmeticError", -0.5), RewardPart("reward_funcs", 0.25)),
    ]
    records = scored.trajectory.to_dict()["lines"]
    assert [each.get("reward_parts") for each in records[:2]] == [None, ({"source": "looks", "amount": 0.5},)]


LINES = st.builds(
    line,
    st.sampled_from(["x = 1", "x", "for i in x:", "import math"]),
    st.sampled_from(LineKind),
    st.none() | st.sampled_from(["NameError", "ZeroDivisionError"]),
    st.sampled_from(["", "1\n", "2\n"]),
    st.none() | st.sampled_from("abc"),
)
AMOUNTS = st.floats(-10, 10)
SHAPING = st.fixed_dictionaries(
    {},
    optional={
        "novelty": st.booleans(),
        "decay": st.floats(0, 1),
        "blocks": st.sampled_from(["completing", "split"]),
        "clip": st.tuples(st.floats(-5, 0), st.floats(0, 5)),
        "caps": st.fixed_dictionaries({}, optional={"gain": st.floats(0, 10), "loss": st.floats(0, 10)}),
        "weight": st.floats(0, 2),
    },
)


@given(
    st.lists(LINES, min_size=1, max_size=6),
    st.fixed_dictionaries(
        {
            "outcome": st.just(10.0),
            "kinds": st.dictionaries(st.sampled_from(LineKind), AMOUNTS),
            "exceptions": st.dictionaries(st.sampled_from(["ArithmeticError", "NameError"]), AMOUNTS),
            "rules": st.lists(st.fixed_dictionaries({"name": st.just("p"), "reward": AMOUNTS}), max_size=1),
            "shaping": SHAPING | st.just({"mode": "potential", "weight": 0.5}),
        }
    ),
    st.floats(0, 1),
    AMOUNTS,
    st.data(),
)
def test_parts_add_up_to_the_reward_to_the_bit(
    lines: list[Any], config: dict[str, Any], grade: float, bonus: float, data: st.DataObject
) -> None:
    table = RewardTable(RewardsConfig(**config), [lengths], gamma=0.9)
    root = made(lines)
    forked = data.draw(st.integers(1, len(lines)))
    branch = replace(
        made(lines[:1]),
        prompt_ids=root.prompt_ids + root.completion_ids[: 2 * forked],
        branch=Branch(0, min(forked, len(lines)), 0.5),
    )
    scored = score([Task("t", "?", "1")] * 2, [root, branch], lambda task, answer: (grade, "so it is"), table)
    for item in (*scored, *(each.with_bonus(bonus) for each in scored)):
        trajectory = item.trajectory
        for each in trajectory.lines:
            assert math.fsum(part.amount for part in each.reward_parts) == each.reward
            for part in each.reward_parts:
                assert part.limits[-1][1] == part.amount if part.limits else part.earned is None
                assert part.amount or part.earned
        assert Trajectory.from_dict(json.loads(json.dumps(trajectory.to_dict()))) == trajectory
        assert (trajectory.reference, trajectory.grade_reason) == ("1", "so it is")
