"""What a line costs, early and late in a transcript, and of that, plain generation of its tokens at the same place.

Lines differ in length, early ones from late ones too: only those of about the median length over all depths count.
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
from repl_rl.engine import Engine, SampledLine, Slot
from repl_rl.rollout.service import RolloutService
from repl_rl.trajectory import Task, Trajectory

DEPTHS = (20, 200)
_WINDOW = 10
"""Lines before and behind a depth that are measured with it."""
_SAME_LENGTH_TOKENS = 1
"""How far a line may be from the median length."""
_PLAIN_TOKENS = 33
_PLAIN_REPEATS = 5


@dataclass(frozen=True, slots=True)
class LineCost:
    """One line of about `tokens`: from its request to the request of the next one, and of that, plain generation."""

    own_ms: float
    whole_ms: float
    plain_ms: float
    tokens: float
    context_tokens: float


@dataclass(frozen=True, slots=True)
class TimedLine:
    """From the request for a line to the request for the next one, and its tokens."""

    number: int
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """A line at a depth, and what plain generation of one token takes there."""

    tokens: int
    seconds: float
    plain_token_s: float
    context_tokens: int


def line_costs(service: RolloutService, watch: Stopwatch, llm: Any, tasks: Sequence[Task]) -> dict[int, LineCost]:
    """Roll out the tasks one by one, and generate plainly where their lines at `DEPTHS` stand.

    A depth that no trajectory reaches, or with no line of the common length, is left out. The stopwatch stands between
    engine and worker, so each line takes a turn on an event loop of this process besides: a little more than it costs
    without.
    """
    measured: dict[int, list[Timing]] = {depth: [] for depth in DEPTHS}
    for task in tasks:
        watch.lines.clear()
        (trajectory,) = service.generate([task])
        for depth in DEPTHS:
            measured[depth] += _at_depth(depth, watch.lines, trajectory, llm)
    lengths = [timing.tokens for timings in measured.values() for timing in timings]
    tokens = statistics.median(lengths) if lengths else 0.0
    costs = {depth: cost_of(timings, tokens) for depth, timings in measured.items()}
    return {depth: cost for depth, cost in costs.items() if cost is not None}


def _at_depth(depth: int, lines: Sequence[TimedLine], trajectory: Trajectory, llm: Any) -> list[Timing]:
    """The lines around `depth`; none if the trajectory ended before."""
    if len(trajectory.lines) < depth:
        return []
    context = trajectory.prompt_ids + trajectory.completion_ids[: trajectory.lines[depth - 1].start]
    token_s = _plain_token_s(llm, context)
    near = [line for line in lines if abs(line.number - depth) <= _WINDOW]
    return [Timing(line.tokens, line.seconds, token_s, len(context)) for line in near]


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


def cost_of(timings: Sequence[Timing], tokens: float) -> LineCost | None:
    """Medians over the lines of about `tokens`; None if there is none."""
    alike = [timing for timing in timings if abs(timing.tokens - tokens) <= _SAME_LENGTH_TOKENS]
    if not alike:
        return None
    whole_ms = 1000 * statistics.median(timing.seconds for timing in alike)
    plain_ms = 1000 * statistics.median(timing.plain_token_s * timing.tokens for timing in alike)
    context_tokens = statistics.median(timing.context_tokens for timing in alike)
    return LineCost(
        whole_ms - plain_ms, whole_ms, plain_ms, statistics.fmean(one.tokens for one in alike), context_tokens
    )


class Stopwatch:
    """An engine that notes when its slots are asked for lines."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lines: list[TimedLine] = []

    @property
    def version(self) -> int:
        return self._engine.version

    @asynccontextmanager
    async def slot(self, tokens: int) -> AsyncIterator[Slot]:
        async with self._engine.slot(tokens) as slot:
            yield _WatchedSlot(slot, self.lines)

    def close(self) -> None:
        self._engine.close()


class _WatchedSlot:
    def __init__(self, slot: Slot, lines: list[TimedLine]) -> None:
        self._slot = slot
        self._lines = lines
        self._last: tuple[float, int] | None = None
        self._number = 0

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        asked = time.perf_counter()
        if self._last is not None:
            self._number += 1
            self._lines.append(TimedLine(self._number, asked - self._last[0], self._last[1]))
        line = await self._slot.sample_line(ids, max_tokens, sampling)
        self._last = (asked, len(line.ids))
        return line
