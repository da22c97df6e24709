"""Rules: each condition alone and together, by name, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from made_trajectories import line, made

from repl_rl.config import RewardsConfig, parse_config
from repl_rl.errors import ConfigError
from repl_rl.rewards import RewardTable
from repl_rl.trajectory import LineKind

SESSION = made(
    [
        line("import math", fingerprint="a"),
        line("# look", LineKind.COMMENT),
        line("math.sqrt(2)", LineKind.EXPRESSION, output="1.4142135623730951\n", fingerprint="a"),
        line("import  math", fingerprint="a"),
        line("1 / 0", LineKind.EXCEPTION, "ZeroDivisionError", "ZeroDivisionError: division by zero\n", "a"),
        line("submit_final_answer(1)", LineKind.ANSWER, fingerprint="a"),
    ]
)


@pytest.mark.parametrize(
    ("conditions", "paid"),
    [
        ({}, "111111"),
        ({"kinds": ["comment", "answer"]}, "010001"),
        ({"exceptions": ["ArithmeticError"]}, "000010"),
        ({"exceptions": ["LookupError", "Exception"]}, "000010"),
        ({"exceptions": ["LookupError"]}, "000000"),
        ({"text": r"^ ?import\b"}, "100100"),
        ({"text": "look$"}, "010000"),
        ({"output": r"\d\.\d{4}"}, "001000"),
        ({"times": "first"}, "111011"),
        ({"times": "repeated"}, "000100"),
        ({"at": "first"}, "100000"),
        ({"at": "last"}, "000001"),
        ({"after": 4}, "000011"),
        ({"after": 9}, "000000"),
        ({"stale": True}, "010100"),
        ({"stale": False}, "101011"),
        ({"text": "import", "times": "repeated", "after": 2}, "000100"),
        ({"text": "import", "times": "repeated", "after": 4}, "000000"),
    ],
)
def test_a_rule_pays_where_all_its_conditions_hold(conditions: dict[str, Any], paid: str) -> None:
    config = RewardsConfig(rules=({"name": "mine", "reward": 0.25, **conditions},))
    scored = RewardTable(config).score(SESSION, 0.0)
    assert scored.components["mine"] == tuple(0.25 * int(each) for each in paid)
    assert scored.components["table"] == (0.0,) * 6


def test_rules_add_up_each_under_its_own_name() -> None:
    rules = ({"name": "a", "reward": 0.25, "at": "first"}, {"name": "b", "reward": -0.5})
    table = RewardTable(RewardsConfig(kinds={"statement": 2.0}, rules=rules))
    assert table.component_names == ["outcome", "table", "a", "b"]
    scored = table.score(SESSION, 1.0)
    assert scored.line_rewards == (1.75, -0.5, -0.5, 1.5, -0.5, 0.5)
    assert scored.components["a"] == (0.25, 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"text": "(", "reward": 1, "name": "a"},
            r"^rewards\.rules\.0\.text: '\(' is not a regular expression \(.*missing",
        ),
        ({"output": "*", "reward": 1, "name": "a"}, r"^rewards\.rules\.0\.output: '\*' is not a regular expression"),
        ({"text": "a{99999999999}", "reward": 1, "name": "a"}, "is not a regular expression"),
        ({"txt": "a", "reward": 1, "name": "a"}, r"^unknown key 'rewards.rules.0.txt'; did you mean 'text'\?"),
        ({"kinds": ["excepton"], "reward": 1, "name": "a"}, r"rules\.0\.kinds\.0: .*did you mean 'exception'\?"),
        ({"exceptions": ["ValuError"], "reward": 1, "name": "a"}, r"exceptions\.0: .*did you mean 'ValueError'\?"),
        ({"reward": 1}, r"^rewards\.rules\.0\.name: Field required"),
        ({"name": "a"}, r"^rewards\.rules\.0\.reward: Field required"),
        ({"name": "a b", "reward": 1}, r"^rewards\.rules\.0\.name: String should match"),
        ({"name": "a", "reward": 101}, r"^rewards\.rules\.0\.reward: .*less than or equal to 100"),
        ({"name": "a", "reward": 1, "after": 0}, r"^rewards\.rules\.0\.after: "),
        ({"name": "a", "reward": 1, "times": "often"}, r"^rewards\.rules\.0\.times: .*'first' or 'repeated'"),
    ],
)
def test_rules_that_make_no_sense(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"rewards": {"rules": [rule]}})


def test_two_rules_of_one_name_are_refused() -> None:
    rule = {"name": "a", "reward": 1}
    with pytest.raises(ConfigError, match="two rules of one name: a"):
        parse_config({"rewards": {"rules": [rule, rule]}})
    with pytest.raises(ConfigError, match="two components of one name: outcome"):
        RewardTable(RewardsConfig(rules=({"name": "outcome", "reward": 1},)))
