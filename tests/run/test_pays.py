"""What a config pays for: known holes are found, and what ships has none."""

import pytest

from repl_rl.config import Config, load_config, parse_config
from repl_rl.config.estimators import ESTIMATOR_RECORDS
from repl_rl.rollout import reward_table
from repl_rl.run.pays import holes, row_and_notes, what_pays
from repl_rl.trajectory import LineKind, Trajectory
from repl_rl.utils.folders import shipped_configs

CAPPED = {"caps": {"gain": 0.2, "loss": 0.5}}


def config_of(rewards: object = "none", credit: object = "return_to_go", **sections: object) -> Config:
    return parse_config({"rewards": rewards, "credit": credit, "budget": {"lines": 24}, **sections})


def notes_of(config: Config) -> list[str]:
    _, notes = row_and_notes(config, reward_table(config.rewards, config.credit))
    return notes


@pytest.mark.parametrize("name", shipped_configs())
@pytest.mark.parametrize("preset", [None, "none", "gentle", "strict"])
def test_what_ships_has_no_hole(name: str, preset: str | None) -> None:
    assert notes_of(load_config(name, () if preset is None else (f"rewards={preset}",))) == []


def test_a_price_without_a_cap_is_farmed() -> None:
    config = config_of({"kinds": {"expression": 0.05}})
    pays = what_pays(config, reward_table(config.rewards, config.credit))
    assert pays.right == 1.0
    assert (pays.farmed.kind, pays.farmed.lines, pays.farmed.total) == (LineKind.EXPRESSION, 24, pytest.approx(1.2))
    assert pays.more[LineKind.EXPRESSION] == pytest.approx(0.05)
    assert pays.in_words == (
        "a right answer after one statement +1.00; a wrong session +1.20, for 24 expressions; one line more: "
        "comment 0, statement 0, expression +0.05, syntax error 0, exception 0"
    )
    assert list(holes(config, reward_table(config.rewards, config.credit), pays)) == [
        "rewards: a wrong session earns +1.20 for 24 expressions, and a right answer after one statement +1.00: a "
        "policy learns to farm lines. Limit what they pay, with rewards.shaping.caps.gain below 1"
    ]
    # With fewer lines, or a cap, it is not worth it.
    assert notes_of(config_of({"kinds": {"expression": 0.05}}, budget={"lines": 16})) == []
    assert notes_of(config_of({"kinds": {"expression": 0.05}, "shaping": CAPPED})) == []


def test_novelty_stops_what_says_nothing_new_and_nothing_else() -> None:
    again = {"rules": [{"name": "again", "reward": 0.1, "times": "repeated", "kinds": ["expression"]}]}
    (note,) = notes_of(config_of(again))
    assert "+2.30 for the same expression 24 times" in note
    assert notes_of(config_of(again | {"shaping": {"novelty": True}})) == []
    (note,) = notes_of(config_of({"kinds": {"expression": 0.1}, "shaping": {"novelty": True}}))
    assert "+2.40 for 24 expressions" in note


def test_charges_without_a_cap_teach_to_give_up() -> None:
    assert notes_of(config_of({"kinds": {"exception": -0.3}})) == [
        "rewards: a right answer after 23 exceptions earns -5.90, and a session that tries nothing 0: a policy learns "
        "to give up. Limit what is charged, with rewards.shaping.caps.loss below 1"
    ]
    assert notes_of(config_of({"kinds": {"exception": -0.3}, "shaping": CAPPED})) == []


def test_a_price_that_grows_is_tried_where_it_is_largest() -> None:
    growing = {"kinds": {"comment": 0.1}, "shaping": {"weight": {"start": 0.0, "end": 1.0, "steps": 5}}}
    (note,) = notes_of(config_of(growing, train={"steps": 10}))
    assert "+2.40 for 24 comments" in note


@pytest.mark.parametrize("estimator", sorted(set(ESTIMATOR_RECORDS) - {"branch"}))
def test_small_rewards_stay_small_unless_a_group_s_own_deviation_divides_them(estimator: str) -> None:
    rewards = {"kinds": {"expression": 0.02}, "shaping": CAPPED}
    credit = {"estimator": estimator}
    notes = notes_of(config_of(rewards, credit))
    if estimator == "reinforce++":  # made-up groups are a whole batch here, whose deviation is that of one reward
        assert len(notes) == 1
        return
    assert notes == []
    if "scale" in ESTIMATOR_RECORDS[estimator].settings:
        (note,) = notes_of(config_of(rewards, credit | {"scale": "group"}))
        assert note.startswith("credit: where all 8 sessions of a group are right, one expression of +0.02 sets ")
        assert notes_of(config_of(rewards, credit | {"scale": "outcome"})) == []


def test_lines_alone_are_paid() -> None:
    assert notes_of(config_of({"outcome": 0, "kinds": {"expression": 1.0}})) == []


def particular(trajectory: Trajectory) -> list[float]:
    if len(trajectory.lines) > 3:
        raise KeyError("a line that real sessions have")
    return [0.0] * len(trajectory.lines)


def test_a_function_that_fails_on_made_up_sessions_stops_nothing() -> None:
    config = config_of({"functions": [f"{__name__}:particular"]})
    row, (note,) = row_and_notes(config, reward_table(config.rewards, config.credit))
    assert row == "not known"
    assert note.startswith("what lines pay was not tried: reward function ")
