"""The rewards section, ready to score: outcome, length, table, rules and functions, the last three shaped.

The host sees an exception's name, never the object. Builtins have the class hierarchy of the Python that runs here; any
other class counts as a direct subclass of `Exception`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from repl_rl.config import RewardsConfig
from repl_rl.config.rewards import BUILTIN_EXCEPTIONS, RewardRule, repeated, reported_name
from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards.functions import RewardFunction, call_function, load_function, name_of
from repl_rl.rewards.history import History, history, no_history
from repl_rl.rewards.shaping import Stages, shaped
from repl_rl.trajectory import Line, LineKind, RecordedCell, RewardPart, StopReason, Trajectory


def classes_of(line: Line) -> tuple[str, ...]:
    """The class names that a config can use for this line's exception, most specific first; () if it raised none.

    `Exception` and `BaseException` cover lines of the kind `exception` alone: syntax errors and time-outs have kinds of
    their own.
    """
    if line.error_name is None:
        return ()
    return _classes(line.error_name, line.kind is LineKind.EXCEPTION)


@lru_cache(1024)
def _classes(error_name: str, with_broad: bool) -> tuple[str, ...]:
    builtin = BUILTIN_EXCEPTIONS.get(error_name)
    names = [] if builtin else [error_name]
    names += [cls.__name__ for cls in (builtin or Exception).__mro__ if issubclass(cls, BaseException)]
    if with_broad:
        return tuple(names)
    return tuple(name for name in names if name not in ("Exception", "BaseException"))


def at_last_line(amount: float, lines: int) -> tuple[float, ...]:
    """One value per line: the amount at the last one, and 0 elsewhere."""
    if not lines:
        return ()
    return (0.0,) * (lines - 1) + (amount,)


def rule_rewards(rule: RewardRule, lines: Sequence[Line], past: History) -> tuple[float, ...]:
    """For each line, the rule's reward if all its conditions hold, else 0."""
    exceptions = frozenset(map(reported_name, rule.exceptions))
    last = len(lines) - 1

    def holds(index: int, line: Line) -> bool:
        if rule.kinds and line.kind not in rule.kinds:
            return False
        if exceptions and exceptions.isdisjoint(classes_of(line)):
            return False
        if rule.text is not None and not re.search(rule.text, line.text):
            return False
        if rule.output is not None and not re.search(rule.output, line.output):
            return False
        is_first = past.earlier[index] == 0
        is_repeated = not is_first and line.kind is not LineKind.OPEN  # many different blocks begin with the same line
        if rule.times == "first" and not is_first:
            return False
        if rule.times == "repeated" and not is_repeated:
            return False
        if rule.stale is not None and rule.stale != past.stale[index]:
            return False
        if rule.at == "first" and index != 0:
            return False
        if rule.at == "last" and index != last:
            return False
        return rule.after is None or index >= rule.after

    return tuple(rule.reward if holds(index, line) else 0.0 for index, line in enumerate(lines))


def _with_cell(line: Line) -> Line:
    cell = RecordedCell(line.text.strip(), line.output.removesuffix(">>>"))
    return replace(line, cells=(cell,))


_PROBE_LINES = (
    Line(0, 1, " 6 * seven\n", LineKind.EXCEPTION, "NameError", "NameError: name 'seven' is not defined\n>>>"),
    Line(2, 3, " 6 * 7\n", LineKind.EXPRESSION, None, "42\n>>>"),
    Line(4, 5, " submit_final_answer(_)\n", LineKind.ANSWER),
)
PROBE = Trajectory(
    task_id="made up to try rewards",
    prompt=">>> # What is 6 * 7?\n>>>",
    prompt_ids=(0,),
    completion_ids=(1, 2, 3, 4, 5),
    sampled_mask=(True, False, True, False, True),
    logprobs=(-0.5, 0.0, -0.5, 0.0, -0.5),
    stop_reason=StopReason.ANSWER,
    lines=tuple(_with_cell(line) for line in _PROBE_LINES),
    answer=("42",),
)
"""A small made-up trajectory, on which reward functions are tried before anything expensive starts."""


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """A trajectory whose lines carry their rewards, and the components of those rewards: name -> value per line."""

    trajectory: Trajectory
    components: dict[str, tuple[float, ...]]
    outcome: float | None = None
    """What the trajectory earned in all for its outcome, rewards of TRL's kind included; None if nothing is paid for
    outcomes."""
    shown: tuple[bool, ...] = ()
    """For each line, whether what it showed is the reference answer, to the letter."""
    environment: Any = None
    """The user's, where there is one in this process and reward functions may look at it."""

    @property
    def line_rewards(self) -> tuple[float, ...]:
        return tuple(line.reward or 0.0 for line in self.trajectory.lines)

    def with_bonus(self, bonus: float) -> ScoredTrajectory:
        """A copy with `bonus`, from reward functions of TRL's kind, added to the last line's reward."""
        if not bonus or not self.trajectory.lines:
            return self
        last = self.trajectory.lines[-1]
        parts = (*last.reward_parts, RewardPart("reward_funcs", bonus))
        reward = math.fsum(part.amount for part in parts)
        last = replace(last, reward=reward, reward_parts=parts)
        trajectory = replace(self.trajectory, lines=(*self.trajectory.lines[:-1], last))
        return replace(self, trajectory=trajectory, outcome=(self.outcome or 0.0) + bonus)


