"""Trajectories and groups in a notebook's output cell: an HTML fragment, and plain text beside it.

A fragment brings its own styles, all of them under one class, and has no ids and no script: notebooks strip or distrust
these, and several outputs share one page. It follows the notebook's theme (JupyterLab, VS Code), or else the browser's.
Long text is folded in `<details>`. A fragment stays under about 1.5 MB, however long the text, and says what it left
out. All text goes through `visible` and the template's escaping.

Not covered: where a front end strips styles (GitHub, an untrusted notebook), only tables and marks remain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, repeat
from typing import Any, NamedTuple, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from repl_rl.credit.tree import Segment, trees
from repl_rl.trajectory import Line, Trajectory
from repl_rl.utils.text import Excerpt, excerpt, visible
from repl_rl.view.tokens import TokenTexts, stretches, texts_fit
from repl_rl.view.transcript import (
    GUTTER,
    NAME_CHARS,
    TEXT_CHARS,
    Origin,
    ScreenRow,
    group_text,
    images_within,
    solved_of,
    trajectory_text,
    transcript_rows,
)
from repl_rl.view.words import (
    FAULTS,
    VERDICT_MARKS,
    counted,
    duration,
    kind,
    line_logprob,
    log_probability,
    milliseconds,
    short,
    signed,
    status,
    total_reward,
)

TRANSCRIPT_BYTES = 700_000
TOKENS_BYTES = 450_000
IMAGES_BYTES = 350_000
GROUP_BYTES = 1_000_000
GROUP_MEMBERS = 64
TREE_LINES = 1000
PROMPT_ROWS = 8
"""By default, a prompt of more rows is folded."""
LONG_ROWS = 140
"""Of a transcript of more rows, only `OPEN_ROWS` at each end stay unfolded."""
OPEN_ROWS = 60
_SUMMARY = ("stopped", "answer", "graded", "reward", "lines", "tokens", "time")
_UNKNOWN = "Ids stand for texts; token_texts=load_token_texts(MODEL) of repl_rl.view.tokens brings these."
_UNFIT = "Ids stand for texts: the vocabulary at hand gives other texts than the lines have."

T = TypeVar("T")


@cache
def environment() -> Environment:
    """The jinja environment of the fragments.

    Whatever a template outputs goes through `visible` and is escaped, unless it is markup made by a template. All
    templates share one environment, so that each is compiled once. Callers pass what differs to `render`.
    """

    def finalize(value: Any) -> Any:
        return value if isinstance(value, Markup) else visible(str(value))

    templates = Environment(
        loader=PackageLoader("repl_rl.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    words = (counted, kind, log_probability, milliseconds, short, signed)
    templates.filters |= {word.__name__: word for word in words}
    templates.globals |= {"gutter": GUTTER, "faults": FAULTS}
    return templates


class Note(NamedTuple):
    """What a row says about a line that begins in it. `number` counts from 1; there is room for its `images`."""

    number: int
    line: Line
    logprob: float | None
    images: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows, drawn: folded under `title`, or unfolded if that is empty. `left_out` describes a gap."""

    rows: tuple[Markup, ...] = ()
    title: str = ""
    left_out: str = ""


def trajectory_html(trajectory: Trajectory, *, token_texts: TokenTexts | None = None) -> str:
    """The transcript with what each line was worth, how it ended, and its tokens.

    `token_texts` (see `repl_rl.view.tokens.load_token_texts`) gives the tokens' texts; without it they are ids.
    """
    texts_missing = ""
    if token_texts is None:
        texts_missing = _UNKNOWN
    elif not texts_fit(trajectory, token_texts):
        texts_missing = _UNFIT
    return _render(
        "trajectory",
        card=_card(trajectory, short(trajectory.task_id, NAME_CHARS), TRANSCRIPT_BYTES, image_bytes=IMAGES_BYTES),
        tokens=_within(TOKENS_BYTES, stretches(trajectory, token_texts), _page().stretch_row),
        texts_missing=texts_missing,
        sampled=trajectory.sampled_tokens,
        size=len(trajectory.completion_ids),
    )


def group_html(group: Sequence[Trajectory]) -> str:
    """How many were solved, a row for each rollout, the tree if sessions forked, and their transcripts side by side.

    The prompt is folded in each transcript, because the whole group shares it. A task that all share is shown above
    them; of several tasks only the number is shown.
    """
    members = excerpt(list(enumerate(group, 1)), GROUP_MEMBERS)
    numbered = [*members.head, *members.tail]
    budget_bytes = GROUP_BYTES // max(1, len(numbered))
    tasks = {member.task_id for member in group}
    siblings = []
    for number, member in numbered:
        task = "" if len(tasks) == 1 else short(member.task_id, NAME_CHARS)
        siblings.append((number, _card(member, task, budget_bytes, prompt_rows=0)))
    lines = sum(len(member.lines) for member in group)
    return _render(
        "group",
        heading=solved_of(group),
        tasks=short(next(iter(tasks)), NAME_CHARS) if len(tasks) == 1 else counted(len(tasks), "task"),
        siblings=siblings,
        left_out=members.left_out,
        summary_names=_SUMMARY,
        tree=tree_rows(group) if lines <= TREE_LINES else [],
    )


