"""Groups of made-up trajectories, and what hypothesis draws them from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from repl_rl.config import CreditConfig
from repl_rl.config.estimators import ESTIMATOR_RECORDS
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory

Rewards = list[list[float]]
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Typed:
    """A line: its length, what it earned, and the state it left: a name, UNKNOWN, or None where it ran nothing."""

    tokens: int = 1
    reward: float = 0.0
    left: str | None = None


def trajectory(*lengths: int, stop_reason: StopReason = StopReason.EOS) -> Trajectory:
    """Lines of `lengths` tokens, two output tokens between each."""
    return of_lines([Typed(length) for length in lengths], stop_reason)


def of_lines(typed: Sequence[Typed], stop_reason: StopReason = StopReason.EOS) -> Trajectory:
    mask: list[bool] = []
    lines = []
    for one in typed:
        mask += [False] * (2 if mask else 0)
        kind = LineKind.COMMENT if one.left is None else LineKind.STATEMENT
        fingerprint = None if one.left == UNKNOWN else one.left
        lines.append(Line(len(mask), len(mask) + one.tokens, "x\n", kind, fingerprint=fingerprint))
        mask += [True] * one.tokens
    ids = tuple(range(len(mask)))
    return Trajectory("t", ">>>", (0,), ids, tuple(mask), (0.0,) * len(ids), stop_reason, tuple(lines))


def rewards_of(typed: Sequence[Sequence[Typed]]) -> Rewards:
    return [[one.reward for one in of_one] for of_one in typed]


def payable(batch: list[list[list[Typed]]], credit: CreditConfig) -> list[list[list[Typed]]]:
    """The batch, with rewards that the estimator takes: for `maxrl` none below 0."""
    if credit.estimator != "maxrl":
        return batch
    return [[[replace(line, reward=abs(line.reward)) for line in typed] for typed in group] for group in batch]


def config(estimator: str, **values: Any) -> CreditConfig:
    return CreditConfig(estimator=estimator, **values)


@st.composite
def configs(draw: st.DrawFn, estimator: str | None = None) -> CreditConfig:
    name = draw(st.sampled_from(sorted(ESTIMATOR_RECORDS))) if estimator is None else estimator
    baselines = ["mean", "none"]
    if name != "reinforce++":
        baselines.append("leave_one_out")
    if name == "return_to_go":
        baselines += ["place", "state"]
    values: dict[str, Any] = {
        "gamma": draw(st.floats(0.01, 1.0)),
        "baseline": draw(st.sampled_from(baselines)),
        "scale": draw(st.sampled_from(["none", "outcome", "floor", "batch", "group"])),
        "omega": draw(st.floats(0.0, 2.0)),
        "lam": draw(st.floats(0.0, 1.0)),
        "decay": draw(st.floats(0.0, 0.99)),
        "clip": draw(st.none() | st.floats(0.1, 2.0)),
    }
    used = {key: value for key, value in values.items() if key in ESTIMATOR_RECORDS[name].settings}
    if used.get("baseline") == "none" and used.get("scale") == "group":
        used["scale"] = "none"
    return config(name, **used)


LINES = st.builds(
    Typed,
    tokens=st.integers(1, 4),
    reward=st.sampled_from([0.0, 1.0, -0.1]) | st.floats(-10, 10),
    left=st.sampled_from([None, "a", "b", UNKNOWN]),
)
GROUPS = st.lists(st.lists(LINES, min_size=1, max_size=5), min_size=1, max_size=6)
BATCHES = st.lists(GROUPS, min_size=1, max_size=4)
