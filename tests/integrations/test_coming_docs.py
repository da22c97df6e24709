"""docs/from-verl.md and docs/from-verifiers.md, with the packages that they are about."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import blocks

from repl_rl.config import Config
from repl_rl.trajectory import Task

pytestmark = pytest.mark.more
DOCS = Path(__file__).parents[2] / "docs"
FROM_VERL = (DOCS / "from-verl.md").read_text(encoding="utf-8")
FROM_VERIFIERS = (DOCS / "from-verifiers.md").read_text(encoding="utf-8")
OURS = re.compile(r"`((?:model|train|budget|engine|dialect|tools|sampling|credit|tasks)\.[\w.]+)`")


def value_at(path: str, tree: Any) -> Any:
    for key in path.split("."):
        tree = tree[key]
    return tree


def test_each_key_of_verls_is_verls_and_each_of_ours_is_ours(verl_path: Path) -> None:
    folder = verl_path / "verl" / "trainer" / "config"
    theirs = yaml.safe_load((folder / "_generated_ppo_trainer.yaml").read_text())
    ours = Config().model_dump()
    named = re.findall(r"`((?:data|actor_rollout_ref|algorithm|trainer)\.[\w.]+)`", FROM_VERL)
    assert len(named) > 25
    for path in named:
        value_at(path, theirs)  # KeyError names one that is not there
    keys = set(OURS.findall(FROM_VERL))
    assert len(keys) > 20
    for key in keys:
        section, _, rest = key.partition(".")
        first = rest.split(".")[0]
        assert first in ours[section], key
        if first not in ("trl", "vllm", "lora"):  # which take arguments of others
            value_at(key, ours)


def test_verls_estimators_are_named_as_verl_names_them(verl_path: Path) -> None:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    rows = re.findall(r"^\| `(\w+)`[^|]*\| `", FROM_VERL.partition("| `algorithm.adv_estimator` | `credit` |")[2], re.M)
    assert rows == ["grpo", "grpo", "rloo", "reinforce_plus_plus_baseline", "gae"]
    assert set(rows) <= {str(name) for name in ADV_ESTIMATOR_REGISTRY}


def test_verls_own_score_grades(verl_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(blocks(FROM_VERL, "python")[0], names)
    task = Task("a", "What is 6 * 7?", "42")
    assert [names["graded"](task, answer) for answer in (("42",), ("41",), None)] == [1.0, 0.0, 0.0]


@pytest.mark.usefixtures("verifiers_path")
def test_a_taskset_of_verifiers_gives_problems() -> None:
    [block] = blocks(FROM_VERIFIERS, "python")
    names: dict[str, Any] = {"__name__": "block"}
    exec(block, names)
    first, *_, last = names["tasks"]
    assert (first.id, first.question, first.answer) == ("sum-0", "What is 0 + 7?", "7")
    assert (last.id, last.answer) == ("sum-19", "45")
