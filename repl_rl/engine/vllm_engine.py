"""vLLM in this process. A thread of its own steps the engine; every seat has at most one line in the running batch.

Lines join and leave the batch at any step, so no trajectory waits for another one's interpreter. The thread is spoken
to through a mailbox and answers once per step, all finished lines together.

Not covered: servers (see the server engine), and vLLM's own multiprocess mode.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any

import torch
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from repl_rl.config import EngineConfig, SamplingConfig
from repl_rl.engine.admission import Admission, Reservation
from repl_rl.engine.base import Finish, SampledLine, Seat
from repl_rl.engine.stepping import FinishedLine, kv_capacity_tokens, make_stepper
from repl_rl.engine.threads import engine_threads, limit_openmp
from repl_rl.engine.vllm_loading import load_llm
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import ConfigError, EngineError

_ATTEMPTS = 3
"""How often a line is asked for that vLLM gives up on."""


@dataclass(eq=False, slots=True)
class _Call:
    """One line that somebody waits for."""

    seat: str
    ids: list[int]
    params: SamplingParams
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[SampledLine]
    attempts: int = 1


class VLLMEngine:
    """An `Engine` over `vllm.LLM`. Raises ModelError or ConfigError if the checkpoint can't be served as asked."""

    def __init__(
        self, path: str, vocabulary: Vocabulary, dtype: str, config: EngineConfig, seed: int = 0, **llm_kwargs: Any
    ) -> None:
        self.version = 0
        self.llm = load_llm(path, dtype, config, seed, llm_kwargs)
        self.admission = Admission(kv_capacity_tokens(self.llm))
        self._context_tokens = config.context_tokens
        self._vocabulary = vocabulary
        self._stepper = make_stepper(self.llm, vocabulary)
        self._mailbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._running: dict[str, _Call] = {}
        self._between_steps = threading.Lock()
        self._numbers = itertools.count()
        self._closing = False
        self._failure: BaseException | None = None
        self._params = lru_cache(maxsize=1024)(_make_params)
        self._thread = threading.Thread(target=self._step_forever, name="vllm-engine", daemon=True)
        self._thread.start()

    @asynccontextmanager
    async def seat(self, tokens: int) -> AsyncIterator[Seat]:
        """Raises ConfigError for a trajectory that is longer than the engine's context."""
        if tokens > self._context_tokens:
            raise ConfigError(
                f"a trajectory of {tokens} tokens does not fit into engine.context_tokens {self._context_tokens}; "
                "raise it, or lower budget.tokens"
            )
        async with self.admission.reserve(tokens) as reservation:
            name = f"seat-{next(self._numbers)}"
            try:
                yield _VLLMSeat(self, name, reservation)
            finally:
                self._mailbox.put(lambda: self._stepper.leave(name))

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No step runs inside the block: for changing weights. What has left before is gone."""
        with self._between_steps:
            self._read_mailbox()
            yield

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._mailbox.put(_nothing)
        self._thread.join(timeout=30)
        self._fail(EngineError("the engine is closed"))
        del self._stepper, self.llm

    async def _sample(self, seat: str, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        if max_tokens < 1 or len(ids) + max_tokens > self._context_tokens:
            raise ConfigError(
                f"a line of at most {max_tokens} tokens behind {len(ids)} does not fit: it needs one token or more, "
                f"and engine.context_tokens is {self._context_tokens}"
            )
        self._raise_if_down()
        loop = asyncio.get_running_loop()
        call = _Call(seat, list(ids), self._params(max_tokens, sampling), loop, loop.create_future())
        self._mailbox.put(lambda: self._start(call))
        try:
            return await call.future
        except asyncio.CancelledError:
            self._mailbox.put(lambda: self._cancel(call))
            raise

    def _raise_if_down(self) -> None:
        if self._failure is not None:
            raise EngineError(f"vLLM failed earlier: {self._failure!r}") from self._failure
        if self._closing:
            raise EngineError("the engine is closed")

    def _step_forever(self) -> None:
        """The engine's thread; everything below runs in it."""
        try:
            self._settle_in()
            while not self._closing:
                first = None if self._running else self._mailbox.get()
                with self._between_steps:
                    if first is not None:
                        first()
                    self._read_mailbox()
                    if self._running:
                        self._deliver(self._stepper.step())
        except BaseException as error:  # noqa: BLE001 - whatever it is, every waiting rollout has to hear of it
            self._failure = error
            self._fail(EngineError(f"vLLM failed: {error!r}"))

    def _settle_in(self) -> None:
        threads = None if torch.cuda.is_available() else engine_threads(_parameters(self.llm))
        if threads is not None:
            limit_openmp(threads)

    def _read_mailbox(self) -> None:
        while True:
            try:
                message = self._mailbox.get_nowait()
            except Empty:
                return
            message()

    def _start(self, call: _Call) -> None:
        self._running[call.seat] = call
        self._stepper.add(call.seat, call.ids, call.params, self.version)

    def _cancel(self, call: _Call) -> None:
        if self._running.get(call.seat) is call:
            del self._running[call.seat]
            self._stepper.abort(call.seat)

    def _deliver(self, finished: Iterator[FinishedLine]) -> None:
        settled: dict[asyncio.AbstractEventLoop, list[tuple[_Call, SampledLine | EngineError]]] = {}
        for line in finished:
            call = self._running.pop(line.seat)
            if line.reason in ("stop", "length"):
                settled.setdefault(call.loop, []).append((call, self._sampled(line)))
            elif call.attempts < _ATTEMPTS:
                call.attempts += 1
                self._start(call)
            else:
                error = EngineError(f"vLLM gave up on a line {_ATTEMPTS} times, the last time with {line.reason!r}")
                settled.setdefault(call.loop, []).append((call, error))
        for loop, results in settled.items():
            _settle(loop, results)

    def _sampled(self, line: FinishedLine) -> SampledLine:
        if not all(map(math.isfinite, line.logprobs)):
            raise EngineError(f"a token was sampled with log-probability {line.logprobs}: the weights are broken")
        return SampledLine(tuple(line.ids), tuple(line.logprobs), self._finish(line))

    def _finish(self, line: FinishedLine) -> Finish:
        if line.ids[-1] in self._vocabulary.newline_ids:
            return Finish.NEWLINE
        return Finish.LENGTH if line.reason == "length" else Finish.EOS

    def _fail(self, error: EngineError) -> None:
        """Tell everybody who waits, and whoever comes with what is in the mailbox."""
        while not self._mailbox.empty():
            self._mailbox.get_nowait()
        for call in self._running.values():
            _settle(call.loop, [(call, error)])
        self._running.clear()


class _VLLMSeat:
    """A `Seat` at a `VLLMEngine`."""

    def __init__(self, engine: VLLMEngine, name: str, reservation: Reservation) -> None:
        self._engine = engine
        self._name = name
        self._reservation = reservation

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        line = await self._engine._sample(self._name, ids, max_tokens, sampling)
        self._engine.admission.grow(self._reservation, len(ids) + len(line.ids))
        return line


def _make_params(max_tokens: int, sampling: SamplingConfig) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=max_tokens,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def _parameters(llm: Any) -> int:
    counts: list[int] = llm.apply_model(lambda model: sum(weights.numel() for weights in model.parameters()))
    return counts[0]


def _settle(loop: asyncio.AbstractEventLoop, results: Sequence[tuple[_Call, SampledLine | EngineError]]) -> None:
    """Hand results over to the loop of those who wait, in one go."""

    def settle() -> None:
        for call, result in results:
            if call.future.done():
                continue
            if isinstance(result, EngineError):
                call.future.set_exception(result)
            else:
                call.future.set_result(result)

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


def _nothing() -> None:
    """A message that only wakes the thread."""
