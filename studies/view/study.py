"""How soon a large run can be viewed: `repl-rl view` as a user starts it, on a run folder made for this.

The folder holds sessions like nano's, of realistic size. Measured from the start of the process: the time until the
first answer with rows, cold (no index yet) and warm, and until the index is complete. Also measured: the time of
filtered and sorted queries, and memory, of the server, in which a thread makes the index.

Not covered: the browser's own time to draw.
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import psutil  # type: ignore[import-untyped]
from rich.table import Table

from repl_rl.config import Config, dump_config
from repl_rl.errors import RunError
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Line, LineKind, StopReason, Task, Trajectory
from repl_rl.utils.machine import machine

_PER_STEP = 512
_GROUP = 8
_BANNER = (
    "Python 3.11.7 (main, Dec  4 2023, 18:10:11) [GCC 12.2.0] on linux\n"
    'Type "help", "copyright", "credits" or "license" for more information.\n'
)
_TRACEBACK = 'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'
_QUERIES: dict[str, dict[str, str]] = {
    "newest step": {"sort": "step", "order": "desc"},
    "unsolved with NameError, worst reward": {"status": "not solved", "error": "NameError", "sort": "reward"},
    "text in the question, longest time": {"q": "greatest", "sort": "duration_s", "order": "desc"},
    "all by reward, at row 50,000": {"sort": "reward", "offset": "50000"},
}

Typed = tuple[str, LineKind, str | None, str]


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """What is measured. `rounds` is how often each query is asked."""

    trajectories: int = 100_000
    rounds: int = 7


DEFAULT = ViewSettings()
FLAGS = (("--trajectories", int, "in the run (default: 100000)"),)


def measure(settings: ViewSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures, as they are written to JSON. Raises RunError if the viewer does not start."""
    with tempfile.TemporaryDirectory(prefix="repl_rl_bench_") as folder:
        run = Path(folder) / "large"
        say(f"making a run of {settings.trajectories:,} trajectories")
        size_bytes = make_run(run, settings.trajectories)
        say(f"{size_bytes / 1e6:,.0f} MB; starting the viewer without an index")
        cold = _start(run, settings)
        say("and again, with the index")
        warm = _start(run, settings)
    return {
        "machine": machine(["aiohttp", "plotly"]),
        "plan": asdict(settings),
        "run_mb": size_bytes / 1e6,
        "bytes_per_trajectory": size_bytes / settings.trajectories,
        "cold": cold,
        "warm": warm,
    }


def table(report: dict[str, Any]) -> Table:
    """The figures for the terminal."""
    drawn = Table(title=f"view: {report['plan']['trajectories']:,} trajectories, {report['run_mb']:,.0f} MB")
    for column in ("", "cold", "warm"):
        drawn.add_column(column, justify="right" if column else "left")
    cold, warm = report["cold"], report["warm"]
    rows = {"rows on the page": "usable_s", "index complete": "complete_s"}
    for name, key in rows.items():
        drawn.add_row(name, f"{cold[key]:.2f} s", f"{warm[key]:.2f} s")
    for name in cold["queries_ms"]:
        drawn.add_row(name, f"{cold['queries_ms'][name]:.0f} ms", f"{warm['queries_ms'][name]:.0f} ms")
    drawn.add_row("memory at its peak", f"{cold['peak_rss_mb']:.0f} MB", f"{warm['peak_rss_mb']:.0f} MB")
    return drawn


def _start(run: Path, settings: ViewSettings) -> dict[str, Any]:
    """Start the viewer, measure, and end it."""
    began_s = time.perf_counter()
    with _viewer(run) as (process, address), _peak_rss(process) as peak:
        first = _until(lambda: _rows_of(address), process)
        usable_s = time.perf_counter() - began_s
        _until(lambda: _get(address, "run")["index"]["complete"], process)
        complete_s = time.perf_counter() - began_s
        indexed = _get(address, "run")["index"]["trajectories"]
        queries_ms = {name: _query_ms(address, query, settings.rounds) for name, query in _QUERIES.items()}
    return {
        "usable_s": usable_s,
        "rows_at_first": first,
        "complete_s": complete_s,
        "indexed": indexed,
        "queries_ms": queries_ms,
        "peak_rss_mb": peak[0],
    }


