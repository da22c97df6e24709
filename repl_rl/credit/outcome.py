"""GRPO: every token of a trajectory gets the trajectory's standardised return.

    R_i = sum_l r_{i,l}        A_{i,t} = (R_i - mean_j R_j) / (std_j R_j + 1e-4)

Shao et al. 2024, DeepSeekMath, equation 3 and section 4.1.2. With `scale: false` the division is left out
(Liu et al. 2025, Dr. GRPO).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from repl_rl.config import CreditConfig
from repl_rl.credit.normalize import standardize


def outcome(rewards: Sequence[Sequence[float]], config: CreditConfig) -> list[list[float]]:
    """Per-line advantages from per-line rewards of one group."""
    returns = [math.fsum(values) for values in rewards]
    standardized = standardize(returns, config.scale)
    return [[advantage] * len(values) for advantage, values in zip(standardized, rewards, strict=True)]
