"""Rollouts to look at as they happen: `live` opens a model and shows it think, `show` does so on an open `Rollout`.

    live("nano", "What is the greatest common divisor of 462 and 1071?")     # a script, a terminal, a notebook's cell

    async with open_rollout("nano") as rollout:                              # in a notebook, several with one engine
        await show(rollout, "What is 12 choose 5?", n=4)

What is drawn is at most a tenth of a second old. An interrupt ends the rollouts, shows what there is, and goes on up.

Not covered: the tokens within a line. A line is sampled whole before it is told.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import aclosing, contextmanager
from pathlib import Path

from repl_rl.config import Config, SamplingConfig, SeededSampling
from repl_rl.engine import Vocabulary
from repl_rl.engine.environment import silence_libraries
from repl_rl.errors import ConfigError
from repl_rl.rollout.events import Event
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.service import config_of, open_rollout
from repl_rl.trajectory import Group, Task, Trajectory
from repl_rl.utils.background import BackgroundLoop
from repl_rl.view.canvas import Canvas, canvas_here
from repl_rl.view.seen import Seen
from repl_rl.view.tokens import TokenTexts

EXAMPLE = "What is the greatest common divisor of 462 and 1071?"
_TICK_S = 0.1


def live(
    config_or_model: Config | Path | str = "nano",
    task: Task | str = EXAMPLE,
    *,
    overrides: Sequence[str] = (),
    n: int = 1,
) -> Trajectory | Group:
    """Open what `open_rollout` opens, roll out a task `n` times beside each other, and show it; a `Group` if n > 1.

    Blocks, also where an event loop runs already. The same call samples the same lines, as far as the engine follows
    seeds; `overrides=["seed=1"]` makes others. Raises ConfigError before anything is loaded, and what opening and
    rolling out raise; a trajectory that the machinery failed comes back `aborted`.
    """
    asked = _task(task)
    _refuse_count(n)
    config = config_of(config_or_model, overrides)
    board = Board(canvas_here(), n, f"loading {config.model.path}")
    with board.until_the_end(), _quietly(), BackgroundLoop() as loop:
        making = loop.submit(_opened(config, asked, board))
        while not wait([making], _TICK_S).done:
            board.refresh()
        return _one_or_all(making.result())


async def show(rollout: Rollout, task: Task | str, *, n: int = 1) -> Trajectory | Group:
    """Roll out a task `n` times on an open `Rollout`, and show it as `live` does. Cancelling it ends the rollouts."""
    asked = _task(task)
    _refuse_count(n)
    return await watch(rollout, asked, Board(canvas_here(), n))


class Board:
    """What `n` rollouts have come to so far, on a canvas.

    `take` may be called from another thread than `refresh`, which draws if there is anything new.
    """

    def __init__(self, canvas: Canvas, n: int, note: str = "") -> None:
        self.seen = [Seen()] * n
        self.texts: TokenTexts | None = None
        self._canvas = canvas
        self._note = note
        self._changes, self._drawn = 1, 0

    def take(self, index: int, event: Event) -> None:
        """Rollout `index` tells something."""
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
        """The last state is shown however the block is left."""
        try:
            self.refresh()
            yield
        except BaseException as error:
            self._canvas.finish(tuple(self.seen), _why(error), self.texts)
            raise
        self._canvas.finish(tuple(self.seen), "", self.texts)


async def watch(
    rollout: Rollout, task: Task, board: Board, sampling: SamplingConfig | None = None
) -> Trajectory | Group:
    """Roll out a task as often as the board has room, drawing on it from here."""
    with board.until_the_end():
        making = asyncio.create_task(_rolled(rollout, task, board, sampling))
        try:
            while not making.done():
                await asyncio.wait([making], timeout=_TICK_S)
                board.refresh()
            return _one_or_all(making.result())
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)


async def _opened(config: Config, task: Task, board: Board) -> list[Trajectory]:
    async with open_rollout(config) as rollout:
        return await _rolled(rollout, task, board, config.sampling.seeded(f"{config.seed}/live"))


async def _rolled(rollout: Rollout, task: Task, board: Board, sampling: SamplingConfig | None) -> list[Trajectory]:
    """As many at a time as the rollout allows; the first failure ends all."""
    board.texts = _texts_of(rollout.vocabulary)
    count = len(board.seen)
    places = asyncio.Semaphore(rollout.setup.at_once or count)
    sampling = sampling or rollout.sampling

    async def roll(index: int) -> Trajectory:
        own = sampling.of_trajectory(index) if isinstance(sampling, SeededSampling) else sampling
        async with places, aclosing(rollout.stream(task, own)) as events:
            async for event in events:
                board.take(index, event)
        trajectory = board.seen[index].trajectory
        assert trajectory is not None
        return trajectory

    rolling = [asyncio.create_task(roll(index)) for index in range(count)]
    try:
        return await asyncio.gather(*rolling)
    finally:
        for each in rolling:
            each.cancel()
        await asyncio.gather(*rolling, return_exceptions=True)


def _texts_of(vocabulary: Vocabulary) -> TokenTexts:
    return lambda ids: [vocabulary.bytes_of([index]).decode("utf-8", "backslashreplace") for index in ids]


def _one_or_all(made: Sequence[Trajectory]) -> Trajectory | Group:
    return made[0] if len(made) == 1 else Group(made)


def _why(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return "interrupted: this is what there was"
    return f"ended by {type(error).__name__}: {error}"


def _task(task: Task | str) -> Task:
    asked = task if isinstance(task, Task) else Task("live", task, "")
    if not asked.question.strip():
        raise ConfigError("an empty task: give a question, such as " + repr(EXAMPLE))
    return asked


def _refuse_count(n: int) -> None:
    if n < 1:
        raise ConfigError(f"n={n}: give at least one rollout")


@contextmanager
def _quietly() -> Iterator[None]:
    """The screen is for the rollout: what libraries say while they load stays off it."""
    silence_libraries()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
