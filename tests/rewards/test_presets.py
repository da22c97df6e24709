"""Presets: by name, overridden key by key, and what each of them says."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml

from repl_rl.config import Config, dump_config, load_config, parse_config, shipped_configs
from repl_rl.config.rewards import shipped_presets
from repl_rl.errors import ConfigError
from repl_rl.trajectory import LineKind
from repl_rl.utils.folders import resource_folder


def test_these_ship_and_are_no_configs() -> None:
    assert list(shipped_presets()) == ["gentle", "none", "strict"]
    assert not set(shipped_presets()) & set(shipped_configs())


def test_without_a_preset_it_is_none() -> None:
    assert parse_config({"rewards": "none"}) == Config()
    assert Config().rewards.kinds == {}


def test_a_name_is_short_for_the_preset() -> None:
    gentle = parse_config({"rewards": "gentle"})
    assert gentle == parse_config({"rewards": {"preset": "gentle"}})
    assert gentle.rewards.kinds[LineKind.SYNTAX_ERROR] == -0.05
    assert gentle.rewards.shaping.caps.loss == 0.25
    assert parse_config({"rewards": "strict"}).rewards.kinds[LineKind.SYNTAX_ERROR] == -0.3


def test_further_keys_go_over_the_preset() -> None:
    config = parse_config(
        {
            "rewards": {
                "preset": "strict",
                "kinds": {"syntax_error": -0.5, "comment": 0.125},
                "shaping": {"caps": {"gain": None}},
                "rules": [],
            }
        }
    ).rewards
    strict = parse_config({"rewards": "strict"}).rewards
    assert config.kinds == {**strict.kinds, LineKind.SYNTAX_ERROR: -0.5, LineKind.COMMENT: 0.125}
    assert (config.shaping.caps.gain, config.shaping.caps.loss) == (None, strict.shaping.caps.loss)
    assert config.shaping.novelty
    assert [rule.name for rule in strict.rules] == ["idle"]
    assert config.rules == ()


def test_overrides_on_the_command_line_keep_the_preset() -> None:
    config = parse_config({"rewards": "gentle", "engine": "transformers"}, ("rewards.outcome=2", "engine.places=4"))
    assert (config.rewards.preset, config.rewards.outcome) == ("gentle", 2.0)
    assert (config.engine.backend, config.engine.places) == ("transformers", 4)
    assert parse_config({"rewards": {"outcome": 2}}, ("rewards=strict",)).rewards == (
        parse_config({"rewards": "strict"}).rewards
    )


@pytest.mark.parametrize("name", shipped_presets())
def test_a_resolved_preset_loads_as_it_was(name: str, tmp_path: pytest.TempPathFactory) -> None:
    config = parse_config({"rewards": name})
    path = f"{tmp_path}/config.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(dump_config(config))
    assert load_config(path) == config


@pytest.mark.parametrize("page", ["docs/rewards.md", "README.md"])
def test_the_examples_that_people_copy_are_configs(page: str) -> None:
    path = Path(__file__).parents[2] / page
    if not path.exists():
        pytest.skip("an installed copy has no pages beside it")
    blocks = re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    example = next(block for block in blocks if "rewards:" in block)
    config = parse_config(yaml.safe_load(example))
    assert config.rewards.preset == "gentle"
    assert config.rewards.rules[0].name == "looks"


@pytest.mark.parametrize("values", ["gentel", {"preset": "gentel"}])
def test_an_unknown_preset_is_refused_with_the_nearest_one(values: object) -> None:
    with pytest.raises(ConfigError, match=r"^rewards: unknown preset 'gentel'; did you mean 'gentle'\?$"):
        parse_config({"rewards": values})


@pytest.mark.parametrize("values", [3, ["gentle"], {"preset": 3}, {"preset": ["none"]}, {"preset": None}])
def test_presets_that_are_no_names(values: object) -> None:
    with pytest.raises(ConfigError, match=r"^rewards"):
        parse_config({"rewards": values})


@pytest.mark.parametrize("name", shipped_presets())
def test_each_preset_says_what_it_invites_and_pays_for_no_line(name: str) -> None:
    text = (resource_folder("configs") / "rewards" / f"{name}.yaml").read_text(encoding="utf-8")
    assert "# Invites: " in text
    assert "# Against farming: " in text
    rewards = parse_config({"rewards": name}).rewards
    paid = [*rewards.kinds.values(), *rewards.exceptions.values(), *(rule.reward for rule in rewards.rules)]
    assert all(value < 0 for value in paid)
    assert not paid or rewards.shaping.caps.loss is not None
    assert (rewards.shaping.caps.loss or 0.0) < rewards.outcome
    assert math.isfinite(rewards.outcome)