@contextmanager
def _viewer(run: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command; yields its process and the address that it prints. Raises RunError unless Ctrl-C ends it with
    exit code 0."""
    command = [sys.executable, "-m", "repl_rl.cli", "view", str(run), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = (line.partition("viewer: ")[2].strip() for line in process.stdout)
        address = next((found for found in lines if found), None)
        if address is None:
            raise RunError(f"the viewer ended with {process.wait()} before it served")
        yield process, address
        process.send_signal(signal.SIGINT)
        if (code := process.wait(timeout=30)) != 0:
            raise RunError(f"the viewer ended with {code} at Ctrl-C")
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _peak_rss(process: subprocess.Popen[str], every_s: float = 0.05) -> Iterator[list[float]]:
    """The peak of the total resident size of the process and its children, in MB."""
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(every_s):
            peak[0] = max(peak[0], _rss_mb(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def _rss_mb(pid: int) -> float:
    total = 0
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    for member in family:
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 1e6


def _until(ask: Callable[[], Any], process: subprocess.Popen[str], limit_s: float = 600.0) -> Any:
    """Call `ask` until its answer is true, and return that answer."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s and process.poll() is None:
        try:
            if answer := ask():
                return answer
        except URLError:
            pass
        time.sleep(0.02)
    raise RunError(f"the viewer did not get that far in {limit_s:.0f} s")


def _rows_of(address: str) -> int:
    """Ask for the run and a page of its table; returns how many trajectories the table has, 0 without rows."""
    _get(address, "run")
    found = _get(address, "trajectories", limit="100")
    return int(found["total"]) if found["rows"] else 0


def _query_ms(address: str, query: dict[str, str], rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        _get(address, "trajectories", **query)
        times.append(1000 * (time.perf_counter() - began_s))
    return statistics.median(times)


def _get(address: str, what: str, **parameters: str) -> Any:
    with urlopen(f"{address}api/{what}?{urlencode(parameters)}", timeout=60) as answer:
        return json.load(answer)


def make_run(folder: Path, count: int) -> int:
    """Write a run of `count` trajectories; returns the bytes of its rollouts."""
    (folder / "rollouts").mkdir(parents=True)
    steps = -(-count // _PER_STEP)
    config = Config.model_validate({"name": "large", "train": {"steps": steps}})
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    tasks, source = make_tasks(None, 2048, seed=0, split="train"), random.Random(0)
    written = 0
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as metrics:
        for step in range(1, steps + 1):
            size = min(_PER_STEP, count - (step - 1) * _PER_STEP)
            written += _write_step(folder / "rollouts" / f"step_{step:05d}.jsonl", step, size, tasks, source)
            row = {"kind": "train", "step": step, "seconds": 5.0 * step, "solve_rate": step / steps, "entropy": 0.3}
            metrics.write(
                json.dumps({**row, "kernel_ms_p50": 2.0, "kernel_ms_p99": 50.0, "tokens_per_s": 900.0}) + "\n"
            )
    return written


def _write_step(path: Path, step: int, size: int, tasks: Sequence[Task], source: random.Random) -> int:
    with path.open("w", encoding="utf-8") as file:
        for index in range(size):
            task = tasks[(step * (_PER_STEP // _GROUP) + index // _GROUP) % len(tasks)]
            file.write(json.dumps(_session(task, step, source).to_dict()) + "\n")
        return file.tell()


def _session(task: Task, step: int, source: random.Random) -> Trajectory:
    """A session like nano's: a thought, a statement or two, perhaps an exception, the answer."""
    wrong = source.random() < 0.5
    raised = wrong and source.random() < 0.4
    typed: list[Typed] = [(" # The interpreter can do this.\n", LineKind.COMMENT, None, ">>>")] * source.randint(0, 2)
    typed += [(f" n = {source.randint(100, 99999)}\n", LineKind.STATEMENT, None, ">>>")] * source.randint(0, 2)
    if raised:
        name = source.choice(["NameError", "TypeError", "SyntaxError", "ZeroDivisionError"])
        typed.append((" math.gcd(n, 12)\n", LineKind.EXCEPTION, name, f"{_TRACEBACK}{name}: it is like this\n>>>"))
    typed.append((f" {task.answer}\n", LineKind.EXPRESSION, None, f"{task.answer}\n>>>"))
    answer = "0" if wrong else task.answer
    typed.append((f" submit_final_answer({answer})\n", LineKind.ANSWER, None, ""))
    return _stored(task, step, typed, answer, 0.0 if wrong else 1.0, source)


def _stored(
    task: Task,
    step: int,
    typed: Sequence[Typed],
    answer: str,
    grade: float,
    source: random.Random,
) -> Trajectory:
    lines: list[Line] = []
    mask: list[bool] = []
    for text, kind, error_name, output in typed:
        start, end = len(mask), len(mask) + max(3, len(text) // 3)
        reward = grade if kind is LineKind.ANSWER else -0.05 if error_name else 0.0
        lines.append(
            Line(start, end, text, kind, error_name, output, reward, source.gauss(0, 1), source.random() / 100)
        )
        mask += [True] * (end - start) + [False] * (-(-len(output) // 3) if kind is not LineKind.ANSWER else 0)
    return Trajectory(
        task_id=task.id,
        prompt=f"{_BANNER}>>> # {task.question}\n>>>",
        prompt_ids=tuple(source.choices(range(700), k=24)),
        completion_ids=tuple(source.choices(range(700), k=len(mask))),
        sampled_mask=tuple(mask),
        logprobs=tuple(-source.random() if sampled else 0.0 for sampled in mask),
        stop_reason=StopReason.ANSWER,
        lines=tuple(lines),
        answer=(answer,),
        outcome_reward=grade,
        version=step,
        duration_s=source.random(),
        engine_s=source.random() / 2,
        kernel_s=source.random() / 4,
    )
