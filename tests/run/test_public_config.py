"""What `repl-rl push` publishes of a config: each key is decided on, and what can hold a secret stays here."""

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from repl_rl.config import Config, parse_config
from repl_rl.run.push.card import public_config
from repl_rl.run.push.dataset import published

OWN = {
    "": {"import_from"},
    "cluster": {"address", "kernels_per_worker", "replica_arguments", "replica_resources", "replicas", "resources"}
    | {"runtime_env", "workers"},
    "engine": {"servers", "vllm", "weights_folder"},
    "kernel": {"budget_mb"},
    "model": {"chat_template_kwargs"},
    "sft": {"trl"},
    "subcalls": {"served_name"},
    "tools.mcp": {"command", "url", "env", "headers", "only", "prefix", "timeout_s", "at_once"},
    "train": {"lora", "report_rollouts", "report_rollouts_every", "report_to", "trace", "trl"},
}
"""Keys of the machine and its owner. Of mappings, such as `engine.vllm` and `train.trl`, single keys are public."""
WHOLE = ("rewards.rules",)
"""Published with all that is in it."""


def keys(model: type[BaseModel], section: str = "") -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        path = f"{section}.{name}".lstrip(".")
        inner = list(sections(field.annotation))
        if not inner or path in WHOLE:
            yield section, name
        for each in inner if path not in WHOLE else ():
            yield from keys(each, path)


def sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in typing.get_args(annotation):
        yield from sections(each)


def test_each_key_is_published_or_kept() -> None:
    public = published()["config"]
    found = set(keys(Config))
    kept = {(section, name) for section, names in OWN.items() for name in names}
    assert {(section, name) for section, name in found if name not in public.get(section, ())} == kept
    assert kept <= found


SECRET = "hf_SeCrEt"


@pytest.mark.parametrize(
    "values",
    [
        {"engine": {"vllm": {"api_key": SECRET}}},
        {"engine": {"vllm": {"hf_overrides": {"token": SECRET}}}},
        {"train": {"trl": {"hub_token": SECRET, "run_name": SECRET, "deepspeed": f"/home/{SECRET}.json"}}},
        {"train": {"trl": {"model_init_kwargs": {"token": SECRET}}}},
        {"subcalls": {"model": f"http://user:{SECRET}@example.org/v1", "served_name": SECRET}},
        {"engine": {"backend": "server", "servers": [f"http://user:{SECRET}@127.0.0.1:8000"]}},
        {"model": {"path": f"/home/{SECRET}/model"}},
        {"kernel": {"profile": f"/home/{SECRET}/profile.toml"}},
        {"cluster": {"replicas": 1, "runtime_env": {"env_vars": {"KEY": SECRET}}}},
        {"import_from": f"/home/{SECRET}"},
        {"tools": {"mcp": {"words": {"command": ["words", "--key", SECRET], "env": [SECRET]}}}},
        {"tools": {"mcp": {"words": {"url": f"http://{SECRET}@a.org", "headers": {"Authorization": SECRET}}}}},
    ],
    ids=lambda values: next(iter(values)),
)
def test_a_secret_stays_here(values: dict[str, Any]) -> None:
    assert SECRET not in repr(public_config(parse_config(values)))
