"""How full an engine's batches will be, foreseen from recorded sessions: `repl-rl train CONFIG --dry-run --like RUN`.

A batch of the sampler has `engine.places` places. A session holds one while a line is sampled, and none while the line
runs, so with as many sessions as places some are always empty. The batch is played here, step by step: a line takes as
many steps as it has tokens, its session is away for as long as its cell took, and the next session begins when one
ends.

Not covered: steps that take longer with more tokens in them, keys and values that don't fit, starts of kernels but for
those of the recorded sessions, and calls of a model that a session makes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from random import Random
from statistics import fmean, quantiles

from repl_rl.config import Config
from repl_rl.errors import ConfigError
from repl_rl.trajectory import Trajectory, read_jsonl

_FILES = 3
"""How many of a run's files of rollouts are read: the policy changes, and the last ones are like those that come."""
_WORTH_SAYING = 0.9
"""More sessions are named if the sampler then takes so much of its steps, or less."""
_CAPTURED_TOKENS = 512
"""The largest CUDA graph of a step that vLLM records by default."""


@dataclass(frozen=True, slots=True)
class LineShape:
    """What a line takes of an engine, and of time."""

    read: int
    """Tokens that are new to the engine before its first one is sampled: the prompt, or the last line's output."""
    sampled: int
    away_s: float
    """From its last token to the request for the next line."""


@dataclass(frozen=True, slots=True)
class SessionShape:
    """What a session takes of an engine."""

    lines: tuple[LineShape, ...]
    queue_s: float = 0.0
    """From the batch's beginning to the request for the first line, where nothing but a kernel was waited for."""


@dataclass(frozen=True, slots=True)
class Played:
    """What one engine did for its sessions."""

    seconds: float
    running: tuple[int, ...]
    """Lines in each step."""
    tokens: tuple[int, ...]
    """Tokens in each step: one for each line, and what lines that begin with it have to read."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the sampler will be like in a training step."""

    steps: int
    """Of the sampler, in the mean of the processes."""
    step_s: float
    """What each of them is taken to last."""
    seconds: float
    """From the first request for a session to the end of the last one."""
    occupied: float
    """The share of places with a line, over the steps of all processes."""
    tokens_median: float
    tokens_90: float
    tokens_most: int
    beginning: float
    """The share of steps in which a line begins."""
    beyond: float
    """The share of steps with more tokens than the largest CUDA graph has."""
    waited: float
    """The share of time for which a process waits for the slowest one, in the mean."""


def session_shape(trajectory: Trajectory) -> SessionShape:
    """What a recorded session asked of its engine."""
    lines = []
    own_s = trajectory.own_s / max(1, len(trajectory.lines))
    read_so_far = -len(trajectory.prompt_ids)
    for line in trajectory.lines:
        lines.append(LineShape(line.start - read_so_far, line.end - line.start, line.duration_s + own_s))
        read_so_far = line.end
    return SessionShape(tuple(lines), trajectory.queue_s)


def _after_its_prompt(session: SessionShape) -> SessionShape:
    """A session whose prompt the engine has read for another one of its group."""
    first_line, *lines = session.lines
    return replace(session, lines=(replace(first_line, read=1), *lines))


def sampler_step_s(trajectories: Iterable[Trajectory]) -> float:
    """How long a step of their sampler took, in the mean: a session waited one step for each of its tokens."""
    engine_s = 0.0
    tokens = 0
    for trajectory in trajectories:
        engine_s += trajectory.engine_s
        tokens += trajectory.sampled_tokens
    return engine_s / max(1, tokens)


def play(sessions: Sequence[SessionShape], places: int, at_once: int, step_s: float) -> Played:
    """Let an engine sample these sessions, at most `at_once` at a time, lines of the session that began first first."""
    now_s = 0.0
    begun = min(at_once, len(sessions))
    lines_done = [0] * len(sessions)
    away = [(session.queue_s, index) for index, session in enumerate(sessions[:begun])]
    heapq.heapify(away)
    """A heap: when each session asks for its next line."""
    asking: list[int] = []
    """A heap: the sessions whose line waits for a place."""
    running: list[tuple[int, int]] = []
    """A heap: the step in which a session's line ends."""
    running_counts: list[int] = []
    token_counts: list[int] = []
    while away or asking or running:
        if not running and not asking:
            now_s = max(now_s, away[0][0])
        while away and away[0][0] <= now_s:
            _, session = heapq.heappop(away)
            heapq.heappush(asking, session)
        step = len(running_counts)
        read = 0
        while asking and len(running) < places:
            session = heapq.heappop(asking)
            line = sessions[session].lines[lines_done[session]]
            read += line.read
            heapq.heappush(running, (step + line.sampled - 1, session))
        running_counts.append(len(running))
        token_counts.append(len(running) + read)
        now_s += step_s
        while running and running[0][0] == step:
            _, session = heapq.heappop(running)
            lines = sessions[session].lines
            line = lines[lines_done[session]]
            lines_done[session] += 1
            if lines_done[session] < len(lines):
                heapq.heappush(away, (now_s + line.away_s, session))
            elif begun < len(sessions):
                heapq.heappush(away, (now_s + line.away_s, begun))
                begun += 1
    return Played(now_s, tuple(running_counts), tuple(token_counts))


