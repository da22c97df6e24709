"""vLLM in this process. A thread of its own steps the engine; every slot has at most one line in the running batch.

Not covered: servers (see the server engine), and vLLM's own multiprocess mode.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from repl_rl.config import EngineConfig, SamplingConfig, SeededSampling
from repl_rl.engine.admission import Admission
from repl_rl.engine.base import Finish, SampledLine
from repl_rl.engine.line_thread import LineThread
from repl_rl.engine.stepping import FinishedLine, VLLMStepper, kv_capacity_tokens, make_stepper
from repl_rl.engine.threaded_engine import ThreadedEngine
from repl_rl.engine.threads import engine_threads
from repl_rl.engine.vllm_loading import load_llm
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import EngineError

_ATTEMPTS = 3
"""How often a line is asked for that vLLM gives up on."""


class VLLMEngine(ThreadedEngine[str]):
    """An `Engine` over `vllm.LLM`. Raises ModelError or ConfigError if the checkpoint can't be served as asked."""

    def __init__(
        self, path: str, vocabulary: Vocabulary, dtype: str, config: EngineConfig, seed: int = 0, **llm_kwargs: Any
    ) -> None:
        self.llm = load_llm(path, dtype, config, seed, llm_kwargs)
        self.stepper = make_stepper(self.llm, vocabulary, keeps_blocks=not config.deterministic)
        self._names = itertools.count()
        lines = _Lines(self, vocabulary, config.deterministic)
        threads = None if torch.cuda.is_available() else engine_threads(_parameters(self.llm))
        thread = LineThread(lines, "vLLM", threads)
        super().__init__(thread, Admission(kv_capacity_tokens(self.llm)), config.context_tokens)

    def make_place(self, tokens: int) -> str:
        return f"slot-{next(self._names)}"

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No step runs inside the block: for changing weights. Raises EngineError if the engine is down."""
        with self._thread.quiet():
            yield

    def close(self) -> None:
        if hasattr(self, "llm"):
            self._thread.close()
            # Left to the garbage collector, vLLM would take down what the next engine of this process has set up.
            self.llm.llm_engine.engine_core.shutdown()
            del self.stepper, self.llm


@dataclass(slots=True)
class _Asked:
    ids: list[int]
    params: SamplingParams
    attempts: int = 1


class _Lines:
    """A `Stepper` of lines on one of vLLM's requests; asks again for a line that vLLM gives up on."""

    def __init__(self, engine: VLLMEngine, vocabulary: Vocabulary, follows_seeds: bool) -> None:
        self._engine = engine
        self._follows_seeds = follows_seeds
        self._stop_ids = vocabulary.stop_ids
        self._asked: dict[str, _Asked] = {}

    @property
    def _stepper(self) -> VLLMStepper:
        return self._engine.stepper

    def add(self, slot: str, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> None:
        params = _params(max_tokens, sampling.temperature, sampling.top_p, sampling.top_k)
        if self._follows_seeds and isinstance(sampling, SeededSampling):
            params = params.clone()
            params.seed = sampling.line_seed(len(ids))
        self._start(slot, _Asked(list(ids), params))

    def step(self) -> Iterator[tuple[str, SampledLine | EngineError]]:
        for line in self._stepper.step():
            asked = self._asked.pop(line.slot)
            if line.reason in ("stop", "length"):
                yield line.slot, self._sampled(line)
            elif asked.attempts < _ATTEMPTS:
                asked.attempts += 1
                self._start(line.slot, asked)
            else:
                text = f"vLLM gave up on a line {_ATTEMPTS} times, the last time with {line.reason!r}"
                yield line.slot, EngineError(text)

    def abort(self, slot: str) -> None:
        self._asked.pop(slot, None)
        self._stepper.abort(slot)

    def leave(self, slot: str) -> None:
        self._stepper.leave(slot)

    def _start(self, slot: str, asked: _Asked) -> None:
        self._asked[slot] = asked
        self._stepper.add(slot, asked.ids, asked.params, self._engine.version)

    def _sampled(self, line: FinishedLine) -> SampledLine:
        if not all(map(math.isfinite, line.logprobs)):
            raise EngineError(f"a token was sampled with log-probability {line.logprobs}: the weights are broken")
        return SampledLine(tuple(line.ids), tuple(line.logprobs), self._finish(line))

    def _finish(self, line: FinishedLine) -> Finish:
        if line.ids[-1] in self._stop_ids:
            return Finish.NEWLINE
        return Finish.LENGTH if line.reason == "length" else Finish.EOS


@lru_cache(maxsize=1024)
def _params(max_tokens: int, temperature: float, top_p: float, top_k: int) -> SamplingParams:
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_tokens=max_tokens,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def _parameters(llm: Any) -> int:
    counts: list[int] = llm.apply_model(lambda model: sum(weights.numel() for weights in model.parameters()))
    return counts[0]
