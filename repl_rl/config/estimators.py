"""One record per shipped credit estimator: what it reads, what it takes, and how a plan describes it.

The functions are in `repl_rl/credit/`, one file per estimator; configs are checked without loading them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Baseline = Literal["mean", "leave_one_out", "place", "state", "none"]
Scale = Literal["none", "outcome", "floor", "batch", "group"]

LINE_BASELINES: tuple[Baseline, ...] = ("place", "state")
"""Baselines of a line. The others are those of a whole session."""
NEUTRAL_BASELINES: tuple[Baseline, ...] = ("place", "state", "leave_one_out", "none")
"""Baselines of `return_to_go` that do not depend on the trajectory's own lines."""


class Trees(Enum):
    """How an estimator sees a group in which sessions were forked into branches."""

    REFUSED = "refused"
    """It would take branches for sessions that have nothing in common."""
    AS_SESSIONS = "as sessions"
    """It takes each branch for a whole session, its parent's lines before its own."""
    REQUIRED = "required"
    """It compares siblings, so that without trees it has nothing to compare. Its gradient is exact, as long as what
    comes after a line does not decide whether the line is forked."""


class Potentials(Enum):
    """What a potential of the state, as a reward of lines, does to advantages.

    It changes the return from a line by what the session was worth before the line, and a whole session's return not at
    all.
    """

    CANCEL = "cancel"
    """No advantage changes, because whole sessions are compared, or futures from one state."""
    CANCEL_IN_EXPECTATION = "cancel in expectation"
    """Single advantages change, and not their expectation over all that the policy may type. So it pushes if sessions
    are left out by what they typed."""
    PUSH = "push"
    """What the line types changes what is subtracted, or what it is divided by."""


@dataclass(frozen=True)
class EstimatorRecord:
    """What configs, plans and docs need to know of a shipped estimator."""

    description: str
    """A line's advantage, in words. `{baseline}` and `{omega}` stand for these settings."""
    settings: tuple[str, ...]
    """The keys of the section `credit` that it reads. Setting another key is an error, and keys that are not read are
    not written out."""
    potentials: Potentials
    baselines: tuple[Baseline, ...] = ()
    """Those that it takes, where it reads `baseline`."""
    default_baseline: Baseline = "mean"
    trees: Trees = Trees.REFUSED
    compares_states: bool = False
    """Whether it needs to know of each line in which state of the interpreter it began."""
    takes_negative_returns: bool = True


_SESSION_BASELINES: tuple[Baseline, ...] = ("mean", "leave_one_out", "none")

ESTIMATOR_RECORDS: dict[str, EstimatorRecord] = {
    "outcome": EstimatorRecord(
        description="a session's return, less {baseline}",
        settings=("baseline", "scale", "clip"),
        potentials=Potentials.CANCEL,
        baselines=_SESSION_BASELINES,
        trees=Trees.AS_SESSIONS,
    ),
    "dr_grpo": EstimatorRecord(
        description="a session's return, less the group's mean",
        settings=("clip",),
        potentials=Potentials.CANCEL,
    ),
    "rloo": EstimatorRecord(
        description="a session's return, less the mean of the others",
        settings=("clip",),
        potentials=Potentials.CANCEL,
    ),
    "maxrl": EstimatorRecord(
        description="a session's return, less the group's mean, as a share of that mean or of one right answer's",
        settings=("clip",),
        potentials=Potentials.CANCEL,
        takes_negative_returns=False,
    ),
    "reinforce++": EstimatorRecord(
        description="a session's return, less {baseline}, standardised over the batch",
        settings=("baseline", "clip"),
        potentials=Potentials.CANCEL,
        baselines=("mean", "none"),
    ),
    "return_to_go": EstimatorRecord(
        description="a line's reward and all later ones, less {baseline}",
        settings=("gamma", "baseline", "scale", "clip"),
        potentials=Potentials.CANCEL_IN_EXPECTATION,
        baselines=(*_SESSION_BASELINES, *LINE_BASELINES),
        default_baseline="place",
    ),
    "turn": EstimatorRecord(
        description="a line's reward and later ones, each compared with those of the same line number",
        settings=("gamma", "scale", "clip"),
        potentials=Potentials.PUSH,
    ),
    "gigpo": EstimatorRecord(
        description="a session's return, less the group's mean, and {omega:g} times a line's, less that of lines in "
        "equal states",
        settings=("gamma", "scale", "omega", "clip"),
        potentials=Potentials.PUSH,
        trees=Trees.AS_SESSIONS,
        compares_states=True,
    ),
    "critic": EstimatorRecord(
        description="temporal differences against a value of the interpreter's state",
        settings=("gamma", "lam", "decay", "clip"),
        potentials=Potentials.CANCEL_IN_EXPECTATION,
    ),
    "branch": EstimatorRecord(
        description="what a segment came to, less the mean of its siblings",
        settings=("clip",),
        potentials=Potentials.CANCEL,
        trees=Trees.REQUIRED,
    ),
}
