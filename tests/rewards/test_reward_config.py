"""The rewards section: presets by name, overridden key by key, and what makes no sense refused in plain words."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from repl_rl.config import Config, dump_config, load_config, parse_config, shipped_configs
from repl_rl.config.rewards import shipped_presets
from repl_rl.errors import ConfigError
from repl_rl.trajectory import LineKind
from repl_rl.utils.folders import resource_folder

REFUSED = yaml.safe_load((Path(__file__).parent / "refused.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", REFUSED, ids=[str(case["rewards"]) for case in REFUSED])
def test_sections_that_make_no_sense(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=case["says"]):
        parse_config({"rewards": case["rewards"]})


def test_these_presets_ship() -> None:
    assert list(shipped_presets()) == ["gentle", "none", "strict"]
    assert not set(shipped_presets()) & set(shipped_configs())
    assert parse_config({"rewards": "none"}) == Config()
    assert Config().rewards.kinds == {}
    gentle = parse_config({"rewards": "gentle"})
    assert gentle == parse_config({"rewards": {"preset": "gentle"}})
    assert gentle.rewards.kinds[LineKind.SYNTAX_ERROR] == -0.05
    assert gentle.rewards.shaping.caps.loss == 0.25


def test_further_keys_go_over_the_preset() -> None:
    over = {"kinds": {"syntax_error": -0.5, "comment": 0.125}, "shaping": {"caps": {"gain": None}}, "rules": []}
    config = parse_config({"rewards": {"preset": "strict", **over}}).rewards
    strict = parse_config({"rewards": "strict"}).rewards
    assert config.kinds == {**strict.kinds, LineKind.SYNTAX_ERROR: -0.5, LineKind.COMMENT: 0.125}
    assert (config.shaping.caps.gain, config.shaping.caps.loss) == (None, strict.shaping.caps.loss)
    assert config.shaping.novelty
    assert [rule.name for rule in strict.rules] == ["idle"]
    assert config.rules == ()


def test_overrides_on_the_command_line_keep_the_preset() -> None:
    config = parse_config({"rewards": "gentle"}, ("rewards.outcome=2",)).rewards
    assert (config.preset, config.outcome) == ("gentle", 2.0)
    assert parse_config({"rewards": {"outcome": 2}}, ("rewards=strict",)) == parse_config({"rewards": "strict"})


@pytest.mark.parametrize("name", shipped_presets())
def test_each_preset_says_what_it_invites_pays_for_no_line_and_reads_back(name: str, tmp_path: Path) -> None:
    text = (resource_folder("configs") / "rewards" / f"{name}.yaml").read_text(encoding="utf-8")
    assert "# Invites: " in text
    assert "# Against farming: " in text
    config = parse_config({"rewards": name})
    rewards = config.rewards
    paid = [*rewards.kinds.values(), *rewards.exceptions.values(), *(rule.reward for rule in rewards.rules)]
    assert all(value < 0 for value in paid)
    assert not paid or rewards.shaping.caps.loss is not None
    assert (rewards.shaping.caps.loss or 0.0) < rewards.outcome < 100
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    assert load_config(str(tmp_path / "config.yaml")) == config
