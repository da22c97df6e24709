"""What a batch of scored trajectories says about the policy, as names and numbers for the trainer's logs. Pure."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from repl_rl.errors import KernelError
from repl_rl.trajectory import LineKind, Task, Trajectory

_MOST_ERRORS = 20


def batch_metrics(trajectories: Sequence[Trajectory], seconds: float) -> dict[str, float]:
    """Means over a batch that took `seconds` to roll out. Shares are of all lines; stops are shares of trajectories.

    Void trajectories (aborted, unfinished or empty) count only in `stops/*`. `time/*_s` is the average time per
    trajectory, queue included, so the four add up to the mean duration. Where sessions were forked, `branches/fork`,
    `branches/replay` and `branches/anew` are the shares of all branches that began so (`repl_rl.trajectory.Branch`).
    `unread_calls` are those per trajectory that the dialect answered without running anything. Where sessions asked a
    language model, `subcalls/*` say how much. `errors/*` names the 20 most frequent exceptions.
    """
    stops = Counter(trajectory.stop_reason for trajectory in trajectories)
    values = {f"stops/{reason}": count / len(trajectories) for reason, count in stops.items()}
    valid = [trajectory for trajectory in trajectories if not trajectory.is_void]
    if not valid:
        return values
    lines = [line for trajectory in valid for line in trajectory.lines]
    kinds = Counter(line.kind for line in lines)
    errors = Counter(line.error_name for line in lines if line.error_name)
    values |= {f"kinds/{kind}": kinds[kind] / len(lines) for kind in LineKind}
    frequent = dict(errors.most_common(_MOST_ERRORS))  # sessions make up exceptions, too
    rare = errors.total() - sum(frequent.values())
    if rare:
        frequent["other"] = frequent.get("other", 0) + rare  # a session's own exception may have that name
    values |= {f"errors/{name}": count / len(lines) for name, count in sorted(frequent.items())}
    values["error_rate"] = sum(errors.values()) / len(lines)
    times_ms = [line.duration_s * 1000 for line in lines if line.kind.ran]
    if times_ms:
        values |= {f"kernel_ms_p{percent}": float(np.percentile(times_ms, percent)) for percent in (50, 99)}
    for name in ("engine_s", "kernel_s", "queue_s", "own_s"):
        values[f"time/{name}"] = fmean(getattr(trajectory, name) for trajectory in valid)
    branches = [trajectory.branch.by for trajectory in valid if trajectory.branch is not None]
    if branches:
        values |= {f"branches/{by}": branches.count(by) / len(branches) for by in ("fork", "replay", "anew")}
    if any(trajectory.compactions for trajectory in valid):
        values["compactions_per_trajectory"] = fmean(len(trajectory.compactions) for trajectory in valid)
    values |= _subcall_metrics(valid)
    sampled = sum(trajectory.sampled_tokens for trajectory in valid)
    return {
        **values,
        "solve_rate": fmean(float((trajectory.outcome_reward or 0.0) > 0) for trajectory in valid),
        "unread_calls": fmean(trajectory.unread_calls for trajectory in valid),
        "lines_per_trajectory": len(lines) / len(valid),
        "tokens_per_trajectory": sampled / len(valid),
        "tokens_per_s": sampled / seconds,
    }


def _subcall_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Per trajectory, if any asked a language model something; `batch` is how many questions were asked together."""
    calls = []
    batches = 0
    for trajectory in trajectories:
        calls_of_trajectory = [call for line in trajectory.lines for call in line.subcalls]
        calls += calls_of_trajectory
        batches += len({call.batch for call in calls_of_trajectory})
    if not calls:
        return {}
    return {
        "subcalls/calls": len(calls) / len(trajectories),
        "subcalls/batch": len(calls) / batches,
        "subcalls/prompt_tokens": sum(call.prompt_tokens for call in calls) / len(trajectories),
        "subcalls/tokens": sum(call.tokens for call in calls) / len(trajectories),
        "subcalls/seconds": fmean(call.duration_s for call in calls),
        "subcalls/refused": fmean(float(call.error_name is not None) for call in calls),
    }


def solve_rates(tasks: Sequence[Task], trajectories: Sequence[Trajectory]) -> tuple[float, dict[str, float]]:
    """The share of trajectories graded right, overall and per family, of those that were not lost.

    Raises KernelError if all of them were.
    """
    by_family: dict[str, list[float]] = {}
    for task, trajectory in zip(tasks, trajectories, strict=True):
        if not trajectory.is_lost:
            is_right = (trajectory.outcome_reward or 0.0) > 0
            by_family.setdefault(task.family, []).append(float(is_right))
    all_grades = [grade for grades in by_family.values() for grade in grades]
    if not all_grades:
        raise KernelError(f"not one of {len(trajectories)} trajectories was ended by its policy; see their errors")
    rates = {family: fmean(grades) for family, grades in sorted(by_family.items())}
    return fmean(all_grades), rates
