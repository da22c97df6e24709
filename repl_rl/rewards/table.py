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
from itertools import pairwise
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
    return () if line.error_name is None else _classes(line.error_name, line.kind is LineKind.EXCEPTION)


@lru_cache(1024)
def _classes(error_name: str, with_broad: bool) -> tuple[str, ...]:
    known = BUILTIN_EXCEPTIONS.get(error_name)
    names = [cls.__name__ for cls in (known or Exception).__mro__ if issubclass(cls, BaseException)]
    broad = () if with_broad else ("Exception", "BaseException")
    return tuple(name for name in ([] if known else [error_name]) + names if name not in broad)


def at_last_line(amount: float, lines: int) -> tuple[float, ...]:
    """One value per line: the amount at the last one, and 0 elsewhere."""
    return (0.0,) * (lines - 1) + (amount,) if lines else ()


def rule_rewards(rule: RewardRule, lines: Sequence[Line], past: History) -> tuple[float, ...]:
    """For each line, the rule's reward if all its conditions hold, else 0."""
    exceptions = frozenset(map(reported_name, rule.exceptions))

    def holds(index: int, line: Line) -> bool:
        return (
            (not rule.kinds or line.kind in rule.kinds)
            and (not exceptions or not exceptions.isdisjoint(classes_of(line)))
            and (rule.text is None or re.search(rule.text, line.text) is not None)
            and (rule.output is None or re.search(rule.output, line.output) is not None)
            and (rule.times is None or (rule.times == "repeated") == (past.earlier[index] > 0))
            and (rule.stale is None or rule.stale == past.stale[index])
            and (rule.at is None or index == (0 if rule.at == "first" else len(lines) - 1))
            and (rule.after is None or index >= rule.after)
        )

    return tuple(rule.reward if holds(index, line) else 0.0 for index, line in enumerate(lines))


_TYPED = (
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
    lines=tuple(
        replace(line, cells=(RecordedCell(line.text.strip(), line.output.removesuffix(">>>")),)) for line in _TYPED
    ),
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
        *head, last = self.trajectory.lines
        parts = (*last.reward_parts, RewardPart("reward_funcs", bonus))
        paid = replace(last, reward=math.fsum(part.amount for part in parts), reward_parts=parts)
        trajectory = replace(self.trajectory, lines=(*head, paid))
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
        self._functions = [*map(load_function, (*config.functions, *functions))]
        twice = repeated(self.component_names)
        if twice:
            raise ConfigError(f"rewards.functions: two components of one name: {', '.join(twice)}")
        self.tried = self.score(PROBE, 1.0)
        """A made-up session with its rewards."""

    @property
    def component_names(self) -> list[str]:
        names = ["outcome", *(["length"] if self._config.length else []), "table"]
        return [*names, *(rule.name for rule in self._config.rules), *map(name_of, self._functions)]

    def score(self, trajectory: Trajectory, grade: float, step: int = 0) -> ScoredTrajectory:
        """Fill in the rewards. `grade` is 1.0 for a right answer; schedules are evaluated at training step `step`.

        Raises RewardError naming the function at fault, or the task if the grade is not finite.
        """
        if not math.isfinite(grade):
            raise RewardError(f"the grader returned {grade} for task {trajectory.task_id!r}; return a finite number")
        lines, config = trajectory.lines, self._config
        past = (history if self._looks_back else no_history)(lines)
        shaping: dict[str, tuple[float, ...]] = {"table": tuple(self._entry(line)[1] for line in lines)}
        shaping |= {rule.name: rule_rewards(rule, lines, past) for rule in config.rules}
        for each in self._functions:
            # what the machinery lost, or what has no line, earns nothing; and functions may look at the last line
            paid_by_function = None if trajectory.is_void else call_function(each, trajectory, config.function_s)
            shaping[name_of(each)] = (0.0,) * len(lines) if paid_by_function is None else paid_by_function
        of_session = {"outcome": at_last_line(config.outcome * grade, len(lines))}
        if config.length:
            of_session["length"] = at_last_line(config.length.reward(len(trajectory.completion_ids)), len(lines))
        limited = shaped(shaping, past, config.shaping, self._gamma, step)
        components = {**of_session, **limited[-1][1]}
        rewarded = []
        for index, (line, *values) in enumerate(zip(lines, *components.values(), strict=True)):
            parts = [RewardPart(name, paid[index]) for name, paid in of_session.items() if paid[index]]
            parts += self._parts(index, line, limited)
            rewarded.append(replace(line, reward=math.fsum(values), reward_parts=tuple(parts)))
        paid = config.outcome * grade if config.outcome and lines else None
        return ScoredTrajectory(replace(trajectory, lines=tuple(rewarded), outcome_reward=grade), components, paid)

    def _parts(self, index: int, line: Line, limited: Stages) -> list[RewardPart]:
        """What each component of the shaping gave a line, with what the limits left in between."""
        parts = []
        paid = limited[-1][1]
        for name, earned in limited[0][1].items():
            amount = paid[name][index]
            if not (amount or earned[index]):
                continue
            source = self._entry(line)[0] if name == "table" and earned[index] else name
            if amount == earned[index]:
                parts.append(RewardPart(source, amount))
                continue
            left = [(limit, after[name][index]) for limit, after in limited]
            limits = tuple(now for (_, before), now in pairwise(left) if now[1] != before)
            parts.append(RewardPart(source, amount, earned[index], limits))
        return parts

    def _entry(self, line: Line) -> tuple[str, float]:
        """The table's entry for a line, as the config names it, and what it is worth."""
        for name in classes_of(line):
            if name in self._exceptions:
                return f"exceptions.{name}", self._exceptions[name]
        return f"kinds.{line.kind}", self._config.kinds.get(line.kind, 0.0)
