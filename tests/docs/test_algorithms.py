"""Every recipe of docs/algorithms.md is taken by our config and by TRL, and does what a default run does not."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import ROOT

from repl_rl.config import Config, parse_config
from repl_rl.trainer import ReplGRPOConfig

PAGE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
RECIPES = {name: re.findall(r"`([^`]+)`", keys) for name, _, keys, _ in ROWS if "`" in keys}
SHIPS = ("return to go", "token-level loss", "TIS", "unbiased KL")


def merged(recipe: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in recipe:
        for section, keys in yaml.safe_load(part).items():
            assert section not in values, f"{section} stands twice"
            values[section] = keys
    return values


def test_there_are_the_names_that_people_look_for() -> None:
    assert len(RECIPES) >= 40
    assert {re.sub(r"[\[(,].*", "", name.removeprefix("[")).split("]")[0].strip() for name in RECIPES} >= {
        *("GRPO", "Dr. GRPO", "RLOO", "REINFORCE++", "GiGPO", "MT-GRPO", "DAPO", "CISPO", "GSPO", "IcePop", "TIS"),
    }


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_taken(name: str, tmp_path: Path) -> None:
    recipe = merged(RECIPES[name])
    config = parse_config(recipe)
    arguments = ReplGRPOConfig.from_config(config, str(tmp_path), bf16=False)
    if not name.startswith(SHIPS):
        default = Config()
        sampled = {key: value for key, value in recipe.items() if getattr(default, key) != getattr(config, key)}
        assert sampled, "it does what a run without it does"
    for key, value in recipe.get("train", {}).get("trl", {}).items():
        assert getattr(arguments, key) == pytest.approx(value)
