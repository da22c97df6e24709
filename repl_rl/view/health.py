"""Whether a run is well: a few figures of its last steps, each with a sentence where it is out of its range.

The ranges are those of docs/metrics.md. Pure: rows of a run in, texts out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from repl_rl.view.run import Row, Run, number

_LAST = 5
"""Steps whose mean is looked at."""
_FLAT_SHARE = 0.6
_TOO_EASY, _TOO_HARD = 0.8, 0.2
_UNANSWERED_SHARE = 0.2
_DRIFT_NATS = {"float32": 1e-3}
_DRIFT_NATS_OTHERWISE = 0.03
_GRADIENT_JUMP = 10.0
_LEAST_STEPS = 10
"""Before so many steps, nothing is said of a jump."""
_LEAST_ENTROPY_NATS = 0.02
_MASKED_SHARE = 0.3
_FAILED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Sign:
    """One figure: its name and value in words, and what is wrong and helps; "" if it is in its range."""

    name: str
    value: str
    sentence: str = ""


def health(run: Run) -> list[Sign]:
    """The signs of the last steps that the run has figures for; none before the first step."""
    rows = run.train[-_LAST:]
    signs = [
        _groups(run, rows),
        _answers(rows),
        _drift(run, rows),
        _gradient(run),
        _entropy(rows),
        _masked(rows),
        _failing(rows),
    ]
    return [sign for sign in signs if sign is not None]


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = [value for value in (number(row, key) for row in rows) if value is not None]
    return fmean(values) if values else None


def _groups(run: Run, rows: Sequence[Row]) -> Sign | None:
    flat = _mean(rows, "credit/groups_without_variance")
    groups = _mean(rows, "credit/groups") or run.setting("train.prompts_per_step")  # older runs have no count
    if flat is None or not isinstance(groups, int | float) or groups < 1:
        return None
    counted = f"{flat:.1f} of {groups:g}"
    sentence = ""
    if flat / groups >= _FLAT_SHARE:
        solved = _mean(rows, "solve_rate") or 0.0
        why = "problems are too easy or too hard"
        if solved >= _TOO_EASY:
            why = "problems are too easy"
        elif solved <= _TOO_HARD:
            why = "problems are too hard"
        sentence = f"{counted} groups had no variance and taught nothing: {why}; tasks.sampling: pass_rate"
    return Sign("groups without variance", counted, sentence)


def _answers(rows: Sequence[Row]) -> Sign | None:
    reasons: dict[str, float] = {}
    for row in rows:
        for key in row:
            share = number(row, key)
            if key.startswith("stops/") and share is not None:
                reason = key.removeprefix("stops/")
                reasons[reason] = reasons.get(reason, 0.0) + share / len(rows)
    if not reasons:
        return None
    unanswered = {reason: share for reason, share in reasons.items() if reason != "answer"}
    total = sum(unanswered.values())
    sentence = ""
    if total > _UNANSWERED_SHARE:
        most = max(unanswered, key=lambda reason: unanswered[reason])
        sentence = (
            f"{total:.0%} of sessions ended without an answer, most of them by {most.replace('_', ' ')}; docs/faq.md "
            "says what helps"
        )
    shares = sorted(((share, reason) for reason, share in unanswered.items() if share > 0), reverse=True)
    words = [f"{reason.replace('_', ' ')} {share:.0%}" for share, reason in shares]
    return Sign("without an answer", ", ".join(words) or "0%", sentence)


def _drift(run: Run, rows: Sequence[Row]) -> Sign | None:
    drift = _mean(rows, "drift/logprob_mean")
    if drift is None:
        return None
    most = _DRIFT_NATS.get(str(run.setting("model.dtype")), _DRIFT_NATS_OTHERWISE)
    sentence = ""
    if drift > most:
        sentence = (
            f"sampler and trainer differ by {drift:.2g} nats a token, and {most:g} is usual: another number type, "
            "another model, or old weights"
        )
    return Sign("drift", f"{drift:.2g} nats", sentence)


def _gradient(run: Run) -> Sign | None:
    norms = [norm for norm in (number(row, "grad_norm") for row in run.train) if norm is not None]
    if not norms:
        return None
    usual = median(norms)
    last = norms[-1]
    sentence = ""
    if len(norms) >= _LEAST_STEPS and usual > 0 and last > _GRADIENT_JUMP * usual:
        sentence = f"the last gradient is {last / usual:.0f} times as long as usual; try a smaller train.learning_rate"
    return Sign("gradient norm", f"{last:.2g}", sentence)


def _entropy(rows: Sequence[Row]) -> Sign | None:
    entropy = _mean(rows, "entropy")
    if entropy is None:
        return None
    sentence = ""
    if entropy < _LEAST_ENTROPY_NATS:
        sentence = "sessions are all alike, and nothing is tried any more: a higher sampling.temperature, or stop here"
    return Sign("entropy", f"{entropy:.2g} nats", sentence)


def _masked(rows: Sequence[Row]) -> Sign | None:
    masked = _mean(rows, "credit/masked_share")
    if masked is None:
        return None
    sentence = ""
    if masked > _MASKED_SHARE:
        sentence = f"train.mask leaves {masked:.0%} of sessions out of the loss; look at what it names"
    return Sign("masked", f"{masked:.0%}", sentence)


def _failing(rows: Sequence[Row]) -> Sign | None:
    failing = _mean(rows, "error_rate")
    if failing is None:
        return None
    sentence = ""
    if failing > _FAILED_SHARE:
        sentence = (
            f"{failing:.0%} of lines raise: look at errors/* and at a few sessions; worked ones in the prompt help "
            "(dialect.examples)"
        )
    return Sign("failing lines", f"{failing:.0%}", sentence)
