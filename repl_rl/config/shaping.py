"""How the rewards of lines are kept from being farmed: `rewards.shaping`.

Shaping is every reward but the outcome. What a line earns by the table, the rules and the functions goes through
novelty, decay, blocks, clip, caps, weight and mode, in this order. Gains and losses are held apart throughout, so that
what padding gains stays within the cap, however much was lost.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, model_validator

from repl_rl.config.section import Section

Amount = Annotated[FiniteFloat, Field(ge=0.0, le=10_000.0)]


class Caps(Section):
    """Per trajectory, both as positive numbers; null is no cap."""

    gain: Amount | None = None
    """All positive shaping together pays no more than this."""
    loss: Amount | None = None
    """All negative shaping together takes no more than this."""


class Schedule(Section):
    """A number over training steps; in a file, `weight: 0.5` is short for `weight: {start: 0.5}`."""

    start: float = Field(1.0, ge=0, le=100)
    """The value at the first step."""
    end: float | None = Field(None, ge=0, le=100)
    """Reached in a straight line after `steps` steps, and kept from there on. null: constant."""
    steps: int | None = Field(None, ge=1)
    """Training steps from `start` to `end`."""

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, values: Any) -> Any:
        return values if isinstance(values, dict | Schedule) else {"start": values}

    @model_validator(mode="after")
    def _ends_somewhere(self) -> Schedule:
        if (self.end is None) != (self.steps is None):
            raise ValueError("a schedule that changes needs both: end, and the steps until then")
        return self

    def at(self, step: int) -> float:
        """The value at a training step, counted from 0."""
        if self.end is None or self.steps is None:
            return self.start
        share = min(max(step, 0) / self.steps, 1.0)
        return self.start * (1.0 - share) + self.end * share


class ShapingConfig(Section):
    """How rewards of lines are kept from being farmed. The outcome is touched by none of it."""

    mode: Literal["additive", "potential"] = "additive"
    """`potential`: what a line would earn becomes the potential Phi of the state it leaves, and the line earns
    gamma Phi(after) - Phi(before), with Phi = 0 before the first line and after the last one (Ng, Harada and Russell
    1999). Which trajectory is better than which stays as the outcome has it."""
    blocks: Literal["completing", "split"] = "completing"
    """What a cell of several lines earns: paid at the line that completed it, or shared equally by its lines."""
    novelty: bool = False
    """A line whose run changed nothing and showed nothing new gains nothing; so do lines that run nothing."""
    decay: float = Field(1.0, ge=0, le=1)
    """A gain is multiplied by this once for each time that the same line (by its AST) was typed before."""
    clip: tuple[FiniteFloat, FiniteFloat] | None = None
    """Least and most that the shaping of one line may come to."""
    caps: Caps = Caps()
    weight: Schedule = Schedule()
    """Multiplies the shaping, caps included."""

    @property
    def looks_back(self) -> bool:
        """Whether a line's reward depends on the lines before it."""
        return self.novelty or self.decay < 1.0 or self.blocks == "split"

    @model_validator(mode="after")
    def _parts_go_together(self) -> ShapingConfig:
        if self.clip is not None and not self.clip[0] <= 0.0 <= self.clip[1]:
            raise ValueError(f"clip {list(self.clip)} has to hold 0: write it as [least, most], such as [-0.5, 0.1]")
        if self.mode == "potential" and self.blocks == "split":
            raise ValueError(
                "blocks: split pays a line for what comes after it, so it gives no potential of the state; "
                "use blocks: completing, or mode: additive"
            )
        return self
