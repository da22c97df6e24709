"""The credit section: how rewards become advantages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from repl_rl.config.estimators import (
    ESTIMATOR_RECORDS,
    LINE_BASELINES,
    NEUTRAL_BASELINES,
    Baseline,
    EstimatorRecord,
    Potentials,
    Scale,
)
from repl_rl.config.section import Section, known_or_own


class CreditConfig(Section):
    """How rewards become advantages. Formulas and sources are in `repl_rl/credit/`, one file per estimator."""

    SHORT_FOR: ClassVar[str | None] = "estimator"

    estimator: Annotated[str, known_or_own(ESTIMATOR_RECORDS, "estimator", "package.module:function")] = "return_to_go"
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
    def _reads_what_is_set(self) -> CreditConfig:
        for name in sorted(self.model_fields_set - {"estimator", *self._read}):
            readers = [estimator for estimator, record in ESTIMATOR_RECORDS.items() if name in record.settings]
            raise ValueError(
                f"{name} means nothing to estimator {self.estimator}; leave it out (it is for {', '.join(readers)})"
            )
        return self

    @model_validator(mode="after")
    def _takes_the_baseline(self) -> CreditConfig:
        record = self.record
        if record is None:
            return self
        if "baseline" not in self.model_fields_set:
            object.__setattr__(self, "baseline", record.default_baseline)
        if "baseline" in record.settings and self.baseline not in record.baselines:
            *first, last = record.baselines
            reason = ""
            if self.baseline in LINE_BASELINES:
                reason = ": it compares whole trajectories; return_to_go compares lines"
            raise ValueError(
                f"estimator {self.estimator} takes baseline {', '.join(first)} or {last}, not {self.baseline}{reason}"
            )
        if self.baseline == "none" and "scale" in record.settings and self.scale == "group":
            raise ValueError(
                "baseline none does not go with scale group: equal rewards would be divided by a deviation of nothing"
            )
        return self

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the keys that the estimator does not read."""
        return {name: value for name, value in handler(self).items() if name in ("estimator", *self._read)}

    @property
    def record(self) -> EstimatorRecord | None:
        """What is known of the estimator, if it is a shipped one."""
        return ESTIMATOR_RECORDS.get(self.estimator)

    @property
    def _read(self) -> tuple[str, ...]:
        """The keys that the estimator reads. One of the user's own gets all of them."""
        return tuple(type(self).model_fields) if self.record is None else self.record.settings

    @property
    def leaves_potentials_neutral(self) -> bool:
        """Whether a potential of the state pushes the policy nowhere, at least in expectation."""
        if self.clip is not None:
            return False
        if self.estimator == "return_to_go":
            return self.baseline in NEUTRAL_BASELINES and self.scale == "none"
        if self.estimator == "critic":
            return self.lam == 1
        return self.record is None or self.record.potentials is not Potentials.PUSH

    @property
    def leaves_potentials_neutral_line_by_line(self) -> bool:
        """Whether it does so in expectation alone, over all that the policy may type."""
        return self.record is not None and self.record.potentials is Potentials.CANCEL_IN_EXPECTATION
