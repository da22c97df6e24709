"""Rollouts while they happen: in a real notebook, in a terminal, recorded and real, in a pipe; and interrupted ones."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scripted import Gate, ScriptedEngine, rollout_of
from view.conftest import SESSIONS, make_trajectory
from vocabularies import nano

from repl_rl.errors import ConfigError, EngineError
from repl_rl.rollout.events import events_of
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.service import config_of
from repl_rl.trajectory import Group, LineKind, StopReason, Task, Trajectory
from repl_rl.view import live, print_trajectory
from repl_rl.view.watch import Board, LiveRollout, PipeCanvas, TerminalCanvas, canvas_here, watch, watched

ROOT = Path(__file__).parents[2]
TASK = Task("t1", "What is 6 * 7?", "42")
LINES = (" x = 42\n", " y\n", " submit_final_answer(x)\n")
QUICK = ["engine.backend=transformers", "engine.context_tokens=512", "kernel.size=4", "budget.lines=4"]
ROWS = SESSIONS["live in a pipe"]


def rollouts(lines: Sequence[str] = LINES, kernels: Any = None, before: Any = None) -> Rollout:
    return rollout_of(ScriptedEngine(nano(), lines, before), kernels)


class Kept:
    """A canvas that keeps what it was given."""

    def __init__(self) -> None:
        self.drawn: list[tuple[tuple[LiveRollout, ...], str]] = []
        self.finished: list[tuple[tuple[LiveRollout, ...], str]] = []

    def draw(self, seen: Sequence[LiveRollout], note: str) -> None:
        self.drawn.append((tuple(seen), note))

    def finish(self, seen: Sequence[LiveRollout], note: str, texts: object) -> None:
        self.finished.append((tuple(seen), note))


def trajectory_of(texts: Sequence[tuple[str, str]], prompt: str = ">>> # Six?\n>>>") -> Trajectory:
    typed = [(text, LineKind.STATEMENT, None, output) for text, output in texts]
    return replace(make_trajectory("t1", "", typed, stop=StopReason.EOS), prompt=prompt)


def states_of(trajectory: Trajectory) -> Iterator[LiveRollout]:
    seen = LiveRollout()
    for event in events_of(TASK, trajectory):
        seen = seen.after(event)
        yield seen


# What has been seen


def test_a_rollout_told_bit_by_bit() -> None:
    trajectory = trajectory_of([(" x = 6\n", ">>>"), (" x\n", "6\n>>>")])
    states = list(states_of(trajectory))
    doing = [form.format(number) for number in (1, 2) for form in ("the model types line {}", "line {} runs")]
    assert [state.doing for state in states] == [*doing, "the model types line 3", "stopped: eos"]
    assert [row.text for row in states[1].rows] == ["¶ >>> # Six?", "› >>> x = 6"]
    assert [row.text for row in states[2].rows] == ["¶ >>> # Six?", "› >>> x = 6", "‹ >>>"]
    assert [row.text for row in states[2].finished_rows] == ["¶ >>> # Six?", "› >>> x = 6"]
    assert [state.pending for state in states] == [None, " x = 6\n", None, " x\n", None, None]
    assert states[-1].lines == trajectory.lines
    assert (LiveRollout().doing, LiveRollout().rows) == ("waiting for a slot and an interpreter", [])


TYPED = st.sampled_from([" x\n", "\n", " if x:\n    ", "y", " a\n\n b\n", "\x1b[2J\n"])
SHOWN = st.sampled_from(["", ">>>", "1\n>>>", "no newline", "a\n\nb\n...", "\n"])


@given(st.lists(st.tuples(TYPED, SHOWN), max_size=8), st.sampled_from([">>>", "\n", "Question?\n", "a\nb\n>>>"]))
def test_a_finished_row_stays_what_it_is(texts: list[tuple[str, str]], prompt: str) -> None:
    *states, ended = states_of(trajectory_of(texts, prompt))
    whole = [row.text for row in ended.rows]
    before = 0
    for state in states:
        rows = [row.text for row in state.finished_rows]
        assert rows == whole[: len(rows)]
        assert len(rows) >= before
        before = len(rows)
    assert [row.text for row in ended.finished_rows] == whole


# The board


async def test_a_line_that_runs_is_on_the_screen_before_it_has_run() -> None:
    gate, canvas = Gate(), Kept()
    watching = asyncio.ensure_future(watch(rollouts(kernels=gate.kernels), TASK, Board(canvas, 1)))
    while not canvas.drawn or canvas.drawn[-1][0][0].pending is None:
        await asyncio.sleep(0.01)
    gate.may_run.set()
    trajectory = await watching
    assert any(seen.pending == " x = 42\n" and not seen.lines for (seen,), _ in canvas.drawn)
    assert isinstance(trajectory, Trajectory)
    [((ended,), note)] = canvas.finished
    assert (ended.trajectory, ended.lines, note) == (trajectory, trajectory.lines, "")


async def test_a_cancelled_show_says_so_and_frees_everything() -> None:
    kernels, canvas = Gate().kernels, Kept()
    watching = asyncio.ensure_future(watch(rollouts(kernels=kernels), TASK, Board(canvas, 2)))
    while kernels.opened < 2:
        await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.wait([watching])
    assert watching.cancelled()
    assert kernels.open == 0
    [(seen, note)] = canvas.finished
    assert note == "interrupted: this is what there was"
    assert all(each.prompt and each.trajectory is None for each in seen)


async def test_a_failing_engine_is_shown_and_raised() -> None:
    async def fail(prompt: str, turn: int, sampling: object) -> None:
        if turn == 1:
            raise EngineError("the weights are broken")

    file = StringIO()
    with pytest.raises(EngineError, match="the weights are broken"):
        await watch(rollouts(before=fail), TASK, Board(PipeCanvas(Console(file=file)), 1))
    shown = ["› >>> x = 42", "‹ >>>", "ended by EngineError: the weights are broken"]
    assert file.getvalue().splitlines()[-3:] == shown


# A pipe


async def piped(lines: Sequence[str] = LINES, n: int = 1) -> tuple[str, Trajectory | Group]:
    file = StringIO()
    made = await watch(rollouts(lines), TASK, Board(PipeCanvas(Console(file=file, width=40)), n, "loading nano"))
    return file.getvalue(), made


async def test_a_pipe_gets_every_row_once() -> None:
    first, *rows, ending = (await piped())[0].splitlines()
    assert first == "loading nano"
    assert rows[2:] == ["¶ >>> # What is 6 * 7?", *ROWS]
    assert re.fullmatch(r"stopped: answer  answer: 42  3 lines, \d+ tokens, \d+\.\d s", ending)


async def test_several_rollouts_come_as_a_group_and_their_rows_carry_their_numbers() -> None:
    text, group = await piped(n=2)
    assert isinstance(group, Group)
    assert [member.answer for member in group] == [("42",)] * 2
    rows = text.splitlines()
    for number in (1, 2):
        own = [row.removeprefix(f"{number} ") for row in rows if row.startswith(f"{number} ")]
        assert own[3:-1] == ROWS
        assert own[-1].startswith("stopped: answer  answer: 42")


async def test_what_a_program_prints_can_not_steer_a_terminal() -> None:
    text, _ = await piped([" print('\\x1b[2J\\x9b1m\\u202e[bold]x[/red]')\n", " submit_final_answer(1)\n"])
    assert "‹ \\x1b[2J\\x9b1m\\u202e[bold]x[/red]" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text)


# A terminal


def terminal(width: int = 100, height: int = 12) -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, force_terminal=True, width=width, height=height, _environ={}), file


def without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_shows_the_tail_that_fits_and_then_the_whole() -> None:
    console, file = terminal()
    canvas = TerminalCanvas(console)
    trajectory = trajectory_of([(f" line_{at}\n", f"{at} {'wide ' * 30}\n>>>") for at in range(40)])
    *_, last, ended = states_of(trajectory)
    canvas.draw([last], "")
    first, again = len(file.getvalue()), without_codes(file.getvalue())
    assert len(again.splitlines()) <= 12
    assert "39 wide" in again
    assert "line_20" not in again
    canvas.draw([last], "")
    assert len(without_codes(file.getvalue()[first:]).splitlines()) <= 12
    canvas.finish([ended], "", None)
    other, whole = terminal()
    print_trajectory(other, trajectory)
    assert file.getvalue().endswith(whole.getvalue())
    assert "\x1b[?25h" in file.getvalue()


# Programs


SCRIPT = f"from repl_rl.view import live\nlive('nano', 'What is 6 * 7?', overrides={QUICK!r} + EXTRA)\n"
ASLEEP = """
import repl_rl.rollout.service
from scripted import ScriptedEngine
typed = [" import time\\n", " time.sleep(600)\\n"]
opening = repl_rl.rollout.service
opening.make_engine = lambda path, vocabulary, *_, **__: ScriptedEngine(vocabulary, lambda prompt: typed)
"""
"""A policy that types a line which never comes back, at a real interpreter."""


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "TERM": "xterm"}


@pytest.mark.slow
def test_a_script_in_a_pipe_says_nothing_but_the_session() -> None:
    command = [sys.executable, "-c", SCRIPT.replace("EXTRA", "[]")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, env=environment())
    first, *rows, ending = done.stdout.splitlines()
    assert (first, rows[2], done.stderr) == ("loading nano", "¶ >>> # What is 6 * 7?", "")
    assert rows[3].startswith("› >>>")
    assert ending.startswith("stopped: ")


def read_until(terminal: int, wanted: str, text: str = "") -> str:
    """What comes up to `wanted`, or to the end."""
    while wanted not in text:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
        text += data.decode("utf-8", "replace")
    return text


@pytest.mark.slow
def test_an_interrupt_ends_the_rollout_and_shows_what_there_is() -> None:
    program = ASLEEP + SCRIPT.replace("EXTRA", "['kernel.line_s=300']")
    screen, theirs = pty.openpty()
    streams: Any = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = subprocess.Popen([sys.executable, "-c", program], env=environment(), **streams)
    os.close(theirs)
    try:
        text = read_until(screen, "line 2 runs")
        kernels = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        text = read_until(screen, "\0", text)
        process.wait(timeout=600)
    finally:
        process.kill()
        process.wait(timeout=600)
        os.close(screen)
    shown = without_codes(text)
    *_, last, traceback = re.split("interrupted: this is what there was|(?=line 2 runs)", shown)
    assert ">>> time.sleep(600)" in last
    assert "KeyboardInterrupt" in traceback
    assert shown.rstrip().endswith("KeyboardInterrupt")
    assert kernels
    assert psutil.wait_procs(kernels, timeout=600)[1] == []


class Finalized:
    """Python drops what a finalizer raises, an interrupt too."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


