"""Check 7: sampled tokens per second of sessions line by line beside plain generation of as many, at 4B's shape.

    python3 c7_throughput.py default|full|large       # which CUDA graphs

256 sessions of 20 lines, each line at most 40 tokens (or up to a token with a newline: 31 on average with random
weights), 12 tokens of output after each. The weights are made up (`load_format: dummy`). Sessions run as rollouts do,
by a loop in a process of its own, with a real kernel for each, which runs a cheap line after every one that is sampled.
Plain generation (`repl_rl.bench.rollout.plain_seconds`) gets the same prompts and samples as many tokens for each.

`default` is vLLM's choice; `full` captures whole graphs only; `large` captures graphs up to 1,024 tokens, so that steps
which also read the outputs of many lines find one. With `default`, sessions run a second time, with a seed for each
line: what seeds cost (`engine.line_seeds`), by the model runner that vLLM took. And of the sessions as they were
recorded it is played how full the batch was, which stands beside how full it was (`places`).
"""

import asyncio
import os
import sys
import time
from statistics import fmean
from typing import Any

from common import TINY, attempt, config_folder, free, model_folder, record, wait

from repl_rl.config import BudgetConfig, EngineConfig, KernelConfig, ModelConfig, SamplingConfig, SeededSampling
from repl_rl.engine import load_vocabulary, make_engine
from repl_rl.engine.environment import prepare_environment
from repl_rl.rollout.service import RolloutService, start_service
from repl_rl.rollout.setup import RolloutSetup, make_extensions
from repl_rl.rollout.state import Transcript
from repl_rl.run.places import play, recorded_pace, session_shape
from repl_rl.trajectory import Line, LineKind, StopReason, Task, Trajectory

prepare_environment()
os.environ["VLLM_LOGGING_LEVEL"] = "INFO"  # the log says how long compiling and capturing took

SESSIONS, LINES, LINE_TOKENS, OUTPUT, PROMPT = (16, 3, 12, 6, 30) if TINY else (256, 20, 40, 12, 200)
SESSIONS, LINES = int(os.environ.get("DAY_SESSIONS", SESSIONS)), int(os.environ.get("DAY_LINES", LINES))
CONTEXT = 512 if TINY else 2048
GRAPHS: dict[str, dict[str, Any]] = {
    "default": {},
    "full": {"cudagraph_mode": "FULL"},
    "large": {"max_cudagraph_capture_size": 1024},
}


async def sessions(tasks: list[Task], engine: Any, kernels: Any) -> list[Trajectory]:
    """A loop of our own, in place of the product's: a line of a random model is no Python, and would end a session."""
    return await asyncio.gather(*(one(number, task, engine, kernels) for number, task in enumerate(tasks)))


async def one(number: int, task: Task, engine: Any, kernels: Any) -> Trajectory:
    transcript = Transcript([(31 * number + 7 * n) % 600 + 5 for n in range(PROMPT)])
    lines: list[Line] = []
    engine_s = kernel_s = 0.0
    began = time.perf_counter()
    async with engine.slot(CONTEXT) as slot, kernels.session() as kernel:
        for number_of_line in range(LINES):
            asked = time.perf_counter()
            sampled = await slot.sample_line(transcript.ids, LINE_TOKENS, engine.sampling)
            answered = time.perf_counter()
            start, end = transcript.append_sampled(sampled.ids, sampled.logprobs)
            result = await kernel.execute(f"x = {number_of_line}")
            assert not result.error_name
            line_s = time.perf_counter() - answered
            lines.append(Line(start, end, "", LineKind.STATEMENT, duration_s=line_s))
            engine_s += answered - asked
            kernel_s += line_s
            if number_of_line + 1 < LINES:
                transcript.append_output([(97 * number_of_line + n) % 600 + 5 for n in range(OUTPUT)])
    return Trajectory(
        task.id,
        "",
        transcript.prompt_ids,
        tuple(transcript.completion_ids),
        tuple(transcript.sampled_mask),
        tuple(transcript.logprobs),
        StopReason.MAX_LINES,
        tuple(lines),
        version=engine.version,
        duration_s=time.perf_counter() - began,
        engine_s=engine_s,
        kernel_s=kernel_s,
    )


