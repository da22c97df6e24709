"""Live progress of a run: one line per step, and a bar if the output is a terminal."""

import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Task, TaskID, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from repl_rl.utils.output import ends_in_order
from repl_rl.view.words import duration

_LINE_EVERY_S = 30.0
_LEAST_DONE = 3
_LEAST_SHARE = 0.05
"""Before so much is done, nothing is said of how long the rest will take: what ends first is not like the rest."""
_STEP_LINE = (
    "step {step:>4}  solved {solve_rate:6.1%}  reward {reward:+.3f}  lines {lines_per_trajectory:4.1f}  "
    "errors {error_rate:5.1%}  {tokens_per_s:5.0f} tok/s  {seconds:6.1f} s"
)

_FINE_TUNING_LINE = (
    "step {step:>4}  loss {loss:7.4f}  accuracy {mean_token_accuracy:6.1%}  gradient {grad_norm:6.3f}  {seconds:6.1f} s"
)


def _says_much(done: float, total: float | None) -> bool:
    """Whether what is done says how long the rest will take."""
    return total is not None and done >= max(_LEAST_DONE, _LEAST_SHARE * total)


class _TimeLeftColumn(TimeRemainingColumn):
    """rich's, once enough is done."""

    def render(self, task: Task) -> Text:
        if not _says_much(task.completed, task.total):
            return Text("-:--:--", style="progress.remaining")
        return super().render(task)


class Progress:
    """Prints the progress of a run to a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(f"note: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Show `text` while the block runs, for work that takes a while and has no steps."""
        if self.console.is_terminal:
            with self.console.status(text):
                yield
        else:
            self.say(f"{text} ...")
            yield

    @contextmanager
    def interrupts(
        self,
        text: str = "interrupted; ending the engine and the kernels, which may take some seconds",
        then: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        """While the block runs, the first Ctrl-C shows `text` and calls `then`, by default raising KeyboardInterrupt as
        any further one does."""

        def handle(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.say(text)
            if then is None:
                raise KeyboardInterrupt
            then()

        previous = signal.signal(signal.SIGINT, handle)
        try:
            with ends_in_order():
                yield
        finally:
            signal.signal(signal.SIGINT, previous)

    @contextmanager
    def steps(self, total: int) -> Iterator[None]:
        """Show the bar of a training run while the block runs."""
        with self._new_bar(disable=not self.console.is_terminal) as bar:
            self._bar = bar
            self._task = bar.add_task("step", total=total)
            yield
        self._bar = None
        self._task = None

    @contextmanager
    def part(self, text: str, total: int) -> Iterator[Callable[[], None]]:
        """Show how many of `total` are done while the block runs, and how long the rest will take: a bar on a terminal,
        elsewhere a line now and then. What is yielded counts one more, and may be called in any thread."""
        if self.console.is_terminal:
            with nullcontext(self._bar) if self._bar else self._new_bar(transient=True) as bar:
                task = bar.add_task(text, total=total)
                try:
                    yield lambda: bar.advance(task)
                finally:
                    bar.refresh()
                    bar.remove_task(task)
        else:
            numbers = count(1)  # next() of it is one step in any thread, which `+= 1` is not
            start_s = time.monotonic()
            last_line_s = start_s

            def count_one() -> None:
                nonlocal last_line_s
                done = next(numbers)
                now_s = time.monotonic()
                if now_s - last_line_s < _LINE_EVERY_S or done >= total:
                    return
                last_line_s = now_s
                left = ""
                if _says_much(done, total):
                    left_s = (now_s - start_s) / done * (total - done)
                    left = f", about {duration(left_s)} left"
                self.say(f"  {text}: {done} of {total}{left}")

            yield count_one

    def _new_bar(self, **options: Any) -> Bar:
        columns = ("{task.description}", MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), _TimeLeftColumn())
        return Bar(*columns, console=self.console, **options)

    def step(self, row: dict[str, Any]) -> None:
        """Report a finished training step, given its row of metrics.jsonl."""
        self._say_step(_STEP_LINE, row)

    def fine_tuned(self, row: dict[str, Any]) -> None:
        """Report a finished step of fine-tuning, given its row of metrics.jsonl."""
        self._say_step(_FINE_TUNING_LINE, row)

    def _say_step(self, line: str, row: dict[str, Any]) -> None:
        self.say(line.format_map(defaultdict(float, row)))
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=row["step"])

    def evaluated(self, row: dict[str, Any]) -> None:
        """Report a finished evaluation, given its row of metrics.jsonl."""
        lost = f", {row['aborted']} lost by the machinery" if row.get("aborted") else ""
        self.say(
            f"held-out at step {row['step']}: {row['solve_rate']:.1%} of {row['problems']} problems solved{lost} "
            f"({row['seconds']:.0f} s)"
        )
