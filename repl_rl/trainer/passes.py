"""Which rows of a batch go through the model together, where a pass is bounded by its tokens (`micro_batch_tokens`).

B rows. Tokens are counted as `repl_rl.trainer.packed` computes them: what a row has in common with one before it in its
pass counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from repl_rl.trainer.packed import shared_by


def divide(
    rows: Sequence[np.ndarray], most: int, *, shares: bool, agreed: Callable[[int], int] = int
) -> list[list[int]]:
    """The indices of the rows of each pass, in the order in which they are packed; `rows` are their token ids.

    No pass has more than `most` tokens, but that of a single row that has. There are as few as first-fit decreasing
    finds, where a row joins the pass that shares most with it, and the largest is as small as it gets with that many.
    Rows without tokens are in none. `agreed` makes of our number of passes that of all processes; some may be empty.
    """
    lengths = np.array([len(row) for row in rows])
    common = shared_by(rows) if shares else np.zeros((len(rows), len(rows)))
    order = [int(row) for row in np.argsort(-lengths, kind="stable") if lengths[row]]

    def within(room: int) -> list[list[int]]:
        passes: list[list[int]] = [[] for _ in order]
        tokens, shared = np.zeros(len(order)), np.zeros((len(order), len(rows)))
        for row in order:
            added = lengths[row] - shared[:, row]
            fits = (tokens + added <= room) | (tokens == 0)
            at = int(np.where(fits, added, np.inf).argmin())
            passes[at].append(row)
            tokens[at] += added[at]
            shared[at] = np.maximum(shared[at], common[row])
        return [each for each in passes if each]

    count = max(1, agreed(len(within(most))))
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if len(within(middle)) <= count else (middle, high)
    passes = within(high)
    return passes + [[]] * (count - len(passes))
