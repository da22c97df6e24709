"""A step of Qwen3 4B with 1,024 sessions on eight H100, by arithmetic, and which assumptions move it most.

    python -m studies.eight_gpus [--json FILE]

Nothing here has run on eight GPUs. Each quantity has a best, a likely and a worst value and its source: measured on one
H200 or on two CPU cores, counted, or assumed. The sampler's steps are played (`repl_rl.run.places`) with made-up
sessions. What a quantity moves is how much longer a step is with its worst value than with its best one, the others
likely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean
from typing import Any

from rich.table import Table

from repl_rl.errors import ConfigError
from repl_rl.run.places import LineShape, Pace, SessionShape, play, with_shared_prompt

_PARAMETERS = 4.02e9
_BYTES_PER_SECOND = 3.35e12
"""Of an H100's memory, by its data sheet."""
_BYTES_OF_TOKEN = 147_456
"""Keys and values: 36 layers, 8 heads of 128 numbers in bfloat16."""
_MEASURED_LOSS_S = 0.851
"""Loss and gradient of Qwen3 4B with checkpointing on one H200 (BENCHMARKS.md), whose tensor cores are an H100's."""
_MEASURED_TOKENS = 6_300
"""Of that pass: eight completions of 300 to 1,200 tokens and their prompt, which they share."""
_GROUP = 16
_LIKELY_STEP_S = 0.008
_STEPS_AHEAD = 10


@dataclass(frozen=True, slots=True)
class EightGPUSettings:
    """What is trained on. Raises ConfigError for invalid counts."""

    processes: int = 8
    sessions: int = 128
    """Of each process, and as many places."""
    lines: int = 20
    line_tokens: int = 40
    """In the mean, the geometric distribution's."""
    output_tokens: int = 12
    prompt_tokens: int = 200
    rounds: int = 5

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {value}: give at least 1")


