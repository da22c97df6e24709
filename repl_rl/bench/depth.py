"""What a line costs, early and late in a transcript, and of that, plain generation of its tokens at the same place.

Attention reads the whole transcript for every token, in plain generation as in rollouts, so that part grows with any
sampler. Plain generation computes with all cores, a small model's rollouts with one: what is left may be negative.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from repl_rl.config import SamplingConfig
from repl_rl.engine import Engine, SampledLine, Seat
from repl_rl.service import RolloutService
from repl_rl.trajectory import Task, Trajectory

DEPTHS = (20, 200)
_WINDOW = 5
"""Lines before and behind a depth that are measured with it."""
_PLAIN_TOKENS = 33
_PLAIN_REPEATS = 5


@dataclass(frozen=True, slots=True)
class LineCost:
    """Medians for one line: from its request to the request of the next one, and of that, plain generation."""

    own_ms: float
    whole_ms: float
    plain_ms: float
    context_tokens: float


@dataclass(frozen=True, slots=True)
class TimedLine:
    """From the request for a line to the request for the next one, and its tokens."""

    number: int
    seconds: float
    tokens: int


def line_costs(service: RolloutService, watch: Stopwatch, llm: Any, tasks: Sequence[Task]) -> dict[int, LineCost]:
    """Roll out the tasks one by one, and generate plainly where their lines at `DEPTHS` stand.

    A depth that no trajectory reaches is left out. The stopwatch stands between engine and worker, so each line takes a
    turn on an event loop of this process besides: a little more than it costs without.
    """
    measured: dict[int, list[tuple[float, float, float, float]]] = {depth: [] for depth in DEPTHS}
    for task in tasks:
        watch.lines.clear()
        (trajectory,) = service.generate([task])
        for depth in DEPTHS:
            measured[depth] += _at_depth(depth, watch.lines, trajectory, llm)
    return {depth: _summary(rows) for depth, rows in measured.items() if rows}


def _at_depth(
    depth: int, lines: Sequence[TimedLine], trajectory: Trajectory, llm: Any
) -> list[tuple[float, float, float, float]]:
    """(own, whole, plain, context) per line around `depth`; none if the trajectory ended before."""
    if len(trajectory.lines) < depth:
        return []
    context = trajectory.prompt_ids + trajectory.completion_ids[: trajectory.lines[depth - 1].start]
    token_s = _plain_token_s(llm, context)
    near = [line for line in lines if abs(line.number - depth) <= _WINDOW]
    return [(line.seconds - line.tokens * token_s, line.seconds, line.tokens * token_s, len(context)) for line in near]


def _plain_token_s(llm: Any, context: Sequence[int]) -> float:
    """Seconds per token behind `context`: the slope between one token and many, so that no request counts."""

    def seconds(tokens: int) -> float:
        from vllm import SamplingParams

        params = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=0)
        started = time.perf_counter()
        llm.generate([{"prompt_token_ids": list(context)}], params, use_tqdm=False)
        return time.perf_counter() - started

    seconds(1)  # fills the prefix cache
    slopes = [(seconds(_PLAIN_TOKENS) - seconds(1)) / (_PLAIN_TOKENS - 1) for _ in range(_PLAIN_REPEATS)]
    return statistics.median(slopes)


def _summary(rows: Sequence[tuple[float, float, float, float]]) -> LineCost:
    own, whole, plain, context = zip(*rows, strict=True)
    return LineCost(
        own_ms=1000 * statistics.median(own),
        whole_ms=1000 * statistics.median(whole),
        plain_ms=1000 * statistics.median(plain),
        context_tokens=statistics.median(context),
    )


class Stopwatch:
    """An engine that notes when its seats are asked for lines."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lines: list[TimedLine] = []

    @property
    def version(self) -> int:
        return self._engine.version

    @asynccontextmanager
    async def seat(self, tokens: int) -> AsyncIterator[Seat]:
        async with self._engine.seat(tokens) as seat:
            yield _WatchedSeat(seat, self.lines)

    def close(self) -> None:
        self._engine.close()


class _WatchedSeat:
    def __init__(self, seat: Seat, lines: list[TimedLine]) -> None:
        self._seat = seat
        self._lines = lines
        self._last: tuple[float, int] | None = None
        self._number = 0

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        asked = time.perf_counter()
        if self._last is not None:
            self._number += 1
            self._lines.append(TimedLine(self._number, asked - self._last[0], self._last[1]))
        line = await self._seat.sample_line(ids, max_tokens, sampling)
        self._last = (asked, len(line.ids))
        return line
