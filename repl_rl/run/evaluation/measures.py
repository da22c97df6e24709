"""Pure: what a set of graded trajectories says about the policy, problem by problem.

Aborted trajectories, where the machinery failed, are counted and left out of everything else: they are no failures of
the policy. So a problem may have fewer samples than were asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from repl_rl.run.evaluation.statistics import Estimate, Tally, estimate_pass_at_k
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory

ERRORS = frozenset({LineKind.EXCEPTION, LineKind.SYNTAX_ERROR, LineKind.TIMEOUT})
"""Lines that went wrong and left an interpreter to go on in. Behind `killed` and `overlong` nothing comes."""
_WITHOUT_ERROR = frozenset({LineKind.STATEMENT, LineKind.EXPRESSION, LineKind.ANSWER})
_RAN = ERRORS | _WITHOUT_ERROR
_NOT_GRADED = frozenset({StopReason.ABORTED, StopReason.UNFINISHED})

Samples = Sequence[Trajectory]
"""The trajectories of one problem."""


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        """None where there was nothing to count."""
        return self.count / self.of if self.of else None


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy on a set of problems. Means are over graded trajectories, None where there is none."""

    problems: int
    graded: int
    """Trajectories that count."""
    aborted: int
    """Trajectories that don't, because the machinery failed."""
    pass_at: dict[int, Estimate | None]
    """By k; None where no problem has k graded samples."""
    lines: float | None
    """Per trajectory, blank ones and comments included."""
    tokens: float | None
    """Sampled per trajectory; the interpreter's don't count."""
    seconds: float | None
    """Per trajectory, waiting for its turn left out. Others run beside it, so these don't add up to wall time."""
    stops: dict[str, float]
    """Shares of the reasons why trajectories ended."""
    repaired_trajectories: Share
    """Of the trajectories with an error line or more, those whose answer was right."""
    repaired_lines: Share
    """Of the error lines, those behind which the next line that ran did so without error."""


def summarize(problems: Sequence[Samples], ks: Sequence[int]) -> Summary:
    """The figures of these problems, each with its samples."""
    everything = [one for samples in problems for one in samples]
    graded = [one for one in everything if is_graded(one)]
    tallies = [tally(samples) for samples in problems]
    return Summary(
        problems=len(problems),
        graded=len(graded),
        aborted=len(everything) - len(graded),
        pass_at={k: estimate_pass_at_k(tallies, k) for k in ks},
        lines=_mean(graded, lambda one: len(one.lines)),
        tokens=_mean(graded, lambda one: one.sampled_tokens),
        seconds=_mean(graded, lambda one: one.duration_s - one.queue_s),
        stops=_shares(str(one.stop_reason) for one in graded),
        repaired_trajectories=repaired_trajectories(graded),
        repaired_lines=repaired_lines(graded),
    )


def tally(samples: Samples) -> Tally:
    """Graded and right samples of one problem."""
    graded = [one for one in samples if is_graded(one)]
    return Tally(len(graded), sum(map(is_right, graded)))


def is_graded(trajectory: Trajectory) -> bool:
    """Whether it ended by what the policy did, and so counts."""
    return trajectory.stop_reason not in _NOT_GRADED


def is_right(trajectory: Trajectory) -> bool:
    """Whether its answer was graded above zero."""
    return (trajectory.outcome_reward or 0.0) > 0


def repaired_trajectories(trajectories: Iterable[Trajectory]) -> Share:
    """Of the trajectories in which a line raised, did not parse or timed out, those whose answer was right."""
    erring = [one for one in trajectories if any(line.kind in ERRORS for line in one.lines)]
    return Share(sum(map(is_right, erring)), len(erring))


def repaired_lines(trajectories: Iterable[Trajectory]) -> Share:
    """Of all error lines, those behind which the next line that ran did so without error.

    Comments, blank lines and the opening lines of a block run nothing and are passed over. An error behind which
    nothing ran any more is not repaired; in a row of errors, only the last one can be.
    """
    shares = [_repaired_in(one.lines) for one in trajectories]
    return Share(sum(share.count for share in shares), sum(share.of for share in shares))


def _repaired_in(lines: Sequence[Line]) -> Share:
    ran = [line.kind for line in lines if line.kind in _RAN]
    repaired = sum(kind in ERRORS and following in _WITHOUT_ERROR for kind, following in pairwise(ran))
    return Share(repaired, sum(kind in ERRORS for kind in ran))


def _shares(names: Iterable[str]) -> dict[str, float]:
    counts = Counter(names)
    return {name: count / counts.total() for name, count in counts.most_common()}


def _mean(trajectories: Samples, number: Callable[[Trajectory], float]) -> float | None:
    return fmean(map(number, trajectories)) if trajectories else None
