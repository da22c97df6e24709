"""Rollouts to look at as they happen: `live` opens a model and shows what it types, `show` uses an open `Rollout`.

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
from repl_rl.rollout import Began, Checked, Ended, Event, Ran, Rollout, Sampled, config_of, open_rollout, scheduled
from repl_rl.trajectory import Group, Line, Task, Trajectory
from repl_rl.utils.interrupts import interrupts_at_safe_points
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
    requested = _task(task, n)
    config = config_of(config_or_model, overrides)
    board = Board(canvas_here(), n, f"loading {config.model.path}")
    sampling = config.sampling.seeded(f"{config.seed}/live")
    return _one_or_all(watched(config, requested, board, sampling))


def watched(
    config: Config, task: Task, board: Board, sampling: SeededSampling, checked: Checked | None = None
) -> list[Trajectory]:
    """Open the config's model and kernels, and roll out a task once for each rollout on the board. Blocks. `checked` is
    for `open_rollout`."""
    silence_libraries()  # The screen is for the rollout, not for messages of loading libraries.
    with board.until_the_end(), warnings.catch_warnings(action="ignore"), BackgroundLoop() as loop:

        async def open_and_roll() -> list[Trajectory]:
            async with open_rollout(config, sessions=len(board.seen), checked=checked) as rollout:
                return await _roll_all(rollout, task, board, sampling)

        future = loop.submit(open_and_roll())
        with interrupts_at_safe_points() as let_interrupt_through:
            while not wait([future], _TICK_S).done:
                let_interrupt_through()
                board.refresh()
            let_interrupt_through()
        return future.result()


async def show(rollout: Rollout, task: Task | str, *, n: int = 1) -> Trajectory | Group:
    """Roll out a task `n` times on an open `Rollout`, and show it as `live` does. Cancelling it ends the rollouts."""
    requested = _task(task, n)
    return await watch(rollout, requested, Board(canvas_here(), n))


class Board:
    """The progress of `n` rollouts, drawn on a canvas.

    `take` and `refresh` may be called from different threads; `refresh` draws if there is anything new.
    """

    def __init__(self, canvas: Canvas, n: int, note: str = "") -> None:
        self.seen = [LiveRollout()] * n
        self.texts: TokenTexts | None = None
        self._canvas = canvas
        self._note = note
        # Counters, so that a change from another thread while the board is drawn is drawn the next time.
        self._changes = 1
        self._drawn = 0

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
            note = f"ended by {type(error).__name__}: {error}"
            if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
                note = "interrupted: this is what there was"
            self._canvas.finish(tuple(self.seen), note, self.texts)
            raise
        self._canvas.finish(tuple(self.seen), "", self.texts)


async def watch(rollout: Rollout, task: Task, board: Board) -> Trajectory | Group:
    """Roll out a task once for each rollout on the board, and keep the board drawn meanwhile."""
    with board.until_the_end():
        rolling = asyncio.create_task(_roll_all(rollout, task, board, rollout.setup.sampling))
        try:
            while not rolling.done():
                await asyncio.wait([rolling], timeout=_TICK_S)
                board.refresh()
            return _one_or_all(rolling.result())
        finally:
            rolling.cancel()
            await asyncio.gather(rolling, return_exceptions=True)


async def _roll_all(rollout: Rollout, task: Task, board: Board, sampling: SamplingConfig) -> list[Trajectory]:
    """Roll out as many at a time as the rollout allows; the first failure ends all."""
    vocabulary = rollout.setup.vocabulary

    def token_texts(ids: Sequence[int]) -> list[str]:
        return [vocabulary.bytes_of([index]).decode("utf-8", "backslashreplace") for index in ids]

    board.texts = token_texts

    async def roll(index: int) -> Trajectory:
        seeded = sampling.of_trajectory(index) if isinstance(sampling, SeededSampling) else sampling
        async with aclosing(rollout.stream(task, seeded)) as events:
            async for event in events:
                board.take(index, event)
        trajectory = board.seen[index].trajectory
        assert trajectory is not None
        return trajectory

    by_index: dict[int, Trajectory] = {}
    async with aclosing(scheduled(roll, len(board.seen), rollout.setup.at_once)) as ended:
        async for index, trajectory in ended:
            by_index[index] = trajectory
    return [by_index[index] for index in sorted(by_index)]


def _one_or_all(trajectories: Sequence[Trajectory]) -> Trajectory | Group:
    if len(trajectories) == 1:
        return trajectories[0]
    return Group(trajectories)


def _task(task: Task | str, n: int) -> Task:
    """The task to roll out `n` times. Raises ConfigError for an empty task, and for `n` below 1."""
    if isinstance(task, str):
        task = Task("live", task, "")
    if not task.question.strip():
        raise ConfigError("an empty task: give a question, such as " + repr(EXAMPLE))
    if n < 1:
        raise ConfigError(f"n={n}: give at least one rollout")
    return task


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
        if self.trajectory is not None:
            return rows
        texts = [self.prompt]
        if self.lines:
            texts += [self.lines[-1].text, self.lines[-1].output]
        if self.pending is not None:
            texts.append(self.pending)
        last_text = next((text for text in reversed(texts) if text), "")
        return rows if last_text.endswith("\n") else rows[:-1]

    @property
    def doing(self) -> str:
        """What the rollout is doing, in a few words."""
        if self.trajectory is not None:
            return f"stopped: {self.trajectory.stop_reason.replace('_', ' ')}"
        number = len(self.lines) + 1
        if self.pending is not None:
            return f"line {number} runs"
        if self.prompt:
            return f"the model types line {number}"
        return "waiting for a slot and an interpreter"


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
        texts = [plain_text(rollout.rows) for rollout in seen]
        if note:
            texts.insert(0, note)
        columns = []
        for rollout in seen[:_COLUMNS]:
            fragment = transcript_html(
                rollout.prompt, rollout.lines, pending=rollout.pending, note=note or rollout.doing
            )
            columns.append(Markup(fragment))
        html = columns[0]
        if len(columns) > 1:
            html = _SIDE_BY_SIDE.format(Markup("").join(_COLUMN.format(column) for column in columns))
            more = len(seen) - len(columns)
            if more:
                html += Markup("<p>and {} more</p>").format(more)
        self._show({"text/plain": "\n\n".join(text for text in texts if text), "text/html": str(html)})

    def finish(self, seen: Sequence[LiveRollout], note: str, texts: TokenTexts | None) -> None:
        trajectories = [rollout.trajectory for rollout in seen if rollout.trajectory is not None]
        if note or len(trajectories) < len(seen):
            self.draw(seen, note)
        elif len(trajectories) > 1:
            self._show(bundle(Group(trajectories)))
        else:
            [trajectory] = trajectories
            self._show({**bundle(trajectory), "text/html": trajectory_html(trajectory, token_texts=texts)})

    def _show(self, content: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


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
        begun = [rollout for rollout in seen if rollout.prompt]
        columns = max(1, self._console.width // _LEAST_COLUMN_CHARS)
        height = self._console.height
        grid = Table.grid(expand=True, padding=(0, 2))
        cells = []
        for rollout in begun[:columns]:
            grid.add_column(ratio=1)
            # The screen has room for no more rows than this; `_Tail` cuts what is still too long.
            table = transcript_table(rollout.doing, rollout.rows[-height:], False)
            cells.append(_Tail(table, 2))
        grid.add_row(*cells)
        parts: list[RenderableType] = [grid]
        if len(begun) > columns:
            parts.append(Text(f"and {len(begun) - columns} more", style="dim"))
        parts.append(Text(visible(note)))
        self._live.update(_Tail(Stack(*parts)), refresh=True)

    def finish(self, seen: Sequence[LiveRollout], note: str, texts: TokenTexts | None) -> None:
        if self._live is not None:
            self._live.stop()
        for rollout in seen:
            if rollout.trajectory is None:
                if rollout.prompt:
                    self._console.print(transcript_table(rollout.doing, rollout.rows))
            elif self._shows_ended:
                print_trajectory(self._console, rollout.trajectory)
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
        for index, rollout in enumerate(seen):
            self._print(index, rollout.finished_rows, len(seen) > 1)

    def finish(self, seen: Sequence[LiveRollout], note: str, texts: TokenTexts | None) -> None:
        are_several = len(seen) > 1
        for index, rollout in enumerate(seen):
            self._print(index, rollout.rows, are_several)
        for number, rollout in enumerate(seen, 1):
            if rollout.trajectory is not None:
                text = ending(rollout.trajectory)
                self._say(f"{number} {text}" if are_several else text)
        self._say(note)

    def _print(self, index: int, rows: Sequence[ScreenRow], are_several: bool) -> None:
        for row in rows[self._printed.get(index, 0) :]:
            self._say(f"{index + 1} {row.text}" if are_several else row.text)
        self._printed[index] = len(rows)

    def _say(self, text: str) -> None:
        if text:
            self._console.print(Text(visible(text)), soft_wrap=True)
