"""The rewards section: what a trajectory and its lines earn, and how that is kept from being farmed.

`rewards: gentle` in a file is short for `rewards: {preset: gentle}`. Presets are the files `configs/rewards/NAME.yaml`;
the config's own keys override the preset's, one by one.
"""

from __future__ import annotations

import builtins
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    FiniteFloat,
    PlainSerializer,
    PlainValidator,
    model_validator,
)

from repl_rl.config.section import Section, one_needs_no_list
from repl_rl.trajectory import LineKind
from repl_rl.utils.folders import resource_folder
from repl_rl.utils.import_path import import_path_of
from repl_rl.utils.text import nearest

BUILTIN_EXCEPTIONS: dict[str, type[BaseException]] = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
"""By name, aliases such as IOError included. These are the only names that the host can check for spelling."""
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def known_exception(name: str) -> str:
    """The name as kernels report it; a dotted name (`module.Class`) as it was given. Raises ValueError for others."""
    if name in BUILTIN_EXCEPTIONS:
        return BUILTIN_EXCEPTIONS[name].__name__
    if _DOTTED.fullmatch(name):
        return name
    hint = nearest(name, [*BUILTIN_EXCEPTIONS]) if name else "give it a name"
    hint = hint if hint.startswith(("did", "give")) else "it is not a builtin"
    raise ValueError(
        f"unknown exception {name!r}; {hint} (write a library's or a session's own with a module in front: "
        "json.JSONDecodeError, __main__.MyError)"
    )


def reported_name(name: str) -> str:
    """The name in `Line.error_name` for this exception: kernels report a class without its module."""
    return name.rpartition(".")[2]


Amount = Annotated[FiniteFloat, Field(ge=0.0, le=10_000.0)]


class Caps(Section):
    """Per trajectory, both as positive numbers; null means no cap."""

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


# Shaping is every reward except the outcome and the charge for length, which has its own bound. What lines earn by the
# table, the rules and the functions goes through novelty, decay, blocks, clip, caps, weight and mode, in this order.
# Gains and losses are kept separate throughout, so that padding gains no more than the cap, however much was lost.
class ShapingConfig(Section):
    """How rewards of lines are kept from being farmed. None of it touches the outcome, nor the charge for length."""

    mode: Literal["additive", "potential"] = "additive"
    """`potential`: what a line would earn becomes the potential Phi of the state it leaves, and the line earns
    gamma Phi(after) - Phi(before), with Phi = 0 before the first line and after the last one (Ng, Harada and Russell
    1999). The order of trajectories stays as the outcome has it."""
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


def _known_kind(name: Any) -> Any:
    if not isinstance(name, str) or name not in list(LineKind):
        raise ValueError(f"unknown line kind {name!r}; {nearest(str(name), list(LineKind))}")
    return name


