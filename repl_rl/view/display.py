"""Trajectories and groups in a notebook's output cell: an HTML fragment, and plain text beside it.

A fragment brings its own styles, all of them under one class, and has no ids and no script: notebooks strip or distrust
these, and several outputs share one page. It follows the notebook's theme (JupyterLab, VS Code), or else the browser's.
Long text is folded in `<details>`. A fragment stays under about 1.5 MB, however long the text, and says what it left
out. All text goes through `visible` and the template's escaping.

Not covered: where a front end strips styles (GitHub, an untrusted notebook), only tables and marks remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from repl_rl.trajectory import Line, Trajectory
from repl_rl.utils.text import excerpt, visible
from repl_rl.view.tokens import TokenTexts, stretches, texts_fit
from repl_rl.view.transcript import (
    GUTTER,
    NAME_CHARS,
    TEXT_CHARS,
    Part,
    group_text,
    session_parts,
    solved_of,
    trajectory_parts,
    trajectory_text,
)
from repl_rl.view.tree import tree_rows
from repl_rl.view.words import (
    FAULTS,
    VERDICT_MARKS,
    counted,
    duration,
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
_SUMMARY = ("stopped", "answer", "graded", "reward", "lines", "tokens", "time")
_UNKNOWN = "Ids stand for texts; token_texts=load_token_texts(MODEL) of repl_rl.view.tokens brings these."
_UNFIT = "Ids stand for texts: the vocabulary at hand gives other texts than the lines have."


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
    words = (counted, log_probability, milliseconds, signed)
    made.filters |= {word.__name__: word for word in words}
    made.globals["gutter"] = GUTTER
    return made


@dataclass(frozen=True, slots=True)
class _Card:
    """A trajectory as the template draws it; `task` is empty if the page shows the task elsewhere."""

    verdict: str
    mark: str
    task: str
    facts: tuple[tuple[str, str], ...]
    parts: tuple[Part, ...]


def trajectory_html(trajectory: Trajectory, *, token_texts: TokenTexts | None = None) -> str:
    """The transcript with what each line was worth, how it ended, and its tokens.

    `token_texts` (see `repl_rl.view.tokens.load_token_texts`) gives the tokens' texts; without it they are ids.
    """
    fitting = token_texts is not None and texts_fit(trajectory, token_texts)
    return _render(
        "trajectory",
        card=_card(
            trajectory,
            trajectory_parts(trajectory, TRANSCRIPT_BYTES, image_bytes=IMAGES_BYTES),
            short(trajectory.task_id, NAME_CHARS),
        ),
        tokens=stretches(trajectory, token_texts, TOKENS_BYTES),
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
        siblings.append((number, _card(member, trajectory_parts(member, budget_bytes, prompt_rows=0), task)))
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
    parts = session_parts(prompt, lines, pending, TRANSCRIPT_BYTES, image_bytes=IMAGES_BYTES)
    return _render("session", parts=parts, note=short(note, TEXT_CHARS))


def bundle(thing: Trajectory | Sequence[Trajectory]) -> dict[str, str]:
    """A trajectory or a group as a MIME bundle for notebooks: MIME type to text."""
    if isinstance(thing, Trajectory):
        return {"text/plain": trajectory_text(thing), "text/html": trajectory_html(thing)}
    return {"text/plain": group_text(thing), "text/html": group_html(thing)}


def _render(macro: str, **values: Any) -> str:
    module = environment().get_template("display.html").module
    content: Markup = getattr(module, macro)(**values)
    html: Markup = module.root(content)  # type: ignore[attr-defined]
    return str(html)


def _card(trajectory: Trajectory, parts: Sequence[Part], task: str) -> _Card:
    """The heading holds what is known; what isn't known is left out."""
    verdict = status(trajectory)
    faults = sum(line.kind in FAULTS for line in trajectory.lines)
    masked = len(trajectory.completion_ids) - trajectory.sampled_tokens
    reward, graded = total_reward(trajectory), trajectory.outcome_reward
    times = {"model": trajectory.engine_s, "interpreter": trajectory.kernel_s, "queue": trajectory.queue_s}
    known = ", ".join(f"{name} {duration(seconds)}" for name, seconds in times.items() if seconds >= 0.05)
    facts = {
        "stopped": trajectory.stop_reason.replace("_", " "),
        "answer": None if trajectory.answer is None else short(", ".join(trajectory.answer), TEXT_CHARS),
        "failure": None if trajectory.error is None else short(trajectory.error, TEXT_CHARS),
        "graded": None if graded is None else f"{graded:g}",
        "reward": None if reward is None else signed(reward),
        "lines": f"{len(trajectory.lines):,}" + (f", ✗ {counted(faults, 'error')}" if faults else ""),
        "tokens": f"{trajectory.sampled_tokens:,} typed, {masked:,} interpreter's",
        "time": duration(trajectory.duration_s) + (f" ({known})" if known else ""),
    }
    shown = tuple((name, value) for name, value in facts.items() if value is not None)
    return _Card(verdict, VERDICT_MARKS[verdict], task, shown, tuple(parts))
