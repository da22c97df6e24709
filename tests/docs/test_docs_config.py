"""docs/config.md is what its generator writes, and says of every key what the models say."""

import runpy
from pathlib import Path

import pytest

from repl_rl.config import Config, Section, load_config, shipped_configs

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "config.md"
WRITER = runpy.run_path(str(DOCS / "reference.py"))
descriptions, reference, section, sections = (
    WRITER[name] for name in ("descriptions", "reference", "section", "sections")
)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "python docs/reference.py > docs/config.md"


def test_every_section_and_key_is_there() -> None:
    paths = [path for path, _ in sections()]
    assert paths[:3] == ["", "model", "tasks"]
    assert {"rewards.rules[]", "rewards.shaping.caps", "tasks.columns", "eval"} <= set(paths)
    assert {name for name, value in Config() if isinstance(value, Section)} <= set(paths)
    parts = reference().split("\n## ")
    for path, model in sections():
        [text] = [part for part in parts if part.startswith(f"`{path}`\n" if path else "The file itself")]
        below = {name for inner, _ in sections() for name in [inner.removesuffix("[]").rpartition(".")[2]] if inner}
        for name in model.model_fields:
            assert f"| `{name}` |" in text or name in below


def test_the_learning_rates_that_it_names_are_those_of_the_shipped_configs() -> None:
    configs = [load_config(name) for name in shipped_configs()]
    pretrained = [config for config in configs if not config.model.path.startswith("nano")]
    of_all_weights = [config.train.learning_rate for config in pretrained if config.train.lora is None]
    of_adapters = [config.train.learning_rate for config in pretrained if config.train.lora is not None]
    assert (min(of_all_weights), max(of_all_weights)) == (1e-6, 2e-6)
    assert (min(of_adapters), max(of_adapters)) == (1e-5, 2e-4)
    said = "those that train all weights use 1e-6 to 2e-6, and those that train adapters 1e-5 to 2e-4"
    assert said in PAGE.read_text(encoding="utf-8")


class Undescribed(Section):
    told: int = 1
    """In two
    lines."""
    untold: int = 2


def test_words_come_from_the_source_and_a_key_without_any_is_refused() -> None:
    assert descriptions(Undescribed) == {"told": "In two lines."}
    with pytest.raises(ValueError, match="field 'untold' has no words below it"):
        section("here", Undescribed)