def forecast(config: Config, recorded: Sequence[Trajectory], step_s: float | None = None, seed: int = 0) -> Forecast:
    """What a step of training will be like, with groups drawn from the recorded ones.

    `step_s` is what a step of the sampler takes, as in the recorded sessions by default. Raises ConfigError if not one
    of these has a line.
    """
    groups = []
    for _, group in groupby(recorded, lambda trajectory: trajectory.task_id):
        shapes = [session_shape(trajectory) for trajectory in group if trajectory.lines]
        if shapes:
            groups.append(shapes)
    if not groups:
        raise ConfigError("no recorded session has a line, so nothing can be foreseen from them")
    if step_s is None:
        step_s = sampler_step_s(recorded)
    random = Random(seed)
    train = config.train
    played = []
    for _ in range(train.processes):
        sessions: list[SessionShape] = []
        for _ in range(train.prompts_per_step // train.processes):
            first, *others = random.choices(random.choice(groups), k=train.group_size * train.oversample)
            sessions += [first, *map(_after_its_prompt, others)]
        played.append(play(sessions, config.engine.places, config.kernel.size, step_s))
    running = [count for process in played for count in process.running]
    tokens = [count for process in played for count in process.tokens]
    slowest_s = max(process.seconds for process in played)
    deciles = quantiles(tokens, n=10) if len(tokens) > 1 else tokens * 9
    captured = config.engine.vllm.get("max_cudagraph_capture_size", _CAPTURED_TOKENS)
    return Forecast(
        steps=round(len(running) / len(played)),
        step_s=step_s,
        seconds=slowest_s,
        occupied=fmean(running) / config.engine.places,
        tokens_median=deciles[4],
        tokens_90=deciles[8],
        tokens_most=max(tokens),
        beginning=fmean(count > lines for count, lines in zip(tokens, running, strict=True)),
        beyond=fmean(count > captured for count in tokens),
        waited=1 - fmean(process.seconds for process in played) / slowest_s,
    )


def recorded_sessions(path: Path) -> list[Trajectory]:
    """The sessions of a file of rollouts, or of the last files of a run. Raises ConfigError if there are none."""
    files = [path]
    if path.is_dir():
        files = sorted((path / "rollouts").glob("step_*.jsonl"))[-_FILES:]
    trajectories: list[Trajectory] = []
    for file in files:
        trajectories += read_jsonl(file)
    if not trajectories:
        raise ConfigError(f"--like {path}: it has no rollouts; give a run's folder, or a file of rollouts")
    return trajectories


def places_row(config: Config, path: Path) -> str:
    """What the dry run says of the sampler, with sessions like those in a run or file."""
    recorded = recorded_sessions(path)
    seen = forecast(config, recorded)
    places = config.engine.places
    sentences = [
        f"{seen.occupied:.0%} of {places} places hold a line in the mean, with {config.kernel.size} sessions at a time",
        f"{seen.steps:,} steps of the sampler in {seen.seconds:.1f} s, at {1000 * seen.step_s:.1f} ms each as there",
        f"they have {seen.tokens_median:.0f} tokens in the median, at most "
        f"{seen.tokens_90:.0f} in nine of ten, and {seen.tokens_most:,} in the largest",
        f"a line begins in {seen.beginning:.0%} of them",
    ]
    for more_sessions in (3 * places // 2, 2 * places):
        kernel = config.kernel.model_copy(update={"size": more_sessions})
        with_more = forecast(config.model_copy(update={"kernel": kernel}), recorded)
        if with_more.steps <= _WORTH_SAYING * seen.steps:
            sentences.append(f"kernel.size {more_sessions}: {with_more.steps:,} steps ({with_more.occupied:.0%})")
    if seen.beyond:
        sentences.append(f"{seen.beyond:.1%} are larger than vLLM's largest CUDA graph (max_cudagraph_capture_size)")
    if config.train.processes > 1:
        sentences.append(f"processes wait {seen.waited:.0%} of the time for the slowest of {config.train.processes}")
    return "; ".join(sentences) + f" (with sessions like those of {path})"
