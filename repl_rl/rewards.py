"""Pure: a trajectory and its grade become one reward per line, kept apart by component.

Components are `outcome` (the grade, at the line that submitted), `table` (line kinds and exception names) and every
function by its own name. Their sum is the line's reward before discounting.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from repl_rl.config import RewardsConfig
from repl_rl.errors import ConfigError, RewardError
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory

RewardFunction = Callable[[Trajectory], Sequence[float]]


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """A trajectory whose lines carry their rewards, and the components they are made of: name -> value per line."""

    trajectory: Trajectory
    components: dict[str, tuple[float, ...]]

    @property
    def line_rewards(self) -> tuple[float, ...]:
        return tuple(line.reward or 0.0 for line in self.trajectory.lines)

    def with_bonus(self, bonus: float) -> ScoredTrajectory:
        """The same with `bonus` added to the last line's reward."""
        if not bonus or not self.trajectory.lines:
            return self
        *head, last = self.trajectory.lines
        paid = replace(last, reward=(last.reward or 0.0) + bonus)
        return replace(self, trajectory=replace(self.trajectory, lines=(*head, paid)))


class RewardTable:
    """The reward section of a config, ready to score.

    Raises ConfigError for a function that can't be imported and RewardError for one that fails on a small made-up
    trajectory: both before any model is loaded.
    """

    def __init__(self, config: RewardsConfig, functions: Sequence[RewardFunction] = ()) -> None:
        self._config = config
        self._functions = {_name(function): function for function in [*map(_load, config.functions), *functions]}
        clashes = {"outcome", "table"} & self._functions.keys()
        if clashes or len(self._functions) < len(config.functions) + len(functions):
            raise ConfigError(f"rewards.functions: two components of one name among {[*self._functions, *clashes]}")
        self.score(_PROBE, 1.0)

    @property
    def component_names(self) -> list[str]:
        return ["outcome", "table", *self._functions]

    def score(self, trajectory: Trajectory, grade: float) -> ScoredTrajectory:
        """Fill in the rewards; `grade` is 1.0 for a right answer. Raises RewardError naming the function at fault."""
        if not math.isfinite(grade):
            raise RewardError(f"the grader returned {grade} for task {trajectory.task_id!r}; return a finite number")
        components = {
            "outcome": self._outcome(trajectory, grade),
            "table": tuple(self._of_line(line) for line in trajectory.lines),
            **{name: _checked(name, function, trajectory) for name, function in self._functions.items()},
        }
        totals = [math.fsum(values) for values in zip(*components.values(), strict=True)]
        lines = tuple(replace(line, reward=total) for line, total in zip(trajectory.lines, totals, strict=True))
        return ScoredTrajectory(replace(trajectory, lines=lines, outcome_reward=grade), components)

    def _outcome(self, trajectory: Trajectory, grade: float) -> tuple[float, ...]:
        last = len(trajectory.lines) - 1
        return tuple(self._config.outcome * grade if index == last else 0.0 for index in range(last + 1))

    def _of_line(self, line: Line) -> float:
        if line.error_name is not None and line.error_name in self._config.exceptions:
            return self._config.exceptions[line.error_name]
        return self._config.kinds.get(line.kind, 0.0)


def _checked(name: str, function: RewardFunction, trajectory: Trajectory) -> tuple[float, ...]:
    try:
        values = [float(value) for value in function(trajectory)]
    except Exception as error:  # users' code may raise anything
        raise RewardError(f"reward function {name!r} raised {type(error).__name__}: {error}") from error
    if len(values) != len(trajectory.lines):
        raise RewardError(
            f"reward function {name!r} returned {len(values)} values for {len(trajectory.lines)} lines; "
            "return one number per line, 0.0 where it has nothing to say"
        )
    if not all(map(math.isfinite, values)):
        raise RewardError(f"reward function {name!r} returned {values}; every value has to be finite")
    return tuple(values)


def _load(path: str) -> RewardFunction:
    module_name, colon, attribute = path.partition(":")
    if not colon:
        raise ConfigError(f"rewards.functions: {path!r} is no import path; write it as package.module:function")
    try:
        function: RewardFunction = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"rewards.functions: {path!r} can't be imported ({error})") from error
    if not callable(function):
        raise ConfigError(f"rewards.functions: {path!r} is {type(function).__name__}, not a function")
    return function


def _name(function: RewardFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)


_PROBE = Trajectory(
    task_id="probe",
    prompt=">>> # What is 6 * 7?\n>>>",
    prompt_ids=(0,),
    completion_ids=(1, 2, 3, 4, 5),
    sampled_mask=(True, False, True, False, True),
    logprobs=(-0.5, 0.0, -0.5, 0.0, -0.5),
    stop_reason=StopReason.ANSWER,
    lines=(
        Line(0, 1, " 6 * seven\n", LineKind.EXCEPTION, "NameError", "NameError: name 'seven' is not defined\n>>>"),
        Line(2, 3, " 6 * 7\n", LineKind.EXPRESSION, None, "42\n>>>"),
        Line(4, 5, " submit_final_answer(_)\n", LineKind.ANSWER),
    ),
    answer=("42",),
)