class RewardTable:
    """The rewards section of a config, ready to score.

    `gamma` is the returns' discount per line, which potentials need. Raises ConfigError for a function that can't be
    imported and for two components of one name, and RewardError for a function that takes other arguments or fails on a
    small made-up trajectory. Both are raised before any model is loaded.
    """

    def __init__(self, config: RewardsConfig, functions: Sequence[RewardFunction] = (), gamma: float = 1.0) -> None:
        self._config = config
        self._gamma = gamma
        self._exceptions = {reported_name(name): reward for name, reward in config.exceptions.items()}
        self._looks_back = config.shaping.looks_back or any(rule.looks_back for rule in config.rules)
        self._functions = list(map(load_function, [*config.functions, *functions]))
        duplicates = repeated(self.component_names)
        if duplicates:
            raise ConfigError(f"rewards.functions: two components of one name: {', '.join(duplicates)}")
        self.tried = self.score(PROBE, 1.0)
        """A made-up session with its rewards."""

    @property
    def component_names(self) -> list[str]:
        names = ["outcome"]
        if self._config.length:
            names.append("length")
        names.append("table")
        names += [rule.name for rule in self._config.rules]
        names += [name_of(function) for function in self._functions]
        return names

    def score(self, trajectory: Trajectory, grade: float, step: int = 0) -> ScoredTrajectory:
        """Fill in the rewards. `grade` is 1.0 for a right answer; schedules are evaluated at training step `step`.

        Raises RewardError naming the function at fault, or the task if the grade is not finite.
        """
        if not math.isfinite(grade):
            raise RewardError(f"the grader returned {grade} for task {trajectory.task_id!r}; return a finite number")
        lines = trajectory.lines
        config = self._config
        past = history(lines) if self._looks_back else no_history(lines)

        shaping = {"table": tuple(self._table_part(line).amount for line in lines)}
        for rule in config.rules:
            shaping[rule.name] = rule_rewards(rule, lines, past)
        for function in self._functions:
            # A void trajectory (lost by the machinery, or without lines) earns nothing, and functions may expect lines.
            if trajectory.is_void:
                shaping[name_of(function)] = (0.0,) * len(lines)
            else:
                shaping[name_of(function)] = call_function(function, trajectory, config.function_s)
        stages = shaped(shaping, past, config.shaping, self._gamma, step)

        unshaped = {"outcome": at_last_line(config.outcome * grade, len(lines))}
        if config.length:
            unshaped["length"] = at_last_line(config.length.reward(len(trajectory.completion_ids)), len(lines))

        components = {**unshaped, **stages[-1].components}
        rewarded = []
        for index, line in enumerate(lines):
            parts = [RewardPart(name, values[index]) for name, values in unshaped.items() if values[index]]
            parts += self._shaping_parts(index, line, stages)
            reward = math.fsum(values[index] for values in components.values())
            rewarded.append(replace(line, reward=reward, reward_parts=tuple(parts)))
        outcome = config.outcome * grade if config.outcome and lines else None
        return ScoredTrajectory(replace(trajectory, lines=tuple(rewarded), outcome_reward=grade), components, outcome)

    def _shaping_parts(self, index: int, line: Line, stages: Stages) -> list[RewardPart]:
        """What each component of the shaping gave a line, with what the limits left in between."""
        parts = []
        for name, values in stages[0].components.items():
            earned = values[index]
            amount = stages[-1].components[name][index]
            if not amount and not earned:
                continue
            source = name
            if name == "table" and earned:
                source = self._table_part(line).source
            if amount == earned:
                parts.append(RewardPart(source, amount))
                continue
            limits = []
            before = earned
            for stage in stages[1:]:
                after = stage.components[name][index]
                if after != before:
                    limits.append((stage.limit, after))
                before = after
            parts.append(RewardPart(source, amount, earned, tuple(limits)))
        return parts

    def _table_part(self, line: Line) -> RewardPart:
        """What the table pays for a line before any limit, under the name that the config has for it."""
        for name in classes_of(line):
            if name in self._exceptions:
                return RewardPart(f"exceptions.{name}", self._exceptions[name])
        return RewardPart(f"kinds.{line.kind}", self._config.kinds.get(line.kind, 0.0))
