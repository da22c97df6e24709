"""Rollouts to look at as they happen: `live` opens a model and shows it think, `show` does so on an open `Rollout`.

    live("nano", "What is the greatest common divisor of 462 and 1071?")     # a script, a terminal, a notebook's cell

    async with open_rollout("nano") as rollout:                              # in a notebook, several with one engine
        await show(rollout, "What is 12 choose 5?", n=4)

A notebook shows an output cell that is updated in place. A terminal shows the tail that fits the screen, and the whole
transcript at the end. A pipe gets each row once, without control codes. What is drawn is at most a tenth of a second
old. An interrupt ends the rollouts, shows what there is so far, and propagates.

Not covered: the tokens within a line. A line appears only when all of it has been sampled.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from markupsafe import Markup
from rich.console import Console, ConsoleOptions, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from repl_rl.config import Config, SamplingConfig, SeededSampling
from repl_rl.engine.environment import silence_libraries
from repl_rl.errors import ConfigError
from repl_rl.rollout.checks import Checked
from repl_rl.rollout.events import Began, Ended, Event, Ran, Sampled
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.scheduler import scheduled
from repl_rl.rollout.service import config_of, open_rollout
from repl_rl.trajectory import Group, Line, Task, Trajectory
from repl_rl.utils.text import visible
from repl_rl.utils.threads import BackgroundLoop
from repl_rl.view.display import bundle, trajectory_html, transcript_html
from repl_rl.view.terminal import print_trajectory, transcript_table
from repl_rl.view.tokens import TokenTexts
from repl_rl.view.transcript import ScreenRow, ending, plain_text, transcript_rows

EXAMPLE = "What is the greatest common divisor of 462 and 1071?"
_TICK_S = 0.1
_COLUMNS = 8
"""At most this many rollouts are shown side by side in a notebook while they run."""
_LEAST_COLUMN_CHARS = 40
_SIDE_BY_SIDE = Markup('<div style="display:flex;gap:1em;overflow-x:auto" tabindex="0">{}</div>')
_COLUMN = Markup('<div style="flex:1 0 26em;min-width:0">{}</div>')


def live(
    config_or_model: Config | Path | str = "nano",
    task: Task | str = EXAMPLE,
    *,
    overrides: Sequence[str] = (),
    n: int = 1,
) -> Trajectory | Group:
    """Open what `open_rollout` opens, roll out a task `n` times at once, and show it; returns a `Group` if n > 1.

    Blocks, also where an event loop is already running. The same call samples the same lines, as far as the engine
    follows seeds; `overrides=["seed=1"]` gives different ones. Raises ConfigError before anything is loaded, and
    whatever opening and rolling out raise; a rollout that failed for reasons of its machinery comes back `aborted`.
    """
    asked = _task(task, n)
    config = config_of(config_or_model, overrides)
    board = Board(canvas_here(), n, f"loading {config.model.path}")
    return _one_or_all(watched(config, asked, board, config.sampling.seeded(f"{config.seed}/live")))


def watched(
    config: Config, task: Task, board: Board, sampling: SeededSampling, checked: Checked | None = None
) -> list[Trajectory]:
    """Open the config's model and kernels, and roll out a task once for each rollout on the board. Blocks. `checked` is
    for `open_rollout`."""
    silence_libraries()  # The screen is for the rollout, not for messages of loading libraries.
    with board.until_the_end(), warnings.catch_warnings(action="ignore"), BackgroundLoop() as loop:

        async def made() -> list[Trajectory]:
            async with open_rollout(config, sessions=len(board.seen), checked=checked) as rollout:
                return await _rolled(rollout, task, board, sampling)

        making = loop.submit(made())
        while not wait([making], _TICK_S).done:
            board.refresh()
        return making.result()


async def show(rollout: Rollout, task: Task | str, *, n: int = 1) -> Trajectory | Group:
    """Roll out a task `n` times on an open `Rollout`, and show it as `live` does. Cancelling it ends the rollouts."""
    asked = _task(task, n)
    return await watch(rollout, asked, Board(canvas_here(), n))


class Board:
    """The progress of `n` rollouts, drawn on a canvas.

    `take` and `refresh` may be called from different threads; `refresh` draws if there is anything new.
    """

    def __init__(self, canvas: Canvas, n: int, note: str = "") -> None:
        self.seen = [LiveRollout()] * n
        self.texts: TokenTexts | None = None
        self._canvas = canvas
        self._note = note
        self._changes, self._drawn = 1, 0

    def take(self, index: int, event: Event) -> None:
        """Take in an event of rollout `index`."""
        self.seen[index] = self.seen[index].after(event)
        self._note = ""
        self._changes += 1

    def refresh(self) -> None:
        """Draw, unless nothing has changed."""
        changes = self._changes
        if changes != self._drawn:
            self._drawn = changes
            self._canvas.draw(tuple(self.seen), self._note)

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """A block after which the last state is shown, however it is left."""
        try:
            self.refresh()
            yield
        except BaseException as error:
            why = f"ended by {type(error).__name__}: {error}"
            if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
                why = "interrupted: this is what there was"
            self._canvas.finish(tuple(self.seen), why, self.texts)
            raise
        self._canvas.finish(tuple(self.seen), "", self.texts)


async def watch(rollout: Rollout, task: Task, board: Board) -> Trajectory | Group:
    """Roll out a task once for each rollout on the board, and keep the board drawn meanwhile."""
    with board.until_the_end():
        making = asyncio.create_task(_rolled(rollout, task, board, rollout.setup.sampling))
        try:
            while not making.done():
                await asyncio.wait([making], timeout=_TICK_S)
                board.refresh()
            return _one_or_all(making.result())
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)


async def _rolled(rollout: Rollout, task: Task, board: Board, sampling: SamplingConfig) -> list[Trajectory]:
    """Roll out as many at a time as the rollout allows; the first failure ends all."""
    vocabulary = rollout.setup.vocabulary
    board.texts = lambda ids: [vocabulary.bytes_of([index]).decode("utf-8", "backslashreplace") for index in ids]

    async def roll(index: int) -> Trajectory:
        own = sampling.of_trajectory(index) if isinstance(sampling, SeededSampling) else sampling
        async with aclosing(rollout.stream(task, own)) as events:
            async for event in events:
                board.take(index, event)
        trajectory = board.seen[index].trajectory
        assert trajectory is not None
        return trajectory

    async with aclosing(scheduled(roll, len(board.seen), rollout.setup.at_once)) as ended:
        made = {index: trajectory async for index, trajectory in ended}
    return [made[index] for index in sorted(made)]


def _one_or_all(made: Sequence[Trajectory]) -> Trajectory | Group:
    return made[0] if len(made) == 1 else Group(made)


def _task(task: Task | str, n: int) -> Task:
    """The task to roll out `n` times. Raises ConfigError for an empty task, and for `n` below 1."""
    asked = task if isinstance(task, Task) else Task("live", task, "")
    if not asked.question.strip():
        raise ConfigError("an empty task: give a question, such as " + repr(EXAMPLE))
    if n < 1:
        raise ConfigError(f"n={n}: give at least one rollout")
    return asked


@dataclass(frozen=True, slots=True)
class LiveRollout:
    """One rollout as far as its events have come in. `pending` is the typed line that is running.

    `trajectory` is set once the rollout has ended.
    """

    prompt: str = ""
    lines: tuple[Line, ...] = ()
    pending: str | None = None
    trajectory: Trajectory | None = None

    def after(self, event: Event) -> LiveRollout:
        """A copy updated by an event."""
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
        """The transcript so far, with the running line at its end."""
        return transcript_rows(self.prompt, self.lines, self.pending) if self.prompt else []

    @property
    def finished_rows(self) -> list[ScreenRow]:
        """The rows that can no longer change."""
        rows = self.rows
        line = self.lines[-1] if self.lines else None
        texts = (self.pending, line and line.output, line and line.text, self.prompt)
        last_text = next((text for text in texts if text), "")
        return rows[:-1] if self.trajectory is None and not last_text.endswith("\n") else rows

    @property
    def doing(self) -> str:
        """What the rollout is doing, in a few words."""
        if self.trajectory is not None:
            return f"stopped: {self.trajectory.stop_reason.replace('_', ' ')}"
        number = len(self.lines) + 1
        if self.pending is not None:
            return f"line {number} runs"
        return f"the model types line {number}" if self.prompt else "waiting for a slot and an interpreter"


class Canvas(Protocol):
    """Where rollouts are drawn. `note` is a message about all of them, "" for none."""

    def draw(self, seen: Sequence[LiveRollout], note: str) -> None:
        """Show the rollouts as they are now."""

    def finish(self, seen: Sequence[LiveRollout], note: str, texts: TokenTexts | None) -> None:
        """Show the rollouts as they ended; `texts` gives the texts of tokens. Nothing is drawn afterwards."""


def canvas_here() -> Canvas:
    """The canvas for where this runs: a notebook, a terminal or a pipe."""
    # Only a Jupyter kernel counts as a notebook: IPython in a terminal is a terminal.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return NotebookCanvas()
    console = Console()
    return TerminalCanvas(console) if console.is_terminal and not console.is_dumb_terminal else PipeCanvas(console)


class NotebookCanvas:
    """An output cell that is updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, seen: Sequence[LiveRollout], note: str) -> None:
        texts = [plain_text(each.rows) for each in seen]
        shown = [
            Markup(transcript_html(each.prompt, each.lines, pending=each.pending, note=note or each.doing))
            for each in seen[:_COLUMNS]
        ]
        if len(shown) > 1:
            beside = _SIDE_BY_SIDE.format(Markup("").join(_COLUMN.format(each) for each in shown))
            more = len(seen) - len(shown)
            shown = [beside + (Markup("<p>and {} more</p>").format(more) if more else "")]
        self._show({"text/plain": "\n\n".join(filter(None, [note, *texts])), "text/html": str(shown[0])})

    def finish(self, seen: Sequence[LiveRollout], note: str, texts: TokenTexts | None) -> None:
        ended = Group(each.trajectory for each in seen if each.trajectory is not None)
        if note or len(ended) < len(seen):
            self.draw(seen, note)
        elif len(ended) > 1:
            self._show(bundle(ended))
        else:
            self._show({**bundle(ended[0]), "text/html": trajectory_html(ended[0], token_texts=texts)})

    def _show(self, shown: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class TerminalCanvas:
    """A part of the screen that is redrawn in place; at the end, whole transcripts, unless the caller shows them."""

    def __init__(self, console: Console, shows_ended: bool = True) -> None:
        self._console = console
        self._shows_ended = shows_ended
        self._live: Live | None = None

    def draw(self, seen: Sequence[LiveRollout], note: str) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        begun = [each for each in seen if each.prompt]
        fitting = max(1, self._console.width // _LEAST_COLUMN_CHARS)
        grid = Table.grid(expand=True, padding=(0, 2))
        for _ in begun[:fitting]:
            grid.add_column(ratio=1)
        height = self._console.height
        grid.add_row(*(_Tail(transcript_table(each.doing, each.rows[-height:], False), 2) for each in begun[:fitting]))
        more = [Text(f"and {len(begun) - fitting} more", style="dim")] if len(begun) > fitting else []
        self._live.update(_Tail(Stack(grid, *more, Text(visible(note)))), refresh=True)

    def finish(self, seen: Sequence[LiveRollout], note: str, texts: TokenTexts | None) -> None:
        if self._live is not None:
            self._live.stop()
        for each in seen:
            if each.trajectory is not None and self._shows_ended:
                print_trajectory(self._console, each.trajectory)
            elif each.trajectory is None and each.prompt:
                self._console.print(transcript_table(each.doing, each.rows))
        if note:
            self._console.print(Text(visible(note), style="bold"))


@dataclass(frozen=True, slots=True)
class _Tail:
    """As many of the last lines of `whole` as fit on the screen with `spare` lines left free."""

    whole: RenderableType
    spare: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        lines = console.render_lines(self.whole, options.update(height=None), pad=False)
        for line in lines[-max(1, console.height - self.spare) :]:
            yield from line
            yield Segment.line()


class PipeCanvas:
    """Prints each row once, as it comes; with several rollouts, each row starts with its rollout's number."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed: dict[int, int] = {}
        """How many rows of each rollout have been printed."""
        self._note = ""

    def draw(self, seen: Sequence[LiveRollout], note: str) -> None:
        if note != self._note:
            self._note = note
            self._say(note)
        for index, each in enumerate(seen):
            self._print(index, each.finished_rows, len(seen) > 1)

    def finish(self, seen: Sequence[LiveRollout], note: str, texts: TokenTexts | None) -> None:
        for index, each in enumerate(seen):
            self._print(index, each.rows, len(seen) > 1)
        for number, each in enumerate(seen, 1):
            if each.trajectory is not None:
                self._say((f"{number} " if len(seen) > 1 else "") + ending(each.trajectory))
        self._say(note)

    def _print(self, index: int, rows: Sequence[ScreenRow], are_several: bool) -> None:
        for row in rows[self._printed.get(index, 0) :]:
            self._say(f"{index + 1} {row.text}" if are_several else row.text)
        self._printed[index] = len(rows)

    def _say(self, text: str) -> None:
        if text:
            self._console.print(Text(visible(text)), soft_wrap=True)