def main(graphs: str) -> None:
    path = model_folder("4B") if TINY else config_folder(os.environ.get("DAY_SIZE", "4B"))
    vocabulary = load_vocabulary(path)
    arguments: dict[str, Any] = {} if TINY else {"load_format": "dummy"}
    if GRAPHS[graphs]:
        arguments["compilation_config"] = GRAPHS[graphs]
    config = EngineConfig(
        backend="vllm", context_tokens=CONTEXT, places=SESSIONS, gpu_memory_utilization=0.8, vllm=arguments
    )
    began = time.time()
    engine = make_engine(path, vocabulary, ModelConfig(path=path, dtype="float32" if TINY else "bfloat16"), config, 0)
    compilation = engine.llm.llm_engine.vllm_config.compilation_config
    sizes = compilation.cudagraph_capture_sizes or []
    record(
        7,
        f"{graphs}: start",
        seconds=time.time() - began,
        graphs=str(compilation.cudagraph_mode),
        largest_graph=max(sizes, default=0),
        captured=len(sizes),
        capacity_tokens=sum(room.capacity for room in engine.admission.rooms),
    )
    setup = RolloutSetup(
        vocabulary,
        context_tokens=CONTEXT,
        budget=BudgetConfig(line_tokens=LINE_TOKENS, lines=LINES, tokens=CONTEXT),
        sampling=SamplingConfig(temperature=1.0),
        kernel=KernelConfig(size=SESSIONS),
        chat=False,
        extensions=make_extensions(sampler=sessions),
    )
    tasks = [Task(f"t{number}", "?", "") for number in range(SESSIONS)]
    try:
        with start_service(engine, setup) as service:
            trajectories: list[Trajectory] = []
            for number in range(3):
                trajectories, rate = one_round(engine, service, tasks, f"{graphs}: sessions", number)
            if graphs == "default":
                plain(engine, trajectories, rate)
                attempt(7, "places", lambda: places(trajectories))
                for number in range(2):
                    seeded = SamplingConfig(temperature=1.0).seeded(f"round {number}")
                    one_round(engine, service, tasks, "seeded: sessions", number, seeded)
        if graphs == "default" and not TINY:
            attempt(7, "reload", lambda: reload(engine))
    finally:
        engine.close()
        free()


def one_round(
    engine: Any,
    service: RolloutService,
    tasks: list[Task],
    name: str,
    number: int,
    sampling: SeededSampling | None = None,
) -> tuple[list[Trajectory], float]:
    """The sessions, and how many tokens were sampled in a second."""
    deadline = time.monotonic() + 60
    while service.kernel_numbers()["alive"] < SESSIONS and time.monotonic() < deadline:
        time.sleep(0.05)
    before, steps, step_lines = engine.prompt_tokens, engine.steps, engine.step_lines
    began = time.perf_counter()
    trajectories = service.generate(tasks, sampling)
    seconds = time.perf_counter() - began
    tokens = sum(each.sampled_tokens for each in trajectories)
    asked, computed = (now - then for now, then in zip(engine.prompt_tokens, before, strict=True))
    record(
        7,
        name,
        round=number,
        tokens=tokens,
        lines=sum(len(each.lines) for each in trajectories),
        seconds=seconds,
        tokens_per_s=tokens / seconds,
        loop_share=service.loop_share,
        reused=1 - computed / asked,
        step_ms=1000 * seconds / (engine.steps - steps),
        occupied=(engine.step_lines - step_lines) / (engine.steps - steps) / SESSIONS,
    )
    return trajectories, tokens / seconds


def places(trajectories: list[Trajectory]) -> None:
    """How full the batch was by what the sessions took: beside `occupied` of the last round."""
    pace = recorded_pace([trajectories], SESSIONS, SESSIONS)
    played = play([session_shape(trajectory) for trajectory in trajectories], SESSIONS, SESSIONS, pace)
    record(
        7,
        "places",
        seconds=played.seconds,
        step_ms=1000 * played.seconds / len(played.running),
        occupied=fmean(played.running) / SESSIONS,
        most_tokens=max(played.tokens),
    )


def plain(engine: Any, trajectories: list[Trajectory], ours: float) -> None:
    from repl_rl.bench.rollout import plain_seconds

    tokens = sum(each.sampled_tokens for each in trajectories)
    for logprobs in (0, None):
        seconds = plain_seconds(engine.llm, trajectories, logprobs=logprobs)
        record(
            7,
            "plain generation",
            logprobs=logprobs is not None,
            seconds=seconds,
            tokens_per_s=tokens / seconds,
            ours_by_plain=ours * seconds / tokens,
        )


def reload(engine: Any) -> None:
    """8 GB of new weights, as the trainer of the same process gives them."""
    import torch
    from common import random_model

    model = random_model(os.environ.get("DAY_SIZE", "4B"), torch.bfloat16)
    named = [(name, weight.data) for name, weight in model.named_parameters()]
    gb = sum(weight.numel() * weight.element_size() for _, weight in named) / 1e9
    for number in range(2):
        wait()
        began = time.perf_counter()
        engine.load_weights(named)
        wait()
        record(7, "reload", round=number, gb=gb, seconds=time.perf_counter() - began)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "default")
