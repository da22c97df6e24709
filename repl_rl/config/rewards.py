"""The rewards section: what a line earns."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, FiniteFloat, model_validator

from repl_rl.config.section import Section, nearest
from repl_rl.trajectory import LineKind

Reward = Annotated[FiniteFloat, Field(ge=-100.0, le=100.0)]


class RewardsConfig(Section):
    outcome: Reward = 1.0
    """Paid once for a right answer, at the line that submitted it."""
    kinds: dict[LineKind, Reward] = Field(default_factory=dict)
    """Reward per line of a kind; kinds that are not named earn 0."""
    exceptions: dict[str, Reward] = Field(default_factory=dict)
    """Reward by exception name; replaces the kind's reward on such a line."""
    functions: tuple[str, ...] = ()
    """Import paths, `package.module:function`, of `(trajectory) -> list[float]`."""

    @model_validator(mode="before")
    @classmethod
    def _name_nearest_kind(cls, values: Any) -> Any:
        kinds = values.get("kinds", {}) if isinstance(values, dict) else {}
        for kind in kinds if isinstance(kinds, dict) else ():
            if kind not in set(LineKind):
                raise ValueError(f"kinds: unknown line kind {kind!r}; {nearest(str(kind), list(LineKind))}")
        return values
