"""What repl_rl relies on inside TRL, transformers and vLLM (`contracts.yaml`). Where one fails, read their change
first, then what is built on it: `trainer/grpo.py`, `models/whole.py` and `engine/vllm/scheduler.py`."""

import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

CONTRACTS = yaml.safe_load(Path(__file__).with_name("contracts.yaml").read_text(encoding="utf-8"))
RELIED_ON = [(name, *promise) for name, promises in CONTRACTS["relied_on"].items() for promise in promises]


def method_of(name: str) -> Callable[..., Any]:
    owner, _, attribute = name.partition(".")
    method: Callable[..., Any] = getattr(pkgutil.resolve_name(CONTRACTS["classes"][owner]), attribute)
    return method


@pytest.mark.parametrize(("name", "parameters"), CONTRACTS["overridden"].items())
def test_an_overridden_method_keeps_its_parameters(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(method_of(name)).parameters) == parameters


@pytest.mark.parametrize(("name", "code", "promise"), RELIED_ON)
def test_a_method_still_does_what_is_built_on(name: str, code: str, promise: str) -> None:
    assert code in inspect.getsource(inspect.unwrap(method_of(name))), promise
