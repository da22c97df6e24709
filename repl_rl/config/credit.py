"""The credit section: how rewards become advantages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from repl_rl.config.section import Section, known_or_own

Baseline = Literal["mean", "leave_one_out", "place", "state", "none"]
Scale = Literal["none", "outcome", "floor", "batch", "group"]
_OF_LINES = ("place", "state")
NEUTRAL = ("place", "state", "leave_one_out", "none")
"""Baselines of `return_to_go` that do not depend on the trajectory's own lines."""

USED: dict[str, tuple[str, ...]] = {
    "outcome": ("baseline", "scale", "clip"),
    "dr_grpo": ("clip",),
    "rloo": ("clip",),
    "maxrl": ("clip",),
    "reinforce++": ("baseline", "clip"),
    "return_to_go": ("gamma", "baseline", "scale", "clip"),
    "turn": ("gamma", "scale", "clip"),
    "gigpo": ("gamma", "scale", "omega", "clip"),
    "critic": ("gamma", "lam", "decay", "clip"),
    "branch": ("clip",),
}
"""The fields that each shipped estimator uses. Setting another field is an error, and unused fields are not written
out. An estimator of the user's own gets all of them."""


ON_TREES = ("branch", "gigpo", "outcome")
"""Shipped estimators that can be had with trees. The first one can't be had without: its gradient is exact there, as
long as what comes after a line does not decide whether it is forked. The others take each branch for a whole session.
"""


class CreditConfig(Section):
    """How rewards become advantages. Formulas and sources are in `repl_rl/credit/`, one file per estimator."""

    SHORT_FOR: ClassVar[str | None] = "estimator"

    estimator: Annotated[str, known_or_own(USED, "estimator", "package.module:function")] = "return_to_go"
    """How a group's rewards become advantages: `outcome`, `dr_grpo`, `rloo`, `maxrl`, `reinforce++`, `return_to_go`,
    `turn`, `gigpo`, `critic`; for trees `branch`; or one of your own, as `package.module:function`. `clip` applies to
    all of them, the other keys to those that use them; docs/credit.md has a table."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per line."""
    baseline: Baseline = "mean"
    """What is subtracted: the group's `mean`, that of the other trajectories (`leave_one_out`), or `none`; for
    `return_to_go` also that of the other trajectories at the line's `place` (the default there), or that of their lines
    that began in the same interpreter `state`."""
    scale: Scale = "none"
    """The deviation that the difference is divided by. `none`: by none. `outcome`: of the group's outcomes. `floor`: of
    the group's returns, but at least a quarter of what a right answer earns. `batch`: of the whole batch's returns,
    with the same floor. `group`: of the group's returns, as in the papers, which makes small rewards large where the
    grades are equal."""
    omega: float = Field(1.0, ge=0)
    """GiGPO's weight of the advantage among lines that began in equal states."""
    lam: float = Field(1.0, ge=0, le=1)
    """The critic's lambda: 1 compares returns with its values, less puts the values of later states in their place."""
    decay: float = Field(0.9, ge=0, lt=1)
    """How much each batch weighs in the critic's memory, relative to the one after it; 0 forgets all but the last."""
    clip: float | None = Field(None, gt=0)
    """Bound on an advantage's absolute value, after all else; null leaves them as they are."""

    @model_validator(mode="after")
    def _only_what_the_estimator_uses(self) -> CreditConfig:
        for name in sorted(self.model_fields_set - {"estimator", *self._used}):
            users = ", ".join(estimator for estimator, fields in USED.items() if name in fields)
            raise ValueError(f"{name} means nothing to estimator {self.estimator}; leave it out (it is for {users})")
        return self

    @model_validator(mode="after")
    def _the_baseline_fits(self) -> CreditConfig:
        if self.estimator == "return_to_go" and "baseline" not in self.model_fields_set:
            object.__setattr__(self, "baseline", "place")
        if self.estimator == "outcome" and self.baseline in _OF_LINES:
            raise ValueError(
                f"estimator outcome takes baseline mean, leave_one_out or none, not {self.baseline}: it compares whole "
                "trajectories; return_to_go compares lines"
            )
        if self.estimator == "reinforce++" and self.baseline not in ("mean", "none"):
            raise ValueError(f"estimator reinforce++ takes baseline mean or none, not {self.baseline}")
        if self.baseline == "none" and "scale" in USED.get(self.estimator, ()) and self.scale == "group":
            raise ValueError(
                "baseline none does not go with scale group: equal rewards would be divided by a deviation of nothing"
            )
        return self

    @model_serializer(mode="wrap")
    def _what_takes_effect(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name in ("estimator", *self._used)}

    @property
    def _used(self) -> tuple[str, ...]:
        return USED.get(self.estimator, tuple(type(self).model_fields))

    @property
    def leaves_potentials_neutral(self) -> bool:
        """Whether a potential of the state pushes nowhere.

        It changes the return from a line by what the session was worth before the line, and a whole session's return
        not at all. That is neutral if what the line types changes neither what is subtracted nor what it is divided by,
        and if the result is not bounded.
        """
        if self.clip is not None:
            return False
        if self.estimator == "return_to_go":
            return self.baseline in NEUTRAL and self.scale == "none"
        if self.estimator == "critic":
            return self.lam == 1
        return self.estimator not in ("turn", "gigpo")

    @property
    def leaves_potentials_neutral_line_by_line(self) -> bool:
        """Whether it does so in expectation alone, over all that the policy may type: a potential then changes single
        advantages, and pushes if sessions are left out by what they typed. Elsewhere it changes no advantage at all,
        because whole sessions are compared, or futures from one state."""
        return self.estimator in ("return_to_go", "critic")
