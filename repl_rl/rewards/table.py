"""The rewards section, ready to score: outcome, table, rules and functions, the last three shaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from repl_rl.config import RewardsConfig
from repl_rl.config.rewards import repeated, reported_name
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards.exceptions import classes_of
from repl_rl.rewards.functions import RewardFunction, call_function, load_function, name_of
from repl_rl.rewards.history import history, no_history
from repl_rl.rewards.probe import PROBE
from repl_rl.rewards.rules import Rule
from repl_rl.rewards.scored import LineValues, ScoredTrajectory
from repl_rl.rewards.shaping import shaped
from repl_rl.trajectory import Line, Trajectory


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
        components = {"outcome": self._outcome(trajectory, grade), **self._shaping(trajectory, step)}
        totals = [math.fsum(values) for values in zip(*components.values(), strict=True)]
        lines = tuple(replace(line, reward=total) for line, total in zip(trajectory.lines, totals, strict=True))
        return ScoredTrajectory(replace(trajectory, lines=lines, outcome_reward=grade), components)

    def _outcome(self, trajectory: Trajectory, grade: float) -> LineValues:
        last = len(trajectory.lines) - 1
        return tuple(self._config.outcome * grade if index == last else 0.0 for index in range(last + 1))

    def _shaping(self, trajectory: Trajectory, step: int) -> dict[str, LineValues]:
        past = (history if self._looks_back else no_history)(trajectory.lines)
        components = {
            "table": tuple(map(self._of_line, trajectory.lines)),
            **{rule.name: rule.rewards(trajectory.lines, past) for rule in self._rules},
            **{name_of(each): call_function(each, trajectory, self._config.function_s) for each in self._functions},
        }
        return shaped(components, past, self._config.shaping, self._gamma, step)

    def _of_line(self, line: Line) -> float:
        for name in classes_of(line):
            if name in self._exceptions:
                return self._exceptions[name]
        return self._config.kinds.get(line.kind, 0.0)
