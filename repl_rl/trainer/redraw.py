"""Dynamic sampling: a group without variance teaches nothing, and is rolled out anew with another task.

Yu et al. 2025, DAPO, section 3.2. Departures: DAPO draws until its batch is full, here the number of rounds is bounded
and the last draw stays. Variance is that of the line advantages, not of the accuracy alone.

Not covered: TRL's `reward_funcs` are asked when the batch is complete, so a group that only they tell apart counts as
one without variance. Give such rewards as `line_rewards`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from random import Random
from typing import Any

from repl_rl.config import CreditConfig
from repl_rl.credit import is_without_variance
from repl_rl.errors import KernelError
from repl_rl.rewards import ScoredTrajectory
from repl_rl.trainer.rows import task_of
from repl_rl.trajectory import Task

Row = dict[str, Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """A process's share of a step: rows of the data set and what became of each, in groups one after another."""

    rows: list[Row]
    scored: list[ScoredTrajectory]
    group_size: int

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.scored) or len(self.rows) % self.group_size:
            raise ValueError(
                f"{len(self.rows)} rows and {len(self.scored)} trajectories, in groups of {self.group_size}: the two "
                "have to be of one length, and the groups whole"
            )

    def without_variance(self, config: CreditConfig) -> list[range]:
        """The groups that teach nothing, as indices."""
        starts = range(0, len(self.rows), self.group_size)
        groups = [range(start, start + self.group_size) for start in starts]
        return [group for group in groups if self._is_idle(group, config)]

    def _is_idle(self, group: range, config: CreditConfig) -> bool:
        scored = [self.scored[index] for index in group]
        return is_without_variance([item.trajectory for item in scored], [item.line_rewards for item in scored], config)


def redraw(
    batch: Batch,
    further: Iterator[Row],
    roll_out: Callable[[Sequence[Task]], Sequence[ScoredTrajectory]],
    config: CreditConfig,
    rounds: int,
) -> int:
    """Put further tasks and their rollouts in the place of groups without variance, at most `rounds` times.

    Where not one of these can run, the groups that there are stay.

    `batch` is changed in place. Returns how many groups were rolled out anew, those that were so twice counted twice.
    """
    count = 0
    for _ in range(rounds):
        groups = batch.without_variance(config)
        if not groups:
            break
        rows = {index: dict(row) for group, row in zip(groups, further, strict=False) for index in group}
        try:
            scored = roll_out([task_of(row) for row in rows.values()])
        except KernelError as error:
            logger.warning("%d groups without variance stay as they are: %s", len(groups), error)
            break
        for (index, row), item in zip(rows.items(), scored, strict=True):
            batch.rows[index], batch.scored[index] = row, item
        count += len(groups)
    return count


def further_rows(rows: Any, taken: Collection[str], seed: int, step: int) -> Iterator[Row]:
    """Rows of a data set in an order that seed and step decide, without end.

    First each whose task id is not `taken`, then all of them again and again.
    """
    order = list(range(len(rows)))
    Random(f"{seed}/redraw/{step}").shuffle(order)
    others = (row for row in map(rows.__getitem__, order) if task_of(row).id not in taken)
    return chain(others, map(rows.__getitem__, cycle(order)))
