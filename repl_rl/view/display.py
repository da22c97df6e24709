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
LONG_ROWS, OPEN_ROWS = 140, 60
"""Of a transcript of more rows, only those at both ends stay unfolded."""
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

    def shown(value: Any) -> Any:
        return value if isinstance(value, Markup) else visible(str(value))

    made = Environment(
        loader=PackageLoader("repl_rl.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    words = (counted, kind, log_probability, milliseconds, short, signed)
    made.filters |= {word.__name__: word for word in words}
    made.globals |= {"gutter": GUTTER, "faults": FAULTS}
    return made


class Note(NamedTuple):
    """What a row says about a line that begins in it: its number, from 1, and those of its images there is room for."""

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
    fitting = token_texts is not None and texts_fit(trajectory, token_texts)
    return _render(
        "trajectory",
        card=_card(trajectory, short(trajectory.task_id, NAME_CHARS), TRANSCRIPT_BYTES, image_bytes=IMAGES_BYTES),
        tokens=_within(TOKENS_BYTES, stretches(trajectory, token_texts), _page().stretch_row),
        texts_missing="" if fitting else _UNKNOWN if token_texts is None else _UNFIT,
        sampled=trajectory.sampled_tokens,
        size=len(trajectory.completion_ids),
    )


def group_html(group: Sequence[Trajectory]) -> str:
    """How many were solved, a row for each rollout, the tree if sessions forked, and their transcripts side by side.

    The prompt is folded in each transcript, because the whole group shares it. A task that all share is shown above
    them; of several tasks only the number is shown.
    """
    kept = excerpt(list(enumerate(group, 1)), GROUP_MEMBERS)
    shown = [*kept.head, *kept.tail]
    budget_bytes = GROUP_BYTES // max(1, len(shown))
    tasks = {member.task_id for member in group}
    siblings = []
    for number, member in shown:
        task = "" if len(tasks) == 1 else short(member.task_id, NAME_CHARS)
        siblings.append((number, _card(member, task, budget_bytes, prompt_rows=0)))
    return _render(
        "group",
        heading=solved_of(group),
        tasks=short(next(iter(tasks)), NAME_CHARS) if len(tasks) == 1 else counted(len(tasks), "task"),
        siblings=siblings,
        left_out=kept.left_out,
        summary_names=_SUMMARY,
        tree=tree_rows(group) if sum(len(member.lines) for member in group) <= TREE_LINES else [],
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
    return str(_page().root(getattr(_page(), macro)(**values)))


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
    faults: list[bool] = []  # a line in it went wrong, or it is the interpreter's response to one that did
    for row in rows:
        follows = row.origin is Origin.INTERPRETER and faults[-1:] == [True]
        faults.append(any(line.kind in FAULTS for line in row.lines) if row.lines else follows)

    def draw(at: int) -> Any:
        return _page().screen_row(rows[at], [notes[index] for index in rows[at].indices], faults[at])

    given = next((at for at, row in enumerate(rows) if row.origin is not Origin.PROMPT), len(rows))
    before = _within(budget_bytes // 4, range(given), draw)
    session, kept = rows[given:], _within(budget_bytes, range(given, len(rows)), draw)
    head, tail = kept.head, kept.tail
    is_long = kept.left_out > 0 or len(session) > LONG_ROWS
    if is_long and not kept.left_out:
        head, tail = head[:-OPEN_ROWS], head[-OPEN_ROWS:]
    ends = OPEN_ROWS if is_long else len(session)
    first, last = len(head), len(session) - len(tail)  # what lies between them is left out
    parts: list[Part] = []
    if given > prompt_rows:
        title = f"the prompt, {counted(given, 'row')}"
        gap = counted(before.left_out, "row") if before.left_out else ""
        parts = [Part(before.head, title), Part(left_out=gap), Part(before.tail, f"{title}: its end")]
        before = Excerpt(())
    parts += [
        Part((*before.head, *before.tail, *head[:ends])),  # An unfolded prompt belongs to the rows that follow it.
        Part(head[ends:], _told(session[ends:first])),
        Part(left_out=_told(session[first:last])),
        Part(tail[:-ends], _told(session[last:-ends])),
        Part(tail[-ends:]),
    ]
    return [part for part in parts if part.rows or part.left_out]


def _within(budget_bytes: int, items: Sequence[T], draw: Callable[[T], Any]) -> Excerpt[Markup]:
    """As many of the items from both ends, drawn, as the budget has room for."""
    drawn = cache(lambda at: draw(items[at]))
    kept = excerpt(range(len(items)), budget_bytes, lambda at: len(drawn(at).encode()))
    return Excerpt(tuple(map(drawn, kept.head)), kept.left_out, tuple(map(drawn, kept.tail)))


def _told(rows: Sequence[ScreenRow]) -> str:
    """How many rows these are, which lines begin in them, and how many of them went wrong: `9 rows, lines 2 to 6`."""
    numbered = [(row.first + place, line) for row in rows for place, line in enumerate(row.lines, 1)]
    told = [counted(len(rows), "row")] if rows else []
    if numbered:
        first, last = numbered[0][0], numbered[-1][0]
        told.append(f"line {first:,}" if first == last else f"lines {first:,} to {last:,}")
    if faults := sum(line.kind in FAULTS for _, line in numbered):
        told.append(f"✗ {counted(faults, 'error')}")
    return ", ".join(told)


def _card(
    trajectory: Trajectory, task: str, budget_bytes: int, prompt_rows: int = PROMPT_ROWS, image_bytes: int = 0
) -> dict[str, Any]:
    """A trajectory as the template draws it: its heading, in which what isn't known is left out, and its parts. `task`
    is empty if the page shows the task elsewhere."""
    verdict = status(trajectory)
    faults = sum(line.kind in FAULTS for line in trajectory.lines)
    masked = len(trajectory.completion_ids) - trajectory.sampled_tokens
    reward, graded = total_reward(trajectory), trajectory.outcome_reward
    times = {"model": trajectory.engine_s, "interpreter": trajectory.kernel_s, "queue": trajectory.queue_s}
    known = ", ".join(f"{name} {duration(seconds)}" for name, seconds in times.items() if seconds >= 0.05)
    facts = {
        "stopped": trajectory.stop_reason.replace("_", " "),
        "answer": None if trajectory.answer is None else short(", ".join(trajectory.answer), TEXT_CHARS),
        "reference": None if trajectory.reference is None else short(trajectory.reference, TEXT_CHARS),
        "failure": None if trajectory.error is None else short(trajectory.error, TEXT_CHARS),
        "graded": None if graded is None else f"{graded:g}",
        "why": trajectory.grade_reason and short(trajectory.grade_reason, TEXT_CHARS),
        "reward": None if reward is None else signed(reward),
        "lines": f"{len(trajectory.lines):,}" + (f", ✗ {counted(faults, 'error')}" if faults else ""),
        "tokens": f"{trajectory.sampled_tokens:,} typed, {masked:,} interpreter's",
        "time": duration(trajectory.duration_s) + (f" ({known})" if known else ""),
    }
    shown = tuple((name, value) for name, value in facts.items() if value is not None)
    logprobs = [line_logprob(trajectory, line) for line in trajectory.lines]
    parts = transcript_parts(
        trajectory.prompt, trajectory.lines, None, budget_bytes, logprobs, prompt_rows, image_bytes
    )
    return {"verdict": verdict, "mark": VERDICT_MARKS[verdict], "task": task, "facts": shown, "parts": parts}


def tree_rows(group: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Roots in their order, each followed by its branches, as the template draws them.

    A row begins `before` columns from the left, and `began` says how. Of a line, `worth` is what its segment came to,
    at the first line of one; `forks` says that it ends one. Empty for a group in which nothing forked, or of which a
    parent is missing.
    """
    if all(member.branch is None for member in group):
        return []
    rewards = [[line.reward or 0.0 for line in member.lines] for member in group]
    try:
        worths = {(each.member, each.start): each.worth(rewards) for first in trees(group) for each in _all(first)}
    except ValueError:
        return []
    children: dict[int, list[tuple[int, int]]] = {}
    for index, member in enumerate(group):
        if member.branch is not None and member.branch.line:
            children.setdefault(member.branch.parent, []).append((member.branch.line, index))
    rows: list[dict[str, Any]] = []

    def add(index: int, before: int) -> None:
        member, forks = group[index], {line for line, _ in children.get(index, ())}
        verdict, branch, began = status(member), member.branch, ""
        if branch is not None:
            began = f"by {branch.by} after line {branch.line - 1} of #{branch.parent + 1}, weight {branch.weight:.3g}"
            began = began if branch.line else "from the prompt, instead of a fork that did not come about"
        cells = [
            {
                "line": line,
                "worth": worths.get((index, number)) if number in {0, *forks} else None,
                "forks": number + 1 in forks,
            }
            for number, line in enumerate(member.lines)
        ]
        drawn = {"number": index + 1, "verdict": verdict, "mark": VERDICT_MARKS[verdict], "cells": cells}
        rows.append(drawn | {"before": before, "began": began})
        for line, child in sorted(children.get(index, ())):
            add(child, before + line)

    for index, member in enumerate(group):
        if member.branch is None or not member.branch.line:
            add(index, 0)
    return rows


def _all(segment: Segment) -> list[Segment]:
    return [segment, *(each for following in segment.following for each in _all(following))]
