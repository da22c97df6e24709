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

from repl_rl.config import Config, load_config
from repl_rl.errors import ConfigError
from repl_rl.trajectory import Trajectory, read_jsonl

_FILES = 3
"""How many of a run's files of rollouts are read: the policy changes, and the last ones are like those that come."""
_WORTH_SAYING = 0.9
"""More sessions are named if the sampler then takes so much of its steps, or less."""
_ROUNDS = 5
_CAPTURED_TOKENS = 512
"""The largest CUDA graph of a step that vLLM records by default, if it has half as many places or more (vLLM 0.32,
`VllmConfig._set_cudagraph_sizes`; 1,024 on GPUs of compute capability 10)."""


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
class Pace:
    """What a step of the sampler takes, in seconds."""

    step_s: float
    token_s: float = 0.0
    """More, for each token in it."""


@dataclass(frozen=True, slots=True)
class Played:
    """What one engine did for its sessions."""

    seconds: float
    steps_of_sessions: tuple[int, ...]
    """For how many steps each session waited for its lines."""
    tokens_of_sessions: tuple[int, ...]
    """The tokens of all these steps, those of other sessions included."""
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
    """What each of them lasts, in the mean."""
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


def batch_shapes(batch: Iterable[Trajectory]) -> list[list[SessionShape]]:
    """The sessions of a recorded batch that typed a line, by group."""
    groups = []
    for _, trajectories in groupby(batch, lambda trajectory: trajectory.task_id):
        shapes = [session_shape(trajectory) for trajectory in trajectories if trajectory.lines]
        if shapes:
            groups.append(shapes)
    return groups


def with_shared_prompt(group: Sequence[SessionShape]) -> list[SessionShape]:
    """The sessions of a group, whose prompt the engine reads once."""
    first, *others = group
    return [first, *map(_after_its_prompt, others)]


def play(sessions: Sequence[SessionShape], places: int, at_once: int, pace: Pace) -> Played:
    """Let an engine sample these sessions, at most `at_once` at a time, lines of the session that began first first."""
    now_s = 0.0
    begun = min(at_once, len(sessions))
    lines_done = [0] * len(sessions)
    away = [(session.queue_s, index) for index, session in enumerate(sessions[:begun])]
    """A heap: when each session asks for its next line."""
    heapq.heapify(away)
    asking: list[int] = []
    """A heap: the sessions whose line waits for a place."""
    running: list[tuple[int, int]] = []
    """A heap: the step in which a session's line ends."""
    running_counts: list[int] = []
    token_counts: list[int] = []
    tokens_so_far = 0
    asked_at = [(0, 0)] * len(sessions)
    """The steps, and the tokens in them, when each session asked for its line."""
    steps_of_sessions = [0] * len(sessions)
    tokens_of_sessions = [0] * len(sessions)
    while away or asking or running:
        if not running and not asking:
            now_s = max(now_s, away[0][0])
        step = len(running_counts)
        while away and away[0][0] <= now_s:
            _, session = heapq.heappop(away)
            heapq.heappush(asking, session)
            asked_at[session] = (step, tokens_so_far)
        read = 0
        while asking and len(running) < places:
            session = heapq.heappop(asking)
            line = sessions[session].lines[lines_done[session]]
            read += line.read
            heapq.heappush(running, (step + line.sampled - 1, session))
        tokens = len(running) + read
        running_counts.append(len(running))
        token_counts.append(tokens)
        tokens_so_far += tokens
        now_s += pace.step_s + pace.token_s * tokens
        while running and running[0][0] == step:
            _, session = heapq.heappop(running)
            asked_step, asked_tokens = asked_at[session]
            steps_of_sessions[session] += step + 1 - asked_step
            tokens_of_sessions[session] += tokens_so_far - asked_tokens
            lines = sessions[session].lines
            line = lines[lines_done[session]]
            lines_done[session] += 1
            if lines_done[session] < len(lines):
                heapq.heappush(away, (now_s + line.away_s, session))
            elif begun < len(sessions):
                heapq.heappush(away, (now_s + line.away_s, begun))
                begun += 1
    return Played(
        now_s, tuple(steps_of_sessions), tuple(tokens_of_sessions), tuple(running_counts), tuple(token_counts)
    )


