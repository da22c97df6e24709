"""What other rewards and another estimator change in recorded sessions: the signs of advantages, the order of sessions,
wrong sessions that earn more than right ones, and what limits take.

Pure. Sessions are compared in pairs, as they were recorded and as they were rescored; void ones take no part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import NamedTuple

from repl_rl.trajectory import Line, Trajectory, sign, whole_session

_ROUNDING = 1e-9
"""Sums that differ by no more than this differ by rounding."""


_MOVE = ("blocks", "mode")
"""Limits that take from one line what they give to another."""


class Session(NamedTuple):
    """A session by its place: the file, its number there from 0 on, and what its lines earn in all."""

    file: str
    position: int
    total: float

    @property
    def name(self) -> str:
        return f"{self.file}#{self.position}"


@dataclass(slots=True)
class KindTally:
    """Sums over the lines of one kind, as recorded and as rescored."""

    lines: int = 0
    rewards: list[float] = field(default_factory=lambda: [0.0, 0.0])
    advantages: list[float] = field(default_factory=lambda: [0.0, 0.0])
    sign_changes: int = 0


class Passing(NamedTuple):
    """Two sessions of a group whose order is another one: which is ahead now, and what both had earned as recorded."""

    ahead: Session
    behind: Session
    ahead_recorded: float
    behind_recorded: float

    @property
    def swing(self) -> float:
        """How far the one came forward, relative to the other."""
        return (self.ahead.total - self.ahead_recorded) + (self.behind_recorded - self.behind.total)


class Hole(NamedTuple):
    """A wrong session that would earn more than a right one of its group, and what it would earn that for: sources of
    rewards with the number of lines that they pay and the sum, the largest sum first."""

    wrong: Session
    right: Session
    paid_for: tuple[tuple[str, int, float], ...]

    @property
    def margin(self) -> float:
        return self.wrong.total - self.right.total


@dataclass(slots=True)
class Cut:
    """What one limit took from one source of rewards, as an amount of either sign, and from how many lines."""

    lines: int = 0
    amount: float = 0.0


class Findings:
    """Filled step by step."""

    def __init__(self) -> None:
        self.sessions = 0
        self.groups = 0
        self.kinds: dict[str, KindTally] = {}
        self.signs: Counter[tuple[int, int]] = Counter()
        """Lines by the sign of their advantage, as recorded and as rescored: -1, 0 or 1."""
        self.passings: list[Passing] = []
        self.groups_with_passings = 0
        self.groups_told_apart = 0
        """Groups in which sessions that had earned the same do not any more."""
        self.holes: list[Hole] = []
        self.recorded_holes = 0
        """Wrong sessions that earned more than a right one of their group as they were recorded."""
        self.cuts: dict[tuple[str, str], Cut] = {}
        """By limit, in the order in which limits work, and source."""
        self.earned: dict[str, float] = {}
        """By source, what lines would earn without limits."""
        self.environment_paid = 0
        """Sessions whose grade was an environment's."""
        self.functions_paid = 0
        """Sessions with a reward by functions of TRL's kind."""

    @property
    def lines(self) -> int:
        return sum(tally.lines for tally in self.kinds.values())

    @property
    def sign_changes(self) -> int:
        return sum(count for (before, after), count in self.signs.items() if before != after)

    def add(self, file: str, recorded: Sequence[Trajectory], rescored: Sequence[Trajectory], group_size: int) -> None:
        """One step: sessions of the file, group after group."""
        for first in range(0, len(recorded), group_size):
            recorded_group = recorded[first : first + group_size]
            rescored_group = rescored[first : first + group_size]
            valid = [index for index, trajectory in enumerate(recorded_group) if not trajectory.is_void]
            if not valid:
                continue
            self.groups += 1
            self.sessions += len(valid)
            for index in valid:
                self._add_session(recorded_group[index], rescored_group[index])
            before = _sessions(file, first, recorded_group, valid)
            after = _sessions(file, first, rescored_group, valid)
            self._add_order(before, after)
            is_right = [(recorded_group[index].outcome_reward or 0.0) > 0 for index in valid]
            self.recorded_holes += len(_holes(before, is_right))
            for wrong, right in _holes(after, is_right):
                session = whole_session(rescored_group[wrong.position - first], rescored_group)
                self.holes.append(Hole(wrong, right, paid_for(session.lines)))

    def _add_session(self, recorded: Trajectory, rescored: Trajectory) -> None:
        self.environment_paid += recorded.environment_reward is not None
        last_parts = rescored.lines[-1].reward_parts
        self.functions_paid += any(part.source == "reward_funcs" for part in last_parts)
        for line, line_after in zip(recorded.lines, rescored.lines, strict=True):
            tally = self.kinds.setdefault(str(line.kind), KindTally())
            tally.lines += 1
            for number, scored in enumerate((line, line_after)):
                tally.rewards[number] += scored.reward or 0.0
                tally.advantages[number] += scored.advantage or 0.0
            signs = sign(line.advantage), sign(line_after.advantage)
            self.signs[signs] += 1
            tally.sign_changes += signs[0] != signs[1]
            self._add_cuts(line_after)

    def _add_cuts(self, line: Line) -> None:
        for part in line.reward_parts:
            left = part.amount if part.earned is None else part.earned
            self.earned[part.source] = self.earned.get(part.source, 0.0) + left
            for limit, amount in part.limits:
                if limit in _MOVE:
                    left = amount
                    continue
                cut = self.cuts.setdefault((limit, part.source), Cut())
                cut.lines += 1
                cut.amount += left - amount
                left = amount

    def _add_order(self, before: Sequence[Session], after: Sequence[Session]) -> None:
        passings = []
        is_told_apart = False
        for one, other in permutations(range(len(after)), 2):
            if not _is_ahead(after[one], after[other]):
                continue
            if _is_ahead(before[other], before[one]):
                passings.append(Passing(after[one], after[other], before[one].total, before[other].total))
            elif not _is_ahead(before[one], before[other]):
                is_told_apart = True
        self.passings += passings
        self.groups_with_passings += bool(passings)
        self.groups_told_apart += is_told_apart


def paid_for(lines: Sequence[Line]) -> tuple[tuple[str, int, float], ...]:
    """What these lines earn, by source: its name, how many lines it pays, and the sum, the largest sum first."""
    sums: dict[str, float] = {}
    counts: Counter[str] = Counter()
    for line in lines:
        for part in line.reward_parts:
            if part.amount:
                sums[part.source] = sums.get(part.source, 0.0) + part.amount
                counts[part.source] += 1
    sources = sorted(sums, key=lambda source: -sums[source])
    return tuple((source, counts[source], sums[source]) for source in sources)


def _sessions(file: str, first: int, group: Sequence[Trajectory], valid: Sequence[int]) -> list[Session]:
    sessions = []
    for index in valid:
        session = whole_session(group[index], group)
        total = math.fsum(line.reward or 0.0 for line in session.lines)
        sessions.append(Session(file, first + index, total))
    return sessions


def _is_ahead(one: Session, other: Session) -> bool:
    return one.total > other.total + _ROUNDING


def _holes(sessions: Sequence[Session], is_right: Sequence[bool]) -> list[tuple[Session, Session]]:
    """Each wrong session that earns more than a right one, with the right one that earns least."""
    right = [session for session, right in zip(sessions, is_right, strict=True) if right]
    wrong = [session for session, right in zip(sessions, is_right, strict=True) if not right]
    if not right:
        return []
    poorest = min(right, key=lambda session: session.total)
    return [(session, poorest) for session in wrong if _is_ahead(session, poorest)]