class Interrupted(Kept):
    """A canvas in whose drawing an interrupt comes, in a finalizer."""

    def draw(self, seen: Sequence[LiveRollout], note: str) -> None:
        super().draw(seen, note)
        if seen[0].pending and "sleep" in seen[0].pending:
            Finalized()


@pytest.mark.slow
def test_an_interrupt_in_the_middle_of_a_drawing_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = [" import time\n", " time.sleep(600)\n"]
    make_engine = "repl_rl.rollout.service.make_engine"
    monkeypatch.setattr(make_engine, lambda path, vocabulary, *_, **__: ScriptedEngine(vocabulary, typed))
    canvas = Interrupted()
    config = config_of("nano", [*QUICK, "kernel.line_s=300"])
    with pytest.raises(KeyboardInterrupt):
        watched(config, TASK, Board(canvas, 1), config.sampling.seeded("live"))
    [((seen,), note)] = canvas.finished
    assert (seen.pending, note) == (" time.sleep(600)\n", "interrupted: this is what there was")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (("no-such-thing",), {}, "no config 'no-such-thing': neither a file nor a shipped name; known are "),
        (("nano", "  \n"), {}, "an empty task: give a question, such as "),
        (("nano", Task("t", "", "")), {}, "an empty task"),
        (("nano",), {"n": 0}, "n=0: give at least one rollout"),
        (("nano",), {"overrides": "engine.backend=vllm"}, "overrides 'engine.backend=vllm': give a list of them"),
        (("nano",), {"overrides": ["engine.bakend=vllm"]}, "unknown key 'engine.bakend'; did you mean 'backend'?"),
    ],
)
def test_bad_input_is_refused_before_anything_loads(
    monkeypatch: pytest.MonkeyPatch, arguments: Any, named: Any, message: str
) -> None:
    monkeypatch.setattr("repl_rl.rollout.service.make_engine", lambda *_, **__: pytest.fail("an engine was loaded"))
    with pytest.raises(ConfigError, match=re.escape(message)):
        live(*arguments, **named)


def test_the_place_decides_about_the_canvas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(canvas_here(), PipeCanvas)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(canvas_here(), TerminalCanvas)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(canvas_here(), PipeCanvas)