def _compilable(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression ({error})") from error
    return pattern


def _unambiguous(names: Any) -> Any:
    counts = Counter(map(reported_name, names))
    twice = [name for name in names if counts[reported_name(name)] > 1]
    if twice:
        raise ValueError(f"{' and '.join(twice)} can't be told apart: a kernel reports a class without its module")
    return names


def _function(value: Any) -> Any:
    if not isinstance(value, str) and not callable(value):
        raise ValueError(f"{value!r} is not an import path, package.module:function, and from Python not a function")
    return value


def _path_of(function: Any) -> str:
    return function if isinstance(function, str) else import_path_of(function)


Reward = Annotated[FiniteFloat, Field(ge=-100.0, le=100.0)]
Function = Annotated[
    str | Callable[..., Any], PlainValidator(_function), PlainSerializer(_path_of, return_type=str, when_used="json")
]
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
    """Only lines after the n-th."""
    stale: bool | None = None
    """true: only lines whose run changed nothing and showed nothing new; false: only the others."""

    @property
    def looks_back(self) -> bool:
        """Whether it depends on the lines before."""
        return self.times is not None or self.stale is not None


class LengthConfig(Section):
    """A charge for long sessions, at their last line (DAPO's soft overlong punishment). No limit of the shaping touches
    it: `most` is its bound."""

    free: int = Field(ge=0)
    """Completion tokens, outputs included, that cost nothing."""
    over: int = Field(ge=1)
    """The charge rises in a straight line over so many tokens more, and stays there."""
    most: float = Field(1.0, gt=0, le=100)
    """The whole charge."""

    def reward(self, tokens: int) -> float:
        """What a session of so many completion tokens earns, at most 0."""
        return -self.most * min(max(tokens - self.free, 0) / self.over, 1.0)


class RewardsConfig(Section):
    """What a trajectory and its lines earn. docs/rewards.md says how the parts go together."""

    SHORT_FOR: ClassVar[str | None] = "preset"

    preset: str = "none"
    """Name of a file in `configs/rewards`. The keys below override what it sets."""
    outcome: Reward = 1.0
    """Paid once for a right answer, at the line that submitted it."""
    kinds: dict[Kind, Reward] = Field(default_factory=dict)
    """Reward per line of a kind; kinds that are not named earn 0."""
    exceptions: Annotated[dict[ExceptionName, Reward], AfterValidator(_unambiguous)] = Field(default_factory=dict)
    """Reward by exception class, subclasses included; the most specific one replaces the kind's reward on such a line.
    `Exception` and `BaseException` cover lines of the kind `exception` only."""
    rules: tuple[RewardRule, ...] = ()
    """Further rewards by text, output, repetition and position; all that fit are added."""
    length: LengthConfig | None = None
    """Charged by the session's tokens, and logged as `length`; null: length costs nothing."""
    functions: Annotated[tuple[Function, ...], BeforeValidator(one_needs_no_list)] = ()
    """Import paths, `package.module:function`, of `(trajectory) -> list[float]`, sync or async. From Python, the
    functions themselves will do."""
    function_s: float = Field(10.0, gt=0, le=86_400)
    """Wall seconds that one call of a function may take."""
    shaping: ShapingConfig = ShapingConfig()

    @property
    def least(self) -> float:
        """The least that anything is paid, as far as the file says; 0 if nothing is charged."""
        amounts = [0.0, self.outcome]
        amounts += self.kinds.values()
        amounts += self.exceptions.values()
        amounts += [rule.reward for rule in self.rules]
        if self.length:
            amounts.append(-self.length.most)
        return min(amounts)

    def __getstate__(self) -> dict[Any, Any]:
        """A pickle holds the functions' import paths, as JSON does: checkpoints hold the run's arguments, and lambdas
        can't be pickled."""
        state = super().__getstate__()
        functions = tuple(map(_path_of, self.functions))
        return {**state, "__dict__": {**state["__dict__"], "functions": functions}}

    @model_validator(mode="before")
    @classmethod
    def _over_its_preset(cls, values: Any) -> Any:
        values = cls.written_out(values)
        if not isinstance(values, dict):
            return values
        name = values.get("preset", "none")
        if not isinstance(name, str) or name not in shipped_presets():
            raise ValueError(f"unknown preset {name!r}; {nearest(str(name), shipped_presets())}")
        return _over(shipped_presets()[name], values)

    @model_validator(mode="after")
    def _rules_are_told_apart(self) -> RewardsConfig:
        twice = repeated([rule.name for rule in self.rules])
        if twice:
            raise ValueError(f"rules: two rules of one name: {', '.join(twice)}")
        ahead = [f"rules: {rule.name}: at: last" for rule in self.rules if rule.at == "last"]
        if ahead and self.shaping.mode == "potential":
            raise ValueError(f"{', '.join(ahead)} pays nothing where a potential ends with 0")
        for name, cap in (("gain", self.shaping.caps.gain), ("loss", self.shaping.caps.loss)):
            if self.outcome and cap is not None and cap > abs(self.outcome):
                raise ValueError(
                    f"shaping.caps.{name} is {cap:g} and a right answer is worth {self.outcome:g}: shaping could "
                    "outweigh it; take a smaller cap, or leave it out if that is meant"
                )
        return self


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


@cache
def shipped_presets() -> dict[str, dict[str, Any]]:
    """The contents of each preset in the package, by name."""
    files = sorted((resource_folder("configs") / "rewards").glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) or {} for file in files}


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below`, overridden by `above`: mappings are merged, lists replaced."""
    merged = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            merged[key] = _over(below[key], above[key])
    return merged
