"""The rewards section, ready to score: outcome, table, rules and functions, the last three shaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from repl_rl.config import RewardsConfig
from repl_rl.config.rewards import repeated, reported_name
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards.functions import RewardFunction, call_function, load_function, name_of
from repl_rl.rewards.history import history, no_history
from repl_rl.rewards.rules import Rule, classes_of
from repl_rl.rewards.shaping import shaped
from repl_rl.trajectory import Line, LineKind, RecordedCell, StopReason, Trajectory

_MESSAGE = "NameError: name 'seven' is not defined\n"
PROBE = Trajectory(
    task_id="probe",
    prompt=">>> # What is 6 * 7?\n>>>",
    prompt_ids=(0,),
    completion_ids=(1, 2, 3, 4, 5),
    sampled_mask=(True, False, True, False, True),
    logprobs=(-0.5, 0.0, -0.5, 0.0, -0.5),
    stop_reason=StopReason.ANSWER,
    lines=(
        Line(0, 1, " 6 * seven\n", LineKind.EXCEPTION, "NameError", f"{_MESSAGE}>>>",
             cells=(RecordedCell("6 * seven", _MESSAGE),)),
        Line(2, 3, " 6 * 7\n", LineKind.EXPRESSION, None, "42\n>>>", cells=(RecordedCell("6 * 7", "42\n"),)),
        Line(4, 5, " submit_final_answer(_)\n", LineKind.ANSWER, cells=(RecordedCell("submit_final_answer(_)", ""),)),
    ),
    answer=("42",),
)  # fmt: skip
"""Small and made up: reward functions are tried on it before anything expensive starts."""


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

    `gamma` is the discount per line of the returns, which potentials need. Raises ConfigError for a function that can't
    be imported and RewardError for one that fails on a small made-up trajectory: both before any model is loaded.
    """

    def __init__(self, config: RewardsConfig, functions: Sequence[RewardFunction] = (), gamma: float = 1.0) -> None:
        self._config = config
        self._gamma = gamma
        self._exceptions = {reported_name(name): reward for name, reward in config.exceptions.items()}
        self._rules = [Rule(rule) for rule in config.rules]
        self._looks_back = config.shaping.looks_back or any(rule.looks_back for rule in config.rules)
        self._functions = [*map(load_function, config.functions), *functions]
        twice = repeated(self.component_names)
        if twice:
            raise ConfigError(f"rewards.functions: two components of one name: {', '.join(twice)}")
        self.score(PROBE, 1.0)

    @property
    def component_names(self) -> list[str]:
        return ["outcome", "table", *(rule.name for rule in self._rules), *map(name_of, self._functions)]

    def score(self, trajectory: Trajectory, grade: float, step: int = 0) -> ScoredTrajectory:
        """Fill in the rewards; `grade` is 1.0 for a right answer, `step` the training step that schedules go by.

        Raises RewardError naming the function at fault.
        """
        if not math.isfinite(grade):
            raise RewardError(f"the grader returned {grade} for task {trajectory.task_id!r}; return a finite number")
        lines, config = trajectory.lines, self._config
        past = (history if self._looks_back else no_history)(lines)
        shaping: dict[str, tuple[float, ...]] = {"table": tuple(map(self._of_line, lines))}
        shaping |= {rule.name: rule.rewards(lines, past) for rule in self._rules}
        shaping |= {name_of(each): call_function(each, trajectory, config.function_s) for each in self._functions}
        outcome = (0.0,) * (len(lines) - 1) + (config.outcome * grade,) * bool(lines)
        components = {"outcome": outcome, **shaped(shaping, past, config.shaping, self._gamma, step)}
        totals = [math.fsum(values) for values in zip(*components.values(), strict=True)]
        rewarded = tuple(replace(line, reward=total) for line, total in zip(lines, totals, strict=True))
        return ScoredTrajectory(replace(trajectory, lines=rewarded, outcome_reward=grade), components)

    def _of_line(self, line: Line) -> float:
        named = (self._exceptions[name] for name in classes_of(line) if name in self._exceptions)
        return next(named, self._config.kinds.get(line.kind, 0.0))
