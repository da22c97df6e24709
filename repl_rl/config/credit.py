"""The credit section: how rewards become advantages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from repl_rl.config.section import Section


class CreditConfig(Section):
    estimator: Literal["outcome", "return_to_go"] = "return_to_go"
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per line."""
    scale: bool = True
    """Divide by the group's standard deviation."""
