"""How numbers, times and verdicts are put into words, the same in the terminal, the report and a notebook.

Pure: a value goes in, a short text comes out. A value that was never assigned becomes a dash. Nothing here is escaped:
text that a model or an interpreter wrote (an exception's name) still has to pass `visible` and the page's escaping.
"""

import math
import re

from repl_rl.trajectory import Line, LineKind, LineValues, SubCall, Trajectory
from repl_rl.utils.statistics import difference_of_shares
from repl_rl.utils.text import cut_middle

FAULTS = frozenset(kind for kind in LineKind if kind.failed) | {LineKind.OVERLONG}
"""The kinds of lines that went wrong."""

VERDICT_MARKS = {"solved": "✓", "not solved": "✗", "not graded": "·", "void": "·"}
"""The mark before each verdict of `status`, so that nobody has to tell verdicts apart by colour."""


def solved(trajectory: Trajectory) -> bool:
    return (trajectory.outcome_reward or 0.0) > 0


def is_graded(trajectory: Trajectory) -> bool:
    """Whether it counts in a solve rate: it has a grade, and was not lost."""
    return trajectory.outcome_reward is not None and not trajectory.is_lost


def status(trajectory: Trajectory) -> str:
    """A trajectory's verdict: a key of `VERDICT_MARKS`. Void is what no solve rate counts.

    A session that broke its environment has an error, and one may end before its first line: both were the policy's
    doing, and have a grade.
    """
    if trajectory.is_lost:
        return "void"
    if trajectory.outcome_reward is None:
        return "not graded"
    return "solved" if solved(trajectory) else "not solved"


def kind(line: Line) -> str:
    """What became of a line: `statement`, `exception: NameError`."""
    name = line.kind.replace("_", " ")
    return f"{name}: {line.error_name}" if line.error_name else name


def signed(value: float | None) -> str:
    """A reward or an advantage with two decimals; a dash where none was assigned. Zero carries no sign."""
    if value is None:
        return "–"
    return "0" if value == 0 else f"{value:+.2f}"


def log_probability(value: float | None) -> str:
    """A logprob in nats with two decimals; a dash where there is none. What rounds to zero carries no sign."""
    return "–" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def line_logprob(trajectory: Trajectory, line: Line) -> float:
    """The log-probability of the whole line in nats: the sum over its tokens."""
    return sum(trajectory.logprobs[line.start : line.end])


def total_reward(trajectory: Trajectory) -> float | None:
    """The sum of the lines' rewards before discounting; None where no line has been assigned one."""
    rewards = [line.reward for line in trajectory.lines if line.reward is not None]
    return sum(rewards) if rewards else None


def duration(seconds: float) -> str:
    """`8.4 s`, `3 min 12 s` or `2 h 05 min`; a dash for a value that is not a time, which a file may contain."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def milliseconds(seconds: float) -> str:
    """The time of a line, rounded to what is worth reading."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 line`, `1,204 lines`."""
    if count == 1:
        return f"1 {one}"
    return f"{count:,} {many or one + 's'}"


def outcome(label: str, rollouts: int, solved: int, graded: int) -> str:
    """`nano, python: 4 trajectories, 3 of 4 graded ones solved`."""
    heading = f"{label}: " if label else ""
    grades = f", {solved} of {graded} graded ones solved" if graded else ""
    return f"{heading}{rollouts} trajectories{grades}"


def one_line(text: str) -> str:
    """`text` with its line breaks replaced by a sign, where there is one row."""
    return text.replace("\n", "⏎")


def fenced(text: str, language: str) -> str:
    """A block of Markdown that its text can't end."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def worth_of_line(values: LineValues, line: int) -> str:
    """What a line changed the value by, in points: `+50 (-3 to +80)`; a dash where that is not known."""
    before, after = values.around(line)
    if before is None or after is None:
        return "–"
    change = f"{100 * (after - before):+.0f}"
    sizes = values.sizes_around(line)
    if not (0 <= before <= 1 and 0 <= after <= 1 and min(sizes) > 0):
        return change  # grades of an environment are no shares
    low, high = difference_of_shares(before, sizes[0], after, sizes[1])
    return f"{change} ({100 * low:+.0f} to {100 * high:+.0f})"


def sentence_of_value(values: LineValues, line: int) -> str:
    """What a line was worth, for who reads the session."""
    before, after = values.around(line)
    if before is None or after is None:
        return "Nothing could go on from here, so nobody knows what the line was worth."
    before_size, after_size = values.sizes_around(line)
    then = "what the session came to" if math.isinf(after_size) else f"{after_size:.0f} from after it"
    return (
        f"It took the chance of a right answer from {before:.0%} to {after:.0%}, by {worth_of_line(values, line)} "
        f"points: {counted(round(before_size), 'session')} from before it, and {then}."
    )


def cost(call: SubCall) -> str:
    """What a sub-call took, or why there is no answer: `40 tokens`, `no answer: calls`."""
    if call.error_name is not None:
        return f"no answer: {call.error_name}"
    return counted(call.tokens, "token")


def short(text: str, limit_chars: int) -> str:
    """`text`, with the middle of a long one replaced by a note of how much is missing."""
    return cut_middle(text, limit_chars, " … {:,} characters … ")
