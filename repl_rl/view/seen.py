"""One rollout as far as it has been told: what a live display draws. Pure: an event makes the next state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from repl_rl.rollout.events import Began, Ended, Event, Ran, Sampled
from repl_rl.trajectory import Line, Trajectory
from repl_rl.view.screen import ScreenRow, transcript_rows


@dataclass(frozen=True, slots=True)
class Seen:
    """`pending` is the typed line that runs now; `trajectory` is there when all is over."""

    prompt: str = ""
    lines: tuple[Line, ...] = ()
    pending: str | None = None
    trajectory: Trajectory | None = None

    def after(self, event: Event) -> Seen:
        """With what an event tells."""
        match event:
            case Began(prompt=prompt):
                return replace(self, prompt=prompt)
            case Sampled(text=text):
                return replace(self, pending=text)
            case Ran(index=index, line=line):
                return replace(self, lines=(*self.lines[:index], line), pending=None)
            case Ended(trajectory=trajectory):
                return replace(self, trajectory=trajectory)

    @property
    def rows(self) -> list[ScreenRow]:
        """The transcript so far, what runs now at its end."""
        return transcript_rows(self.prompt, self.lines, self.pending) if self.prompt else []

    @property
    def finished_rows(self) -> list[ScreenRow]:
        """Those rows that stay as they are, whatever comes."""
        rows = self.rows
        is_open = self.trajectory is None and not self._last_text.endswith("\n")
        return rows[:-1] if is_open else rows

    @property
    def doing(self) -> str:
        """What goes on, in a few words."""
        if self.trajectory is not None:
            return f"stopped: {self.trajectory.stop_reason.replace('_', ' ')}"
        number = len(self.lines) + 1
        if self.pending is not None:
            return f"line {number} runs"
        return f"the model types line {number}" if self.prompt else "waiting for a place and an interpreter"

    @property
    def _last_text(self) -> str:
        line = self.lines[-1] if self.lines else None
        shown = (self.pending, line and line.output, line and line.text, self.prompt)
        return next((text for text in shown if text), "")


def plain(seen: Sequence[Seen], note: str) -> str:
    """Rollouts as text with its marks, one after the other."""
    texts = ["\n".join(marked(row) for row in each.rows) for each in seen]
    return "\n\n".join(filter(None, [note, *texts]))


def marked(row: ScreenRow) -> str:
    """A row behind the mark of who wrote it."""
    return f"{row.mark} {''.join(piece.text for piece in row.pieces)}"