DEFAULT = EightGPUSettings()
QUICK = EightGPUSettings(processes=2, sessions=16, lines=4, rounds=1)
FLAGS = (
    ("--sessions", int, "of each process (default: 128)"),
    ("--lines", int, "of a session (default: 20)"),
    ("--line-tokens", int, "of a line in the mean (default: 40)"),
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that a step's time is made of."""

    name: str
    unit: str
    values: tuple[float, float, float]
    """Best, likely, worst."""
    source: str


_DEVIATION = Quantity("deviation of lines in a session", "lines", (0.0, 4.0, 8.0), "assumed; Qwen 0.5B: 2 to 5 of ten")
_LINE_MS = Quantity("a line's run and way", "ms", (2.0, 5.0, 30.0), "measured: 1 to 2 idle, 5 and more on busy cores")
QUANTITIES = (
    Quantity("memory's speed reached while decoding", "of 3.35 TB/s", (0.8, 0.7, 0.5), "assumed; a copy reaches 0.85"),
    Quantity(
        "host for a step of the sampler", "ms", (4.0, 5.5, 9.0), "measured 3 to 4 (host_time), a runner's assumed"
    ),
    Quantity("of it not hidden behind the device", "share", (0.0, 0.2, 0.5), "assumed: steps are scheduled ahead"),
    _DEVIATION,
    _LINE_MS,
    Quantity("attention's share of the measured pass that stays", "share", (0.22, 0.5, 1.0), "2.8 of 12.7 ms a layer"),
    Quantity("passes' wait for other GPUs", "share", (0.0, 0.05, 0.2), "assumed: layers are gathered ahead"),
    Quantity("weights into vLLM, sleep, wake", "s", (1.5, 2.5, 4.0), "assumed: 8 GB gathered and copied"),
    Quantity("rewards, credit, layout, files, logs", "s", (1.0, 2.0, 3.0), "measured on two cores: 2.4 of it files"),
)
_ATTENTION_SHARE = 0.4
"""Of the measured pass, which called a kernel for each sequence: by counting its operations."""


def measure(settings: EightGPUSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures, as they are written to JSON, in seconds of a step."""
    totals = {}
    for place, case in enumerate(("best", "likely", "worst")):
        say(case)
        totals[case] = step_of(settings, [quantity.values[place] for quantity in QUANTITIES])
    moved = {}
    likely = [quantity.values[1] for quantity in QUANTITIES]
    for index, quantity in enumerate(QUANTITIES):
        say(quantity.name)
        ends = []
        for value in (quantity.values[0], quantity.values[2]):
            changed = [*likely[:index], value, *likely[index + 1 :]]
            ends.append(step_of(settings, changed)["step_s"])
        moved[quantity.name] = ends
    say("remedies")
    return {
        **asdict(settings),
        "totals": totals,
        "moved": moved,
        "remedies": remedies(settings),
        "quantities": [asdict(quantity) for quantity in QUANTITIES],
    }


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(title="seconds of a step, by arithmetic")
    for name in ("", "best", "likely", "worst"):
        shown.add_column(name, justify="right" if name else "left")
    totals = report["totals"]
    for key, label in _LABELS.items():
        shown.add_row(label, *(f"{totals[case][key]:.4g}" for case in ("best", "likely", "worst")))
    shown.add_section()
    for name, (best, worst) in sorted(report["moved"].items(), key=lambda item: item[1][0] - item[1][1]):
        shown.add_row(f"with the best and worst {name}", f"{best:.1f}", "", f"{worst:.1f}")
    shown.add_section()
    for name, share in report["remedies"].items():
        shown.add_row(f"of sampling saved by {name}", "", f"{share:.0%}", "")
    return shown


_LABELS = {
    "steps": "steps of the sampler",
    "step_ms": "ms of each",
    "occupied": "share of places with a line",
    "sampling_s": "sampling",
    "loss_s": "loss and gradient",
    "weights_s": "weights",
    "rest_s": "the rest",
    "step_s": "a step",
}


def made_up(
    settings: EightGPUSettings, count: int, deviation: float, away_s: float, random: Random
) -> list[SessionShape]:
    """So many sessions, in groups that share a prompt."""
    sessions: list[SessionShape] = []
    while len(sessions) < count:
        group = []
        for _ in range(min(_GROUP, count - len(sessions))):
            lines = max(1, round(random.gauss(settings.lines, deviation)))
            tokens = [1 + int(random.expovariate(1 / (settings.line_tokens - 0.5))) for _ in range(lines)]
            reads = [settings.prompt_tokens, *[settings.output_tokens] * (lines - 1)]
            group.append(
                SessionShape(
                    tuple(LineShape(read, sampled, away_s) for read, sampled in zip(reads, tokens, strict=True))
                )
            )
        sessions += with_shared_prompt(group)
    return sessions


def step_of(settings: EightGPUSettings, values: list[float]) -> dict[str, float]:
    """The seconds of a step and of its parts, in the mean of some rounds."""
    speed, host_ms, exposed, deviation, line_ms, attention, waiting, weights_s, rest_s = values
    steps, occupied, sampling_s, typed = [], [], [], []
    random = Random(0)
    completion = settings.lines * (settings.line_tokens + settings.output_tokens)
    context = settings.prompt_tokens + completion / 2
    for _ in range(settings.rounds):
        played = []
        for _ in range(settings.processes):
            sessions = made_up(settings, settings.sessions, deviation, line_ms / 1000, random)
            typed.append(sum(line.sampled for session in sessions for line in session.lines))
            lines_running = 0.6 * settings.sessions
            read_bytes = 2 * _PARAMETERS + lines_running * context * _BYTES_OF_TOKEN
            device_s = read_bytes / (speed * _BYTES_PER_SECOND)
            host_s = host_ms / 1000
            step_s = max(device_s, host_s) + exposed * min(device_s, host_s)
            played.append(play(sessions, settings.sessions, settings.sessions, Pace(step_s)))
        steps.append(max(len(process.running) for process in played))
        occupied.append(fmean(count for process in played for count in process.running) / settings.sessions)
        sampling_s.append(max(process.seconds for process in played))
    tokens = settings.sessions * (completion + settings.prompt_tokens / _GROUP)
    pass_s = _MEASURED_LOSS_S * (1 - _ATTENTION_SHARE * (1 - attention)) / _MEASURED_TOKENS
    loss_s = tokens * pass_s * (1 + waiting)
    return {
        "steps": fmean(steps),
        "step_ms": 1000 * step_s,
        "occupied": fmean(occupied),
        "sampling_s": fmean(sampling_s),
        "loss_s": loss_s,
        "weights_s": weights_s,
        "rest_s": rest_s,
        "step_s": fmean(sampling_s) + loss_s + weights_s + rest_s,
    }


def remedies(settings: EightGPUSettings) -> dict[str, float]:
    """The share of the sampler's time that each remedy would save, with lines that deviate as is likely.

    Each is played with what it needs: half the places for as many sessions; all sessions from one queue, with the
    places of all processes; and sampling ahead (`train.asynchronous`), where sessions of the next steps fill the places
    that a step's last ones leave empty: ten steps in one, sessions one by one, though groups begin whole.
    """
    random = Random(0)
    count = settings.sessions
    deviation, line_ms = (quantity.values[1] for quantity in (_DEVIATION, _LINE_MS))
    pace = Pace(_LIKELY_STEP_S)
    as_it_is, half, one_queue, ahead, ahead_twice = [], [], [], [], []
    for _ in range(settings.rounds):
        slices = [made_up(settings, count, deviation, line_ms / 1000, random) for _ in range(settings.processes)]
        as_it_is.append(max(play(each, count, count, pace).seconds for each in slices))
        half.append(max(play(each, count // 2, count, pace).seconds for each in slices))
        together = [session for each in slices for session in each]
        one_queue.append(play(together, count * settings.processes, count * settings.processes, pace).seconds)
        stream = made_up(settings, _STEPS_AHEAD * count, deviation, line_ms / 1000, random)
        ahead.append(play(stream, count, count, pace).seconds / _STEPS_AHEAD)
        ahead_twice.append(play(stream, count, 2 * count, pace).seconds / _STEPS_AHEAD)
    return {
        "half the places": 1 - fmean(half) / fmean(as_it_is),
        "one queue for all processes": 1 - fmean(one_queue) / fmean(as_it_is),
        "sampling ahead": 1 - fmean(ahead) / fmean(as_it_is),
        "sampling ahead, twice as many sessions as places": 1 - fmean(ahead_twice) / fmean(as_it_is),
    }