def recorded_pace(batches: Sequence[Sequence[Trajectory]], places: int, at_once: int) -> Pace:
    """What a step of the sampler took in recorded batches of one engine.

    A session has waited for the steps that were done while its lines were sampled, and is known to have waited for
    `engine_s`. How many steps these were, with how many tokens, is played with a guess at the pace, which least squares
    over all sessions then mend; a few rounds suffice.
    """
    typed = [[trajectory for trajectory in batch if trajectory.lines] for batch in batches]
    waited_s = [trajectory.engine_s for batch in typed for trajectory in batch]
    sampled = sum(trajectory.sampled_tokens for batch in typed for trajectory in batch)
    pace = Pace(sum(waited_s) / max(1, sampled))
    for _ in range(_ROUNDS):
        steps: list[int] = []
        tokens: list[int] = []
        for batch in typed:
            sessions = [session for group in batch_shapes(batch) for session in with_shared_prompt(group)]
            played = play(sessions, places, at_once, pace)
            steps += played.steps_of_sessions
            tokens += played.tokens_of_sessions
        pace = _least_squares(waited_s, steps, tokens)
    return pace


def _least_squares(seconds: Sequence[float], steps: Sequence[int], tokens: Sequence[int]) -> Pace:
    """The pace, neither part below 0, with which so many steps and tokens took the seconds best."""

    def products(left: Sequence[float], right: Sequence[float]) -> float:
        return sum(first * second for first, second in zip(left, right, strict=True))

    steps_2, tokens_2, both = products(steps, steps), products(tokens, tokens), products(steps, tokens)
    steps_s, tokens_s = products(steps, seconds), products(tokens, seconds)
    determinant = steps_2 * tokens_2 - both**2
    if determinant > 0:
        step_s = (steps_s * tokens_2 - tokens_s * both) / determinant
        token_s = (tokens_s * steps_2 - steps_s * both) / determinant
        if step_s >= 0 and token_s >= 0:
            return Pace(step_s, token_s)
        if step_s < 0:
            return Pace(0.0, tokens_s / tokens_2)
    return Pace(steps_s / max(1, steps_2))


def forecast(config: Config, groups: Sequence[Sequence[SessionShape]], pace: Pace, seed: int = 0) -> Forecast:
    """What a step of training will be like, with groups drawn from recorded ones."""
    random = Random(seed)
    train = config.train
    played = []
    for _ in range(train.processes):
        sessions: list[SessionShape] = []
        for _ in range(train.prompts_per_step // train.processes):
            drawn = random.choices(random.choice(groups), k=train.group_size * train.oversample)
            sessions += with_shared_prompt(drawn)
        played.append(play(sessions, config.engine.places, config.kernel.size, pace))
    running = [count for process in played for count in process.running]
    tokens = [count for process in played for count in process.tokens]
    slowest_s = max(process.seconds for process in played)
    deciles = quantiles(tokens, n=10) if len(tokens) > 1 else tokens * 9
    captured = config.engine.vllm.get("max_cudagraph_capture_size")
    if captured is None:
        captured = min(2 * config.engine.places, _CAPTURED_TOKENS)
    return Forecast(
        steps=round(len(running) / len(played)),
        step_s=pace.step_s + pace.token_s * fmean(tokens),
        seconds=slowest_s,
        occupied=fmean(running) / config.engine.places,
        tokens_median=deciles[4],
        tokens_90=deciles[8],
        tokens_most=max(tokens),
        beginning=fmean(count > lines for count, lines in zip(tokens, running, strict=True)),
        beyond=fmean(count > captured for count in tokens),
        waited=1 - fmean(process.seconds for process in played) / slowest_s,
    )


def recorded_batches(path: Path) -> list[list[Trajectory]]:
    """The batch in a file, or those in the last files of a run. Raises ConfigError if nobody typed there."""
    files = [path]
    if path.is_dir():
        files = sorted((path / "rollouts").glob("step_*.jsonl"))[-_FILES:]
    batches = [list(read_jsonl(file)) for file in files]
    if not any(trajectory.lines for batch in batches for trajectory in batch):
        raise ConfigError(f"--like {path}: there is no session with a line; give a run's folder, or a file of rollouts")
    return batches


def places_row(config: Config, path: Path) -> str:
    """What the dry run says of the sampler, with sessions like those in a run or file."""
    batches = recorded_batches(path)
    recorded = config
    if (path / "config.yaml").exists():
        recorded = load_config(str(path / "config.yaml"))
    pace = recorded_pace(batches, recorded.engine.places * recorded.train.processes, recorded.kernel.size)
    groups = [group for batch in batches for group in batch_shapes(batch)]
    seen = forecast(config, groups, pace)
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
        with_more = forecast(config.model_copy(update={"kernel": kernel}), groups, pace)
        if with_more.steps <= _WORTH_SAYING * seen.steps:
            sentences.append(f"kernel.size {more_sessions}: {with_more.steps:,} steps ({with_more.occupied:.0%})")
    if seen.beyond:
        sentences.append(f"{seen.beyond:.1%} are larger than vLLM's largest CUDA graph (max_cudagraph_capture_size)")
    if config.train.processes > 1:
        sentences.append(f"processes wait {seen.waited:.0%} of the time for the slowest of {config.train.processes}")
    return "; ".join(sentences) + f" (with sessions like those of {path})"
