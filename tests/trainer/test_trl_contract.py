"""What repl_rl relies on inside TRL (`trl_contract.yaml`). Where one of these fails, read TRL's change first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import RepeatSampler

CONTRACT = yaml.safe_load(Path(__file__).with_name("trl_contract.yaml").read_text(encoding="utf-8"))
OWNERS = {owner.__name__: owner for owner in (GRPOTrainer, VLLMGeneration, RepeatSampler)}
RELIED_ON = [(name, *promise) for name, promises in CONTRACT["relied_on"].items() for promise in promises]


def method_of(name: str) -> Callable[..., Any]:
    owner, _, attribute = name.partition(".")
    method: Callable[..., Any] = getattr(OWNERS[owner], attribute)
    return method


@pytest.mark.parametrize(("name", "parameters"), CONTRACT["overridden"].items())
def test_an_overridden_method_of_trl_keeps_its_parameters(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(method_of(name)).parameters) == parameters


@pytest.mark.parametrize(("name", "code", "promise"), RELIED_ON)
def test_a_method_of_trl_still_does_what_the_trainer_builds_on(name: str, code: str, promise: str) -> None:
    assert code in inspect.getsource(inspect.unwrap(method_of(name))), promise
