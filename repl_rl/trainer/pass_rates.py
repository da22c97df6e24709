"""Which problems a step draws by how often they were solved (`tasks.sampling: pass_rate`).

A group teaches by the difference of its outcomes, which is largest where half of them are right. Problems whose rate
lies between a tenth and nine tenths are drawn most, and those never seen half as often; those below rest, those above
are retired, and both are looked at again now and then. A rate is a running mean, in which a problem's newest group
counts as much as all before. That follows a policy that learns, and is a rough estimate: a group of 8 without a right
answer lets a problem rest that is solved a fifth of the time, and its rate is corrected only when it is drawn again. So
what is drawn often is narrower than the band: docs/algorithms.md has figures. After the prioritised sampling of Kimi
k1.5 (Kimi Team 2025), which draws in proportion to 1 - rate, and online difficulty filtering (Bae et al. 2025).
"""

from collections.abc import Iterable, Sequence
from random import Random

from repl_rl.rewards import ScoredTrajectory

LOW, HIGH = 0.1, 0.9
_BETWEEN, _UNSEEN, _REST, _RETIRED = 1.0, 0.5, 0.1, 0.05
_NEWEST = 0.5


class PassRates:
    """The solve rate of each problem that has been drawn, by its id."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}

    def draw(self, ids: Sequence[str], count: int, random: Random) -> list[int]:
        """Places of `count` problems of `ids`, no two the same while there are enough. Equal states and equal random
        numbers draw the same."""
        # Efraimidis and Spirakis 2006: the largest u^(1/w) are a weighted sample without replacement
        keys = []
        for place, id in enumerate(ids):
            weight = self._weight(self.rates.get(id))
            keys.append((random.random() ** (1 / weight), place))
        order = [place for _, place in sorted(keys, reverse=True)]
        return [order[index % len(order)] for index in range(count)]

    def learn(self, outcomes: Iterable[tuple[str, float] | None]) -> None:
        """Take in problems' ids and the shares of their newest groups that were right."""
        for id, share in filter(None, outcomes):
            before = self.rates.get(id)
            self.rates[id] = share if before is None else before + _NEWEST * (share - before)

    def numbers(self, count: int) -> dict[str, float]:
        """For the log: the shares of `count` problems that are in between, resting and retired, and never seen."""
        rates = list(self.rates.values())
        between = sum(LOW <= rate <= HIGH for rate in rates)
        rest = sum(rate < LOW for rate in rates)
        retired = len(rates) - between - rest
        unseen = count - len(rates)
        return {
            "tasks/between": between / count,
            "tasks/resting": rest / count,
            "tasks/retired": retired / count,
            "tasks/unseen": unseen / count,
        }

    @staticmethod
    def _weight(rate: float | None) -> float:
        if rate is None:
            return _UNSEEN
        if rate < LOW:
            return _REST
        if rate > HIGH:
            return _RETIRED
        return _BETWEEN


def right_share(group: Sequence[ScoredTrajectory]) -> tuple[str, float] | None:
    """A group's task and the share of its sessions that were right, void ones aside; None if there are no others."""
    trajectories = [item.trajectory for item in group]
    right = [(trajectory.outcome_reward or 0.0) > 0 for trajectory in trajectories if not trajectory.is_void]
    if not right:
        return None
    return trajectories[0].task_id, sum(right) / len(right)
