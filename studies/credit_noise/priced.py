"""`python -m studies.credit_noise.priced`: where lines are paid, what is credit per line worth?

    python -m studies.credit_noise.priced --folder noise/step10

Sessions and inner products of their lines' gradients do not depend on what is paid, so the recorded ones serve for
every table of rewards, without a model. Credit per line (`return_to_go`) is compared with credit per session (`rloo`,
each line gets all that its session earned), and the gradient with that of the outcome alone. The protocol, and what
came out, is in README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from repl_rl.config import CreditConfig
from repl_rl.utils.machine import machine
from studies.common.command import main
from studies.credit_noise import statistics
from studies.credit_noise.sessions import sessions_of
from studies.credit_noise.settings import EXPLORED, NoiseSettings
from studies.credit_noise.settings import QUICK as QUICK_NOISE
from studies.credit_noise.statistics import Array
from studies.credit_noise.study import FLAGS, compared, explored, recorded

__all__ = ["DEFAULT", "FLAGS", "QUICK", "measure", "table"]

DEFAULT = NoiseSettings()
QUICK = QUICK_NOISE
ARMS = {
    "none": ("none", ""),
    "gentle": ("gentle", ""),
    "strict": ("strict", ""),
    "strict, as a potential": ("strict", "rewards.shaping.mode=potential"),
}
"""The preset and further settings of what is paid besides the outcome."""
CREDIT = {
    "per session": CreditConfig(estimator="rloo"),
    "per line": CreditConfig(),
    "per line, by state": EXPLORED["shrunk by session"],
    "turn": CreditConfig(estimator="turn"),
    "gigpo": EXPLORED["gigpo"],
}
"""The first is what the others are compared with."""
_RESAMPLED = 4000


def measure(settings: NoiseSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """The content of the JSON file. Raises what `study.recorded` does where the folder lacks gradients."""
    _, stored = recorded(replace(settings, rewards="none"), say)
    products = [each["lines"] for each in stored]
    estimators: dict[tuple[str, str], CreditConfig] = {}
    rewarded = []
    for arm, (preset, more) in ARMS.items():
        of_arm = replace(settings, rewards=preset, settings=f"{settings.settings} {more}".strip())
        rewarded.append(sessions_of(of_arm, say))
        estimators |= {(arm, name): config for name, config in CREDIT.items()}
    found = explored(rewarded, products, list(CREDIT.values()))
    outcome = list(estimators).index(("none", "per session"))
    rows = []
    for at, (arm, name) in enumerate(estimators):
        beside = list(estimators).index((arm, "per session"))
        named = {"arm": arm, "credit": name, "cosine": _cosine(found, at, outcome)}
        rows.append(named | compared(found, at, beside))
    return {"problems": len(found), "rows": rows} | machine(("repl-rl",))


def _cosine(products: Array, at: int, outcome: int) -> tuple[float, float, float]:
    """Between the expected gradients of two estimators, with an interval over problems: from products of different
    groups, in which the noise of the two does not meet."""
    signals = [statistics.signal(products, *pair) for pair in ((at, outcome), (at, at), (outcome, outcome))]
    drawn = np.random.default_rng(0).integers(len(products), size=(_RESAMPLED, len(products)))

    def of(taken: Array) -> Array:
        shared, own, other = (each[taken].mean(axis=-1) for each in signals)
        return np.asarray(shared / np.sqrt(np.maximum(own * other, 1e-300)))

    low, high = np.quantile(of(drawn), (0.025, 0.975))
    return float(of(np.arange(len(products)))), float(low), float(high)


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(box=SIMPLE_HEAD, title=f"{report['problems']} problems: over credit per session, last down_proj")
    figures = ("size", "noise", "noise_at_equal_signal", "cosine")
    for column in ("paid", "credit", *(name.replace("_", " ") for name in figures), "least"):
        shown.add_column(column)
    for row in report["rows"]:
        values = ("{:.2f} ({:.2f}, {:.2f})".format(*row[name]) for name in figures)
        shown.add_row(row["arm"], row["credit"], *values, f"{row['smallest_effect']:.0%}")
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__], "studies.credit_noise.priced"))
