"""vLLM in this process. A thread of its own steps the engine; every line of every trajectory is one request.

Requests join and leave the running batch at any step, so no trajectory waits for another one's interpreter. A line is
asked for with all ids so far; the prefix cache makes that cost the new tokens and at most one block.

Not covered: several engines, servers (see the server engine), and vLLM's own multiprocess mode.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from repl_rl.config import EngineConfig, SamplingConfig
from repl_rl.engine.base import Finish, SampledLine, Seat
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import EngineError, ModelError

_CPU_BLOCK_TOKENS = 32
"""vLLM's own default on a CPU is 128: each line would recompute up to that many tokens."""


@dataclass(slots=True)
class _Request:
    id: str
    ids: list[int]
    params: SamplingParams
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[SampledLine]


class VLLMEngine:
    """An `Engine` over `vllm.LLM`."""

    def __init__(
        self, path: str, vocabulary: Vocabulary, dtype: str, config: EngineConfig, seed: int = 0, **llm_kwargs: Any
    ) -> None:
        self.version = 0
        self.llm = _build_llm(path, dtype, config, seed, llm_kwargs)
        self._vocabulary = vocabulary
        self._stop_ids = sorted(vocabulary.newline_ids)
        self._waiting: deque[_Request] = deque()
        self._cancelled: deque[str] = deque()
        self._running: dict[str, _Request] = {}
        self._wake = threading.Condition()
        self._numbers = itertools.count()
        self._closing = False
        self._failure: BaseException | None = None
        self._params = lru_cache(maxsize=1024)(self._make_params)
        self._thread = threading.Thread(target=self._step_forever, name="vllm-engine", daemon=True)
        self._thread.start()

    @asynccontextmanager
    async def seat(self, tokens: int) -> AsyncIterator[Seat]:
        yield self

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        loop = asyncio.get_running_loop()
        request = _Request(
            f"line-{next(self._numbers)}", list(ids), self._params(max_tokens, sampling), loop, loop.create_future()
        )
        with self._wake:
            self._raise_if_down()
            self._waiting.append(request)
            self._wake.notify()
        try:
            return await request.future
        except asyncio.CancelledError:
            with self._wake:
                self._cancelled.append(request.id)
                self._wake.notify()
            raise

    def close(self) -> None:
        if self._closing:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout=30)
        del self.llm

    def _make_params(self, max_tokens: int, sampling: SamplingConfig) -> SamplingParams:
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=max_tokens,
            stop_token_ids=self._stop_ids,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )

    def _raise_if_down(self) -> None:
        if self._failure is not None:
            raise EngineError(f"vLLM failed earlier: {self._failure!r}") from self._failure
        if self._closing:
            raise EngineError("the engine is closed")

    def _step_forever(self) -> None:
        try:
            while self._admit():
                for output in self.llm.llm_engine.step():
                    if output.finished:
                        self._deliver(output)
        except BaseException as error:  # noqa: BLE001 - whatever it is, every waiting rollout has to hear of it
            self._fail(error)

    def _admit(self) -> bool:
        """Hand waiting requests to vLLM; sleep while there is nothing to step. False once closed."""
        with self._wake:
            while not (self._waiting or self._cancelled or self._running or self._closing):
                self._wake.wait()
            waiting, self._waiting = self._waiting, deque()
            cancelled, self._cancelled = self._cancelled, deque()
        for request in waiting:
            self._running[request.id] = request
            prompt = {"prompt_token_ids": request.ids, "cache_salt": f"w{self.version}"}
            self.llm.llm_engine.add_request(request.id, prompt, request.params)
        gone = [identity for identity in cancelled if self._running.pop(identity, None)]
        if gone:
            self.llm.llm_engine.abort_request(gone)
        return not self._closing

    def _deliver(self, output: Any) -> None:
        request = self._running.pop(output.request_id, None)
        if request is None:
            return
        try:
            line = self._to_line(request, output)
        except EngineError as error:
            _resolve(request, error)
        else:
            _resolve(request, line)

    def _to_line(self, request: _Request, output: Any) -> SampledLine:
        if list(output.prompt_token_ids) != request.ids:
            raise EngineError(f"vLLM continued other ids than it was given for {request.id}")
        completion = output.outputs[0]
        ids = tuple(completion.token_ids)
        logprobs = tuple(step[token].logprob for step, token in zip(completion.logprobs, ids, strict=True))
        if not all(math.isfinite(value) for value in logprobs):
            raise EngineError(f"vLLM sampled a token with log-probability {logprobs}: the weights are broken")
        return SampledLine(ids, logprobs, self._finish(ids[-1], completion.finish_reason))

    def _finish(self, last_id: int, finish_reason: str | None) -> Finish:
        if last_id in self._vocabulary.newline_ids:
            return Finish.NEWLINE
        return Finish.LENGTH if finish_reason == "length" else Finish.EOS

    def _fail(self, error: BaseException) -> None:
        with self._wake:
            self._failure = error
            lost = [*self._running.values(), *self._waiting]
        for request in lost:
            _resolve(request, EngineError(f"vLLM failed: {error!r}"))


def _resolve(request: _Request, result: SampledLine | EngineError) -> None:
    def settle() -> None:
        if request.future.done():
            return
        if isinstance(result, EngineError):
            request.future.set_exception(result)
        else:
            request.future.set_result(result)

    if not request.loop.is_closed():
        request.loop.call_soon_threadsafe(settle)


def _build_llm(path: str, dtype: str, config: EngineConfig, seed: int, extra: dict[str, Any]) -> LLM:
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        # oneDNN repacks linear weights when the model is built, and `load_weights` can't fill them afterwards.
        import vllm._custom_ops as custom_ops

        custom_ops._supports_onednn = False
    device = {"block_size": _CPU_BLOCK_TOKENS} if on_cpu else {"gpu_memory_utilization": config.gpu_memory_utilization}
    try:
        return LLM(
            model=path,
            dtype=dtype,
            seed=seed,
            max_model_len=config.context_tokens,
            max_num_seqs=config.places,
            max_num_batched_tokens=max(4096, config.context_tokens),
            enforce_eager=on_cpu,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **device,
            **extra,
        )
    except (ValueError, OSError, RuntimeError) as error:
        raise ModelError(f"vLLM can't load {path!r}: {error}") from error