def transcript_html(prompt: str, lines: Sequence[Line], *, pending: str | None = None, note: str = "") -> str:
    """A session in progress; `pending` is the typed line that is running, `note` says what is going on."""
    parts = transcript_parts(prompt, lines, pending, TRANSCRIPT_BYTES, image_bytes=IMAGES_BYTES)
    return _render("session", parts=parts, note=short(note, TEXT_CHARS))


def bundle(thing: Trajectory | Sequence[Trajectory]) -> dict[str, str]:
    """A trajectory or a group as a MIME bundle for notebooks: MIME type to text."""
    if isinstance(thing, Trajectory):
        return {"text/plain": trajectory_text(thing), "text/html": trajectory_html(thing)}
    return {"text/plain": group_text(thing), "text/html": group_html(thing)}


def _page() -> Any:
    """The template's macros."""
    return environment().get_template("display.html").module


def _render(macro: str, **values: Any) -> str:
    page = _page()
    content = getattr(page, macro)(**values)
    return str(page.root(content))


def transcript_parts(
    prompt: str,
    lines: Sequence[Line],
    pending: str | None,
    budget_bytes: int,
    logprobs: Sequence[float] | None = None,
    prompt_rows: int = PROMPT_ROWS,
    image_bytes: int = 0,
) -> list[Part]:
    """The parts of a session that may not have ended; `pending` is typed text that has not run yet.

    A prompt of more than `prompt_rows` is folded, and so is the middle of many rows. Within the budget the first and
    the last rows are kept; every row is in exactly one part, or counted in exactly one gap. Images have a budget of
    their own, in base64; those that don't fit are only counted.
    """
    rows = transcript_rows(prompt, lines, pending)
    notes = list(map(Note, count(1), lines, logprobs or repeat(None), images_within(lines, image_bytes)))
    faults = _faulty(rows)

    def draw(index: int) -> Any:
        row = rows[index]
        return _page().screen_row(row, [notes[line] for line in row.indices], faults[index])

    prompt_end = 0
    while prompt_end < len(rows) and rows[prompt_end].origin is Origin.PROMPT:
        prompt_end += 1
    prompt_drawn = _within(budget_bytes // 4, range(prompt_end), draw)
    parts: list[Part] = []
    before: tuple[Markup, ...] = ()  # An unfolded prompt belongs to the rows that follow it.
    if prompt_end > prompt_rows:
        title = f"the prompt, {counted(prompt_end, 'row')}"
        gap = counted(prompt_drawn.left_out, "row") if prompt_drawn.left_out else ""
        parts += [Part(prompt_drawn.head, title), Part(left_out=gap), Part(prompt_drawn.tail, f"{title}: its end")]
    else:
        before = (*prompt_drawn.head, *prompt_drawn.tail)

    session = rows[prompt_end:]
    drawn = _within(budget_bytes, range(prompt_end, len(rows)), draw)
    head = drawn.head
    tail = drawn.tail
    is_long = drawn.left_out > 0 or len(session) > LONG_ROWS
    if is_long and not drawn.left_out:
        head, tail = head[:-OPEN_ROWS], head[-OPEN_ROWS:]
    open_rows = OPEN_ROWS if is_long else len(session)
    # The rows from `gap_start` to `gap_end` are left out.
    gap_start = len(head)
    gap_end = len(session) - len(tail)
    parts += [
        Part((*before, *head[:open_rows])),
        Part(head[open_rows:], _rows_in_words(session[open_rows:gap_start])),
        Part(left_out=_rows_in_words(session[gap_start:gap_end])),
        Part(tail[:-open_rows], _rows_in_words(session[gap_end:-open_rows])),
        Part(tail[-open_rows:]),
    ]
    return [part for part in parts if part.rows or part.left_out]


def _faulty(rows: Sequence[ScreenRow]) -> list[bool]:
    """Of each row, whether a line in it went wrong, or it is the interpreter's response to one that did."""
    faulty: list[bool] = []
    for row in rows:
        if row.lines:
            faulty.append(any(line.kind in FAULTS for line in row.lines))
        else:
            follows_fault = bool(faulty) and faulty[-1]
            faulty.append(follows_fault and row.origin is Origin.INTERPRETER)
    return faulty


def _within(budget_bytes: int, items: Sequence[T], draw: Callable[[T], Any]) -> Excerpt[Markup]:
    """As many of the items from both ends, drawn, as the budget has room for."""

    @cache  # the size of an item is known only once it is drawn
    def drawn(index: int) -> Any:
        return draw(items[index])

    def size_bytes(index: int) -> int:
        return len(drawn(index).encode())

    indices = excerpt(range(len(items)), budget_bytes, size_bytes)
    return Excerpt(tuple(map(drawn, indices.head)), indices.left_out, tuple(map(drawn, indices.tail)))


def _rows_in_words(rows: Sequence[ScreenRow]) -> str:
    """How many rows these are, which lines begin in them, and how many of them went wrong: `9 rows, lines 2 to 6`."""
    if not rows:
        return ""
    words = [counted(len(rows), "row")]
    numbers: list[int] = []
    faults = 0
    for row in rows:
        numbers += [index + 1 for index in row.indices]
        faults += sum(line.kind in FAULTS for line in row.lines)
    if len(numbers) == 1:
        words.append(f"line {numbers[0]:,}")
    elif numbers:
        words.append(f"lines {numbers[0]:,} to {numbers[-1]:,}")
    if faults:
        words.append(f"✗ {counted(faults, 'error')}")
    return ", ".join(words)


def _card(
    trajectory: Trajectory, task: str, budget_bytes: int, prompt_rows: int = PROMPT_ROWS, image_bytes: int = 0
) -> dict[str, Any]:
    """A trajectory as the template draws it: its heading, in which what isn't known is left out, and its parts. `task`
    is empty if the page shows the task elsewhere."""
    verdict = status(trajectory)
    reward = total_reward(trajectory)
    grade = trajectory.outcome_reward
    lines = f"{len(trajectory.lines):,}"
    faults = sum(line.kind in FAULTS for line in trajectory.lines)
    if faults:
        lines += f", ✗ {counted(faults, 'error')}"
    masked = len(trajectory.completion_ids) - trajectory.sampled_tokens
    time = duration(trajectory.duration_s)
    times = {"model": trajectory.engine_s, "interpreter": trajectory.kernel_s, "queue": trajectory.queue_s}
    worth_showing = [f"{name} {duration(seconds)}" for name, seconds in times.items() if seconds >= 0.05]
    if worth_showing:
        time += f" ({', '.join(worth_showing)})"
    facts = {
        "stopped": trajectory.stop_reason.replace("_", " "),
        "answer": None if trajectory.answer is None else short(", ".join(trajectory.answer), TEXT_CHARS),
        "reference": None if trajectory.reference is None else short(trajectory.reference, TEXT_CHARS),
        "failure": None if trajectory.error is None else short(trajectory.error, TEXT_CHARS),
        "graded": None if grade is None else f"{grade:g}",
        "why": trajectory.grade_reason and short(trajectory.grade_reason, TEXT_CHARS),
        "reward": None if reward is None else signed(reward),
        "lines": lines,
        "tokens": f"{trajectory.sampled_tokens:,} typed, {masked:,} interpreter's",
        "time": time,
    }
    known = tuple((name, value) for name, value in facts.items() if value is not None)
    logprobs = [line_logprob(trajectory, line) for line in trajectory.lines]
    parts = transcript_parts(
        trajectory.prompt, trajectory.lines, None, budget_bytes, logprobs, prompt_rows, image_bytes
    )
    return {"verdict": verdict, "mark": VERDICT_MARKS[verdict], "task": task, "facts": known, "parts": parts}


def tree_rows(group: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Roots in their order, each followed by its branches, as the template draws them.

    A row begins `before` columns from the left, and `began` says how. Of a line, `worth` is what its segment came to,
    at the first line of one; `forks` says that it ends one. Empty for a group in which nothing forked, or of which a
    parent is missing.
    """
    if all(member.branch is None for member in group):
        return []
    rewards = [[line.reward or 0.0 for line in member.lines] for member in group]
    worths: dict[tuple[int, int], float] = {}
    try:
        for root in trees(group):
            for segment in _segments(root):
                worths[segment.member, segment.start] = segment.worth(rewards)
    except ValueError:
        return []
    branches: dict[int, list[tuple[int, int]]] = {}  # of each member, the lines before which it forks and the branches
    for index, member in enumerate(group):
        if member.branch is not None and member.branch.line:
            branches.setdefault(member.branch.parent, []).append((member.branch.line, index))
    rows: list[dict[str, Any]] = []

    def add(index: int, before: int) -> None:
        member = group[index]
        forks = {fork for fork, _ in branches.get(index, ())}
        began = ""
        branch = member.branch
        if branch is not None and branch.line:
            began = f"by {branch.by} after line {branch.line - 1} of #{branch.parent + 1}, weight {branch.weight:.3g}"
        elif branch is not None:
            began = "from the prompt, instead of a fork that did not come about"
        cells = []
        for number, line in enumerate(member.lines):
            starts_segment = number == 0 or number in forks
            worth = worths.get((index, number)) if starts_segment else None
            cells.append({"line": line, "worth": worth, "forks": number + 1 in forks})
        verdict = status(member)
        row = {"number": index + 1, "verdict": verdict, "mark": VERDICT_MARKS[verdict], "cells": cells}
        rows.append({**row, "before": before, "began": began})
        for fork, child in sorted(branches.get(index, ())):
            add(child, before + fork)

    for index, member in enumerate(group):
        if member.branch is None or not member.branch.line:
            add(index, 0)
    return rows


def _segments(root: Segment) -> list[Segment]:
    """A segment and all that follow it, each before those that follow it in turn."""
    segments = [root]
    for child in root.following:
        segments += _segments(child)
    return segments
