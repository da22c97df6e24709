"""Dynamic sampling: a group without variance teaches nothing, so it is replaced by a rollout of another task.

Yu et al. 2025, DAPO, section 3.2. Differences: DAPO draws until its batch is full; here the number of rounds is bounded
and the last draw stays. A group has variance if its outcomes differ, as in the paper; what its lines earn besides does
not count, unless nothing is paid for outcomes.

Not covered: TRL's `reward_funcs` are called when the batch is complete, so a group that differs only in their rewards
counts as one without variance. Give such rewards as `line_rewards`.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import cycle
from random import Random
from typing import Any

from repl_rl.config import CreditConfig
from repl_rl.errors import KernelError
from repl_rl.rewards import ScoredTrajectory
from repl_rl.rollout import is_flat
from repl_rl.trainer.rows import task_of
from repl_rl.trajectory import Task
from repl_rl.utils.distributed import any_of_all

Row = dict[str, Any]

logger = logging.getLogger(__name__)


def redraw(
    rows: list[Row],
    scored: list[ScoredTrajectory],
    group_size: int,
    further: Iterator[Row],
    roll_out: Callable[[Sequence[Task]], Sequence[ScoredTrajectory]],
    config: CreditConfig,
    rounds: int,
) -> int:
    """Replace groups without variance by further tasks and their rollouts, at most `rounds` times.

    `rows` of the data set and the `scored` rollout of each, group after group, are changed in place. If the rollouts of
    a round fail with a KernelError, the remaining groups stay as they are. Returns how many groups were replaced; one
    that was replaced twice counts twice. All processes call this, and `roll_out`, together.
    """
    count = 0
    has_failed = False
    for _ in range(rounds):
        flat_starts = []
        if not has_failed:
            for start in range(0, len(rows), group_size):
                if is_flat(scored[start : start + group_size], config):
                    flat_starts.append(start)
        # A process without such groups, or whose rollouts have failed, calls `roll_out` with the others all the same.
        if not any_of_all(bool(flat_starts)):
            break
        new_rows = []
        for _, row in zip(flat_starts, further, strict=False):
            new_rows += [dict(row) for _ in range(group_size)]
        try:
            new_scored = roll_out([task_of(row) for row in new_rows])
        except KernelError as error:
            logger.warning("%d groups without variance stay as they are: %s", len(flat_starts), error)
            has_failed = True
            continue
        for number, start in enumerate(flat_starts):
            old = slice(start, start + group_size)
            new = slice(number * group_size, (number + 1) * group_size)
            rows[old] = new_rows[new]
            scored[old] = new_scored[new]
        count += len(flat_starts)
    return count


def further_rows(rows: Any, taken: Collection[str], seed: int, step: int) -> Iterator[Row]:
    """An endless sequence of a data set's rows, in an order given by seed and step.

    Rows whose task id is not in `taken` come first, then all rows again and again.
    """
    order = list(range(len(rows)))
    Random(f"{seed}/redraw/{step}").shuffle(order)
    for index in order:
        row = rows[index]
        if task_of(row).id not in taken:
            yield row
    for index in cycle(order):
        yield rows[index]
