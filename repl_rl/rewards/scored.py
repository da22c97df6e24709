"""What scoring gives: a trajectory with its rewards, and the components they are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from repl_rl.trajectory import Trajectory

LineValues = tuple[float, ...]
"""One per line, length L."""


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """A trajectory whose lines carry their rewards, and the components they are made of: name -> value per line."""

    trajectory: Trajectory
    components: dict[str, LineValues]

    @property
    def line_rewards(self) -> LineValues:
        return tuple(line.reward or 0.0 for line in self.trajectory.lines)

    def with_bonus(self, bonus: float) -> ScoredTrajectory:
        """The same with `bonus` added to the last line's reward."""
        if not bonus or not self.trajectory.lines:
            return self
        *head, last = self.trajectory.lines
        paid = replace(last, reward=(last.reward or 0.0) + bonus)
        return replace(self, trajectory=replace(self.trajectory, lines=(*head, paid)))
