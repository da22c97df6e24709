"""`repl-rl play`: a person types in the model's place, and sees what it would be shown and what it would earn.

The fastest way to try a reward config, a dialect, tools or an environment: everything is as in training but the policy.
Sub-calls come to the person too. Importing this loads nothing heavy.
"""

from __future__ import annotations

import argparse
import io
import math
import queue
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from repl_rl.errors import ConfigError
from repl_rl.run import recorded
from repl_rl.run.rollouts import asked_tasks, require_task
from repl_rl.trajectory import Line, StopReason, Task, Trajectory, write_jsonl
from repl_rl.utils.folders import require_file
from repl_rl.view.terminal import say
from repl_rl.view.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from repl_rl.config import Config, SamplingConfig
    from repl_rl.engine import Engine, SampledLine
    from repl_rl.rewards import RewardTable
    from repl_rl.rollout import Checked, Event, RolloutSetup

    Talk = queue.SimpleQueue[Callable[[], None] | None]
    """What the person's thread has to do next; None: the session is over."""


def add_arguments(parser: argparse.ArgumentParser, config_help: str) -> None:
    """Add the arguments of `repl-rl play`, and set `run` as its command."""
    parser.add_argument("config", nargs="?", help=config_help)
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a value of the config")
    parser.add_argument("--task", metavar="TEXT", help="the problem; without it, a held-out one of the config")
    parser.add_argument("--answer", metavar="TEXT", help="the answer to --task, for its grade")
    parser.add_argument("--problem", type=int, default=1, metavar="N", help="which held-out problem (default: 1)")
    recorded.add_arguments(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE.jsonl", help="keep the session, with --from beside the recorded"
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Play one session, grade it and print it. Raises ConfigError for invalid options before anything starts."""
    if options.problem < 1:
        raise ConfigError(f"--problem {options.problem}: they are counted from 1")
    require_task(options)
    if options.out is not None:
        require_file("--out", options.out)
    if options.source is None and (options.line is not None or options.config is None):
        raise ConfigError("give a config, or a recorded session to go on from: --from FILE.jsonl#N --line K")
    if options.source is not None and options.task is not None:
        raise ConfigError("--from goes on from a recorded session, whose problem it takes; leave out --task")
    import readline  # noqa: F401 - lets lines be edited

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # what is not UTF-8 becomes U+FFFD, as in a model's text
    from repl_rl.config import load_config
    from repl_rl.rollout import check_rollouts, score
    from repl_rl.tasks import grade
    from repl_rl.view import print_trajectory

    session = None
    if options.source is not None:
        session = recorded.recorded_session(options)
        config, task = session.config, session.task
    else:
        config = load_config(options.config, tuple(options.set))
        tasks = asked_tasks(options, config, options.problem)
        if len(tasks) < options.problem:
            raise ConfigError(
                f"--problem {options.problem}: there are {counted(len(tasks), 'held-out problem')}, counted from 1"
            )
        task = tasks[-1]
    checked = check_rollouts(config)
    console.print(
        "You are the model. Enter ends a line, Ctrl-D on an empty one your text, Ctrl-C the session.", style="dim"
    )
    trajectory = play(config, task, checked, console, None if session is None else session.begun)
    if session is None:
        is_graded = bool(task.answer) or trajectory.environment_reward is not None
    else:
        is_graded = not session.ungraded
    if is_graded:
        trajectory = score([task], [trajectory], grade, checked.table)[0].trajectory
    console.print()
    print_trajectory(console, trajectory)
    if session is not None:
        for sentence in recorded.differences(session, [trajectory]):
            say(console, sentence)
        if session.ungraded:
            say(console, f"nothing is graded: {session.ungraded}", "yellow")
    if options.out is not None:
        kept = [trajectory] if session is None else recorded.beside_the_recorded(session, [trajectory])
        write_jsonl(options.out, kept)
    return 0


def play(config: Config, task: Task, checked: Checked, console: Console, begun: Trajectory | None = None) -> Trajectory:
    """A session that a person types at this terminal, after the lines of `begun`. No limit in seconds holds.

    Raises what a rollout raises.
    """
    from repl_rl.engine.environment import prepare_environment
    from repl_rl.models import resolve_model
    from repl_rl.rollout import BeginsAsRecorded, Rollout, RolloutBatch, RolloutSetup, make_pool
    from repl_rl.utils.threads import BackgroundLoop

    prepare_environment()
    config = config.model_copy(update={"budget": config.budget.model_copy(update={"seconds": math.inf})})
    setup = RolloutSetup.for_model(config, resolve_model(config.model.path), checked.extensions)
    talk: Talk = queue.SimpleQueue()
    person = Person(setup, checked.table, console, talk)
    engine: Engine = person
    if begun is not None:
        engine = BeginsAsRecorded(person, begun, setup.vocabulary.eos_ids)

    kernel = config.kernel.model_copy(update={"size": 1})

    async def roll_out() -> Trajectory:
        async with make_pool(kernel) as pool:
            rollout = Rollout(engine, pool, setup).as_completed(RolloutBatch([task]), person.hear)
            async with aclosing(rollout) as completed:
                [(_, trajectory)] = [pair async for pair in completed]
        return trajectory

    # The session runs in the loop's thread, and the person types in this one.
    with BackgroundLoop() as loop:
        session = loop.submit(roll_out())
        session.add_done_callback(lambda _: talk.put(None))
        try:
            while (ask := talk.get()) is not None:
                ask()
        finally:
            session.cancel()
        return session.result()


class Person:
    """An `Engine` whose lines a person types, in the thread that takes from `talk`."""

    version = 0

    def __init__(self, setup: RolloutSetup, table: RewardTable, console: Console, talk: Talk) -> None:
        self.vocabulary = setup.vocabulary
        self.talk = talk
        self.console = console
        self._table = table
        self._prompt = ""
        self._lines: list[Line] = []

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[PersonSlot]:
        yield PersonSlot(self, is_subcall)

    def close(self) -> None:
        """There is nothing to close."""

    def hear(self, event: Event) -> None:
        """What the session says of itself."""
        from repl_rl.rollout import Began, Ran

        if isinstance(event, Began):
            self._prompt = event.prompt
            self._prompt_ids = event.prompt_ids
        elif isinstance(event, Ran):
            self._lines[event.index :] = [event.line]

    def last_line(self, ids: Sequence[int]) -> str:
        """What became of the last line, if there is one and the session has not been compacted: kind, time, reward."""
        start = len(self._prompt_ids)
        if not self._lines or tuple(ids[:start]) != self._prompt_ids:
            return ""
        completion_ids = tuple(ids[start:])
        sampled_mask = [False] * len(completion_ids)
        for line in self._lines:
            sampled_mask[line.start : line.end] = [True] * (line.end - line.start)
        trajectory = Trajectory(
            "play",
            self._prompt,
            self._prompt_ids,
            completion_ids,
            tuple(sampled_mask),
            (0.0,) * len(completion_ids),
            StopReason.EOS,
            tuple(replace(line, reward=None) for line in self._lines),
        )
        last = self._table.score(trajectory, 0.0).trajectory.lines[-1]
        return f"{last.error_name or last.kind}, reward {last.reward:+.3g}"


class PersonSlot:
    """One session's lines, or those of a sub-call, typed by a person who sees the text of all that comes before."""

    def __init__(self, person: Person, is_subcall: bool) -> None:
        self._person = person
        self._is_subcall = is_subcall
        self._shown_tokens = 0

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        import asyncio

        reply: Future[SampledLine] = Future()
        self._person.talk.put(lambda: self._ask(list(ids), max_tokens, reply))
        return await asyncio.wrap_future(reply)

    def _ask(self, ids: list[int], max_tokens: int, reply: Future[SampledLine]) -> None:
        """Show what came since the last line, and let the person type the next. Runs in the person's thread."""
        from repl_rl.rollout import typed_line
        from repl_rl.utils.text import visible

        person = self._person
        text = visible(person.vocabulary.decode(ids[self._shown_tokens :]))
        if self._is_subcall:
            note = "" if self._shown_tokens else "a sub-call asks:"
            text += "\nanswer> "
        else:
            note = person.last_line(ids)
        if note:
            person.console.print(Text(note, style="dim"), justify="right")
        whole_lines, _, prompt = text.rpartition("\n")
        if whole_lines:
            person.console.print(Text(whole_lines), soft_wrap=True)
        typed, ends = self._read(prompt)
        line = typed_line(person.vocabulary, typed, ends, max_tokens)
        self._shown_tokens = len(ids) + len(line.ids)
        reply.set_result(line)

    def _read(self, prompt: str) -> tuple[str, bool]:
        """Text up to a character that ends a turn of the dialect, or to Ctrl-D on a line of its own; whether it was
        Ctrl-D."""
        stops = self._person.vocabulary.stops
        text = ""
        while not any(stop in text.encode() for stop in stops):
            try:
                text += input("" if text else prompt) + "\n"
            except EOFError:
                return text.removesuffix("\n"), True
        end = min(text.index(chr(stop)) for stop in stops if chr(stop) in text)
        return text[: end + 1], False
