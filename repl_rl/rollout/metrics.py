"""What a batch of scored trajectories says about the policy, as names and numbers for the trainer's logs. Pure.

Metrics are computed from what is counted of each session (`SessionNumbers`), and do not depend on the sessions' order.
Trainer processes send each other these numbers, and none of the sessions: so they log what one process would, to the
bit.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

import numpy as np

from repl_rl.errors import KernelError
from repl_rl.trajectory import LineKind, StopReason, Task, ToolCall, Trajectory

_MOST_ERRORS = 20


@dataclass(frozen=True, slots=True)
class SessionNumbers:
    """What metrics count of a session: numbers and names, and none of its tokens, texts and outputs.

    Times of lines and calls stand here one by one: a sum of rounded sums is another float.
    """

    stop_reason: StopReason
    is_void: bool
    is_right: bool
    sampled_tokens: int
    unread_calls: int
    compactions: int
    branched_by: str | None
    """`by` of its branch; None for a root, and where nothing was forked."""
    engine_s: float
    kernel_s: float
    queue_s: float
    own_s: float
    kinds: tuple[LineKind, ...]
    """Of all lines."""
    error_names: tuple[str, ...]
    """Of the lines that have one."""
    durations_s: tuple[float, ...]
    """Of the lines that ran."""
    calls: tuple[ToolCall, ...]
    """Of all lines."""
    subcall_durations_s: tuple[float, ...]
    """Of all sub-calls."""
    subcall_batches: int
    """How many times it asked a language model, one question or several together."""
    subcall_prompt_tokens: int
    subcall_tokens: int
    subcalls_refused: int

    @classmethod
    def of(cls, trajectory: Trajectory) -> Self:
        lines = trajectory.lines
        subcalls = [call for line in lines for call in line.subcalls]
        return cls(
            stop_reason=trajectory.stop_reason,
            is_void=trajectory.is_void,
            is_right=(trajectory.outcome_reward or 0.0) > 0,
            sampled_tokens=trajectory.sampled_tokens,
            unread_calls=trajectory.unread_calls,
            compactions=len(trajectory.compactions),
            branched_by=None if trajectory.branch is None else trajectory.branch.by,
            engine_s=trajectory.engine_s,
            kernel_s=trajectory.kernel_s,
            queue_s=trajectory.queue_s,
            own_s=trajectory.own_s,
            kinds=tuple(line.kind for line in lines),
            error_names=tuple(line.error_name for line in lines if line.error_name),
            durations_s=tuple(line.duration_s for line in lines if line.kind.ran),
            calls=tuple(call for line in lines for call in line.calls),
            subcall_durations_s=tuple(call.duration_s for call in subcalls),
            subcall_batches=len({call.batch for call in subcalls}),
            subcall_prompt_tokens=sum(call.prompt_tokens for call in subcalls),
            subcall_tokens=sum(call.tokens for call in subcalls),
            subcalls_refused=sum(call.error_name is not None for call in subcalls),
        )


def batch_metrics(trajectories: Sequence[Trajectory], seconds: float) -> dict[str, float]:
    """Means over a batch that took `seconds` to roll out. Shares are of all lines; stops are shares of trajectories.

    Void trajectories (aborted, unfinished or empty) count only in `stops/*`. `time/*_s` is the average time per
    trajectory, queue included, so the four add up to the mean duration. Where sessions were forked, `branches/fork`,
    `branches/replay` and `branches/anew` are the shares of all branches that began so (`repl_rl.trajectory.Branch`).
    `unread_calls` are those per trajectory that the dialect answered without running anything. Where sessions asked a
    language model, `subcalls/*` say how much. `errors/*` names the 20 most frequent exceptions.
    """
    return metrics_of([SessionNumbers.of(trajectory) for trajectory in trajectories], seconds)


def metrics_of(sessions: Sequence[SessionNumbers], seconds: float) -> dict[str, float]:
    """`batch_metrics` of the trajectories that these numbers are of."""
    stops = Counter(session.stop_reason for session in sessions)
    values = {f"stops/{reason}": count / len(sessions) for reason, count in stops.items()}
    valid = [session for session in sessions if not session.is_void]
    if not valid:
        return values
    kinds = Counter(kind for session in valid for kind in session.kinds)
    lines = kinds.total()
    errors = Counter(sorted(name for session in valid for name in session.error_names))
    values |= {f"kinds/{kind}": kinds[kind] / lines for kind in LineKind}
    # sessions make up exceptions, too; of those that are as frequent, the first by name are shown
    frequent = dict(errors.most_common(_MOST_ERRORS))
    rare = errors.total() - sum(frequent.values())
    if rare:
        frequent["other"] = frequent.get("other", 0) + rare  # a session's own exception may have that name
    values |= {f"errors/{name}": count / lines for name, count in sorted(frequent.items())}
    values["error_rate"] = errors.total() / lines
    times_ms = [duration_s * 1000 for session in valid for duration_s in session.durations_s]
    if times_ms:
        values |= {f"kernel_ms_p{percent}": float(np.percentile(times_ms, percent)) for percent in (50, 99)}
    for name in ("engine_s", "kernel_s", "queue_s", "own_s"):
        values[f"time/{name}"] = fmean(getattr(session, name) for session in valid)
    branches = [session.branched_by for session in valid if session.branched_by is not None]
    if branches:
        values |= {f"branches/{by}": branches.count(by) / len(branches) for by in ("fork", "replay", "anew")}
    if any(session.compactions for session in valid):
        values["compactions_per_trajectory"] = fmean(session.compactions for session in valid)
    values |= _subcall_metrics(valid)
    sampled = sum(session.sampled_tokens for session in valid)
    return {
        **values,
        "solve_rate": fmean(session.is_right for session in valid),
        "unread_calls": fmean(session.unread_calls for session in valid),
        "lines_per_trajectory": lines / len(valid),
        "tokens_per_trajectory": sampled / len(valid),
        "tokens_per_s": sampled / seconds,
    }


def _subcall_metrics(sessions: Sequence[SessionNumbers]) -> dict[str, float]:
    """Per trajectory, if any asked a language model something; `batch` is how many questions were asked together."""
    durations_s = [duration_s for session in sessions for duration_s in session.subcall_durations_s]
    calls = len(durations_s)
    if not calls:
        return {}
    return {
        "subcalls/calls": calls / len(sessions),
        "subcalls/batch": calls / sum(session.subcall_batches for session in sessions),
        "subcalls/prompt_tokens": sum(session.subcall_prompt_tokens for session in sessions) / len(sessions),
        "subcalls/tokens": sum(session.subcall_tokens for session in sessions) / len(sessions),
        "subcalls/seconds": fmean(durations_s),
        "subcalls/refused": sum(session.subcalls_refused for session in sessions) / calls,
    }


def is_solved(trajectory: Trajectory) -> bool | None:
    """Whether a trajectory was graded right; None if it was lost, so that no solve rate counts it."""
    if trajectory.is_lost:
        return None
    return (trajectory.outcome_reward or 0.0) > 0


def solve_rates(tasks: Sequence[Task], trajectories: Sequence[Trajectory]) -> tuple[float, dict[str, float]]:
    """The share of trajectories graded right, overall and per family, of those that were not lost.

    Raises KernelError if all of them were.
    """
    return rates_of(tasks, [is_solved(trajectory) for trajectory in trajectories])


def rates_of(tasks: Sequence[Task], solved: Sequence[bool | None]) -> tuple[float, dict[str, float]]:
    """`solve_rates` of the trajectories of which `is_solved` says this."""
    by_family: dict[str, list[bool]] = {}
    for task, is_right in zip(tasks, solved, strict=True):
        if is_right is not None:
            by_family.setdefault(task.family, []).append(is_right)
    all_grades = [is_right for grades in by_family.values() for is_right in grades]
    if not all_grades:
        raise KernelError(f"not one of {len(solved)} trajectories was ended by its policy; see their errors")
    rates = {family: fmean(grades) for family, grades in sorted(by_family.items())}
    return fmean(all_grades), rates
