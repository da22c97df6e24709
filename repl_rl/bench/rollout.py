"""`repl-rl bench rollout`: rollouts of nano compared with plain generation, in one run.

One vLLM engine serves both sides, which take turns. The kernels are real and sandboxed. A submission does not end a
trajectory here, so that each one types `lines` lines (or reaches another of its limits).

- ratio: sampled tokens per second of the rollouts over those of vLLM's own `generate`, which samples the same number of
  tokens for each of the same prompts and never stops. The start of kernels that are ready when the clock starts is not
  measured; the others start meanwhile. Medians over the rounds.

`generate` computes with all cores, vLLM's default; with a small model, our engine uses one core and leaves the others
to the kernels. `python -m studies.trl_tools` compares them with TRL's own tool loop.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from repl_rl.bench.settings import LINE_S, RolloutSettings, Say
from repl_rl.config import BudgetConfig, EngineConfig, KernelConfig, ModelConfig, SamplingConfig
from repl_rl.dialect import Turn
from repl_rl.engine import Vocabulary, load_vocabulary
from repl_rl.engine.environment import prepare_environment, require_vllm
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout import (
    Extensions,
    Guest,
    GuestSession,
    MakeRunner,
    RolloutService,
    RolloutSetup,
    Session,
    TurnResult,
    Wait,
    start_service,
)
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import StopReason, Task, Trajectory
from repl_rl.utils.machine import machine

if TYPE_CHECKING:
    from repl_rl.engine.vllm.engine import VLLMEngine

CONTEXT_TOKENS = 6144
"""nano was trained on much shorter contexts and may type nonsense, which does not matter for what is measured here."""
SAMPLING = SamplingConfig(temperature=1.0)


class OpenEnded(Guest):
    """For measurements that need a certain number of lines: a submission does not end a trajectory. And its cells take
    longer, as they do with slow tools."""

    latency_s: float = 0.0
    """Added to each cell."""

    async def ran(self, session: GuestSession, turn: Turn, ran: TurnResult) -> TurnResult:
        assert isinstance(session, Session)  # a guest may only end one, and this measurement goes on with it
        if self.latency_s:
            with session.clock.waiting(Wait.KERNEL):
                await asyncio.sleep(self.latency_s * len(ran.cells))
        if session.stop is StopReason.ANSWER:
            is_last = session.start.spent.lines + len(session.lines) + 1 >= session.budget.lines
            session.answer, session.stop = None, StopReason.MAX_LINES if is_last else None
        return ran


def measure(settings: RolloutSettings, say: Say) -> dict[str, Any]:
    """Run the benchmark; returns the content of its JSON file. Raises DependencyError or SandboxError if it can't
    run."""
    require_vllm()
    prepare_environment()
    say("loading nano into vLLM")
    vocabulary = load_vocabulary(str(NANO_PATH))
    engine = open_nano(vocabulary, settings.concurrency)
    try:
        return _against_plain(settings, engine, vocabulary, say) | machine()
    finally:
        engine.close()


def open_nano(vocabulary: Vocabulary, places: int) -> VLLMEngine:
    """nano in vLLM, with a context that holds any session here."""
    from repl_rl.engine.vllm.engine import VLLMEngine

    overrides = {"hf_overrides": {"max_position_embeddings": CONTEXT_TOKENS}}
    config = EngineConfig(context_tokens=CONTEXT_TOKENS, places=places, vllm=overrides)
    return VLLMEngine(str(NANO_PATH), vocabulary, ModelConfig(), config)


def _against_plain(settings: RolloutSettings, engine: VLLMEngine, vocabulary: Vocabulary, say: Say) -> dict[str, Any]:
    tasks = make_tasks(None, settings.trajectories, seed=3, split="heldout")
    rounds: list[dict[str, float]] = []
    with open_ended(settings.line_tokens, engine, vocabulary, settings.lines, settings.kernels) as service:
        wait_until_ready(service, settings.kernels)
        service.generate(tasks)
        for number in range(settings.rounds):
            say(f"rollouts and plain generation, round {number + 1} of {settings.rounds}")
            made, repl_s = timed(service, tasks, settings.kernels)
            rounds.append(
                {
                    "repl_s": repl_s,
                    "plain_s": plain_seconds(engine.llm, made, logprobs=0),
                    "tokens": sum(trajectory.sampled_tokens for trajectory in made),
                    "lines": sum(len(trajectory.lines) for trajectory in made),
                }
            )

    def per_s(count: str, seconds: str) -> float:
        return statistics.median(each[count] / each[seconds] for each in rounds)

    ratios = [each["plain_s"] / each["repl_s"] for each in rounds]
    return {
        "concurrency": settings.concurrency,
        "trajectories": settings.trajectories,
        "kernels": settings.kernels,
        "sampled_tokens": rounds[-1]["tokens"],
        "lines": rounds[-1]["lines"],
        "plain_tok_s": per_s("tokens", "plain_s"),
        "repl_tok_s": per_s("tokens", "repl_s"),
        "ratio": statistics.median(ratios),
        "ratio_per_round": ratios,
        "lines_per_s": per_s("lines", "repl_s"),
        "seconds_per_trajectory": {
            name: statistics.fmean(getattr(trajectory, name) for trajectory in made)
            for name in ("engine_s", "kernel_s", "queue_s", "own_s")
        },
    }


def plain_seconds(llm: Any, trajectories: Sequence[Trajectory], logprobs: int | None) -> float:
    """Seconds that vLLM's own `generate` takes for the same prompts and the same number of tokens after each."""
    from vllm import SamplingParams

    tokens = [each.sampled_tokens for each in trajectories]
    prompts = [{"prompt_token_ids": list(each.prompt_ids)} for each in trajectories]
    params = [
        SamplingParams(
            temperature=SAMPLING.temperature, max_tokens=count, ignore_eos=True, detokenize=False, logprobs=logprobs
        )
        for count in tokens
    ]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    assert [len(output.outputs[0].token_ids) for output in outputs] == tokens
    return seconds


def open_ended(
    line_tokens: int,
    engine: Any,
    vocabulary: Vocabulary,
    lines: int,
    kernels: int,
    latency_s: float = 0.0,
    make_runner: MakeRunner | None = None,
) -> RolloutService:
    """A service whose trajectories type `lines` lines, whatever they submit."""
    setup = RolloutSetup(
        vocabulary,
        context_tokens=CONTEXT_TOKENS,
        budget=BudgetConfig(line_tokens=line_tokens, lines=lines, tokens=CONTEXT_TOKENS, seconds=3600),
        sampling=SAMPLING,
        at_once=kernels,
        kernel=KernelConfig(size=kernels, line_s=LINE_S),
        extensions=Extensions(guests=(type("Slowed", (OpenEnded,), {"latency_s": latency_s}),)),
    )
    return start_service(engine, setup, make_runner=make_runner)


def timed(service: RolloutService, tasks: Sequence[Task], kernels: int) -> tuple[list[Trajectory], float]:
    """The tasks' trajectories, and how many seconds they took, with kernels that are up before and afterwards."""
    wait_until_ready(service, kernels)
    started = time.perf_counter()
    made = service.generate(tasks)
    seconds = time.perf_counter() - started
    wait_until_ready(service, kernels)
    return made, seconds


def wait_until_ready(service: RolloutService, kernels: int) -> None:
    """Wait until the kernels are up, as they are in training, where they start while the trainer computes."""
    deadline = time.monotonic() + 60
    while service.kernel_numbers()["alive"] < kernels and time.monotonic() < deadline:
        time.sleep(0.05)
