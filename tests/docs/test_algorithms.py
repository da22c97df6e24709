"""Every recipe of docs/algorithms.md is taken by our config and by TRL, and does what a default run does not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import ROOT

from repl_rl.config import Config, load_config, parse_config
from repl_rl.errors import ConfigError
from repl_rl.run.dryrun import dry_run
from repl_rl.tasks import make_tasks
from repl_rl.tasks.formats import row_of
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


def test_dapo_as_a_whole_is_its_parts() -> None:
    whole = merged(RECIPES["[DAPO](https://arxiv.org/abs/2503.14476), whole"])
    parts = [
        "token-level loss (DAPO)",
        "clip-higher (DAPO)",
        "dynamic sampling (DAPO)",
        "overlong filtering (DAPO)",
        "soft overlong punishment ([DAPO](https://arxiv.org/abs/2503.14476))",
        "[GRPO](https://arxiv.org/abs/2402.03300)",
        "PPO's epochs",
    ]
    together: dict[str, Any] = {}
    for part in parts:
        for section, keys in merged(RECIPES[part]).items():
            of_trl = {**together.get(section, {}).get("trl", {}), **keys.get("trl", {})}
            together[section] = {**together.get(section, {}), **keys, **({"trl": of_trl} if of_trl else {})}
    assert whole == together


def test_scalerl_has_no_redraws_because_nothing_is_drawn_again_beside_sampling_ahead() -> None:
    recipe = merged(RECIPES["[ScaleRL](https://arxiv.org/abs/2510.13786)"])
    assert "redraws" not in recipe["train"]
    recipe["train"]["redraws"] = 1
    with pytest.raises(ConfigError, match="asynchronous and redraws 1 exclude one another"):
        parse_config(recipe)


@pytest.mark.more
def test_a_dry_run_accepts_every_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config(merged(RECIPES["by a function of yours"]))
    with pytest.raises(ConfigError, match=r"train.mask.function: 'my_masks:leaves_out' can't be imported"):
        dry_run(config, tmp_path)
    (tmp_path / "my_masks.py").write_text("def leaves_out(trajectory):\n    return False\n")
    kept = [json.dumps(row_of(task)) for task in make_tasks(None, 64, 0, "train")]
    (tmp_path / "kept.jsonl").write_text("\n".join(kept))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for recipe in RECIPES.values():
        config = parse_config(merged(recipe))
        if config.environment == "rlm":  # which is begun on trial, and needs problems with a context
            config = config.model_copy(update={"tasks": load_config("rlm").tasks})
        assert dry_run(config, tmp_path).rows
