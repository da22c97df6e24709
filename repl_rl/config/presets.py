"""Rewards sections that ship: `configs/rewards/NAME.yaml`. What a config says itself goes over them, key by key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from repl_rl.config.section import nearest
from repl_rl.utils.resources import resource_folder


def shipped_presets() -> list[str]:
    """Names of the presets in the package."""
    return sorted(path.stem for path in (resource_folder("configs") / "rewards").glob("*.yaml"))


def over_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """A rewards section with what its preset says filled in. Raises ValueError for a preset that does not ship.

    Mappings are merged, lists replaced.
    """
    name = values.get("preset", "none")
    if name not in shipped_presets():
        raise ValueError(f"unknown preset {name!r}; {nearest(str(name), shipped_presets())}")
    return _over(_preset(name), values)


@cache
def _preset(name: str) -> dict[str, Any]:
    text = (resource_folder("configs") / "rewards" / f"{name}.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text) or {}
    return values


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            merged[key] = _over(below[key], above[key])
    return merged
