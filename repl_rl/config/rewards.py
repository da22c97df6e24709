"""The rewards section: what a line earns. `rewards: gentle` in a file is short for `rewards: {preset: gentle}`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, model_validator

from repl_rl.config.exception_names import known_exception, reported_name
from repl_rl.config.presets import over_preset
from repl_rl.config.section import Section, nearest
from repl_rl.config.shaping import ShapingConfig
from repl_rl.trajectory import LineKind


def _known_kind(name: Any) -> Any:
    if not isinstance(name, str) or name not in list(LineKind):
        raise ValueError(f"unknown line kind {name!r}; {nearest(str(name), list(LineKind))}")
    return name


def _compilable(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is no regular expression ({error})") from error
    return pattern


def _unambiguous(names: Any) -> Any:
    counts = Counter(map(reported_name, names))
    twice = [name for name in names if counts[reported_name(name)] > 1]
    if twice:
        raise ValueError(f"{' and '.join(twice)} can't be told apart: a kernel reports a class without its module")
    return names


Reward = Annotated[FiniteFloat, Field(ge=-100.0, le=100.0)]
Kind = Annotated[LineKind, BeforeValidator(_known_kind)]
ExceptionName = Annotated[str, AfterValidator(known_exception)]
Pattern = Annotated[str, AfterValidator(_compilable)]


class RewardRule(Section):
    """A reward for every line that meets all the conditions named; logged under the rule's name."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """What it is logged under; no two rules may share one."""
    reward: Reward
    """Paid, or charged if negative, for each such line."""
    kinds: tuple[Kind, ...] = ()
    """Any of these kinds."""
    exceptions: Annotated[tuple[ExceptionName, ...], AfterValidator(_unambiguous)] = ()
    """Any of these classes, or a subclass of one."""
    text: Pattern | None = None
    """A regular expression that is found in what was typed."""
    output: Pattern | None = None
    """A regular expression that is found in what the interpreter showed, next prompt included."""
    times: Literal["first", "repeated"] | None = None
    """Whether the same line, spaces and comments aside, was typed before."""
    at: Literal["first", "last"] | None = None
    """Only the first line of the trajectory, or only the last."""
    after: int | None = Field(None, ge=1)
    """Only lines behind the n-th."""
    stale: bool | None = None
    """true: only lines whose run changed nothing and showed nothing new; false: only the others."""

    @property
    def looks_back(self) -> bool:
        """Whether it depends on the lines before."""
        return self.times is not None or self.stale is not None


class RewardsConfig(Section):
    """What a trajectory and its lines earn. docs/rewards.md says how the parts go together."""

    preset: str = "none"
    """One of `configs/rewards`; the keys below go over it."""
    outcome: Reward = 1.0
    """Paid once for a right answer, at the line that submitted it."""
    kinds: dict[Kind, Reward] = Field(default_factory=dict)
    """Reward per line of a kind; kinds that are not named earn 0."""
    exceptions: Annotated[dict[ExceptionName, Reward], AfterValidator(_unambiguous)] = Field(default_factory=dict)
    """Reward by exception class, subclasses included; the most specific one replaces the kind's reward on such a line.
    `Exception` and `BaseException` cover lines of the kind `exception` only."""
    rules: tuple[RewardRule, ...] = ()
    """Further rewards by text, output, repetition and position; all that fit are added."""
    functions: tuple[str, ...] = ()
    """Import paths, `package.module:function`, of `(trajectory) -> list[float]`, sync or async."""
    function_s: float = Field(10.0, gt=0, le=86_400)
    """Wall seconds that one call of a function may take."""
    shaping: ShapingConfig = ShapingConfig()

    @model_validator(mode="before")
    @classmethod
    def _over_its_preset(cls, values: Any) -> Any:
        if isinstance(values, str):
            values = {"preset": values}
        return over_preset(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _rules_are_told_apart(self) -> RewardsConfig:
        twice = repeated([rule.name for rule in self.rules])
        if twice:
            raise ValueError(f"rules: two rules of one name: {', '.join(twice)}")
        ahead = [rule.name for rule in self.rules if rule.at == "last"]
        if ahead and self.shaping.mode == "potential":
            raise ValueError(f"rules: {', '.join(ahead)}: at: last pays nothing where a potential ends with 0")
        return self


def repeated(names: Iterable[str]) -> list[str]:
    """Those that come more than once."""
    return [name for name, count in Counter(names).items() if count > 1]
