"""vLLM in this process. A thread of its own steps the engine; every slot has at most one line in the running batch.

`LineStepper` drives the core of a `vllm.LLM` that has our scheduler.

Not covered: servers (see the server engine), and vLLM's own multiprocess mode.
"""

import itertools
import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig, SeededSampling
from repl_rl.engine.base import SAMPLING, Finish, SampledLine, Versions, updated
from repl_rl.engine.threaded import ThreadedEngine
from repl_rl.engine.vllm.llm import LocalLLM
from repl_rl.engine.vllm.scheduler import LineRequest, LineScheduler, StopIds, stop_ids
from repl_rl.engine.vllm.shards import Leader
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import EngineError
from repl_rl.utils.admission import Admission, Room

_ATTEMPTS = 3
"""How often a line is requested if vLLM aborts it or fails."""


@dataclass(eq=False, slots=True)
class LineSlot:
    """A slot, and its line under way or the last one."""

    name: str
    arrival: float | None = None
    """When its first line was asked for."""
    request: Any = None
    """A `LineRequest`. None: there was no line yet, or the last one was aborted."""
    attempt: int = 0
    versions: Versions = ()
    logprobs: list[float] = field(default_factory=list)


class VLLMEngine(LocalLLM, ThreadedEngine[LineSlot]):
    """An `Engine` over `vllm.LLM`. Raises ModelError or ConfigError if the checkpoint can't be served as asked."""

    def __init__(
        self, path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int = 0
    ) -> None:
        LocalLLM.__init__(self, path, model, config, seed)
        self.leader = Leader(self.llm)
        self.stepper = LineStepper(self, vocabulary, config.line_seeds, config.deterministic)
        self._slot_numbers = itertools.count()
        vllm_config = self.llm.llm_engine.vllm_config
        cache_config = self.stepper.scheduler.kv_cache_config
        longest_sequences = get_max_concurrency_for_kv_cache_config(vllm_config, cache_config)
        capacity_tokens = int(longest_sequences * vllm_config.model_config.max_model_len)
        admission = Admission(Room(capacity_tokens), learns=True)
        ThreadedEngine.__init__(self, self.stepper, "vLLM", admission, config.context_tokens, self.threads)

    def make_sequence(self, tokens: int) -> LineSlot:
        return LineSlot(f"slot-{next(self._slot_numbers)}")

    @property
    def prompt_tokens(self) -> tuple[int, int]:
        """Since its start: the tokens that lines were to continue, and how many of these the model was given to
        compute. The others were there from earlier lines, of this trajectory or of one that began alike."""
        computed_tokens = self.stepper.scheduler.computed_tokens - self.stepper.decoded_tokens
        return self.stepper.asked_tokens, computed_tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        with super().paused(), self.leader.held():
            yield

    def close(self) -> None:
        if hasattr(self, "llm"):
            self.end_rest()
            super().close()
            self.leader.close()
            del self.stepper, self._stepper
            self.shut_down()


class LineStepper:
    """A `Stepper` over vLLM's core. Requests a line again if vLLM aborts it or fails.

    vLLM is told that all lines of a slot arrived when its first one did. It then finishes the trajectories that began
    first, as if each were one long sequence. With each line's own arrival time, all trajectories would advance together
    and end at the same time, each holding its kernel until then.

    With `takes_seeds`, lines follow their seeds, if they have any. With `is_deterministic`, each line computes its
    whole prefix, whatever was computed before: keys and values from a batch of another shape differ in their last bits
    on some processors.

    Apart from copying ids, the cost of a line does not grow with its transcript.
    """

    def __init__(
        self, engine: VLLMEngine, vocabulary: Vocabulary, takes_seeds: bool = True, is_deterministic: bool = False
    ) -> None:
        llm = engine.llm.llm_engine
        self._engine = engine
        self._takes_seeds = takes_seeds
        self._line_ends = vocabulary.stop_ids
        self._ends = stop_ids(vocabulary)
        self._client: Any = llm.engine_core
        self._core: Any = self._client.engine_core
        self.scheduler: LineScheduler = self._core.scheduler
        self.scheduler.line_ends = vocabulary.stop_ids
        if is_deterministic:
            self.scheduler.parks_blocks = False
        self._numbers = itertools.count()
        self._running: dict[str, LineSlot] = {}
        """By request id."""
        self.asked_tokens = 0
        """The tokens that lines were to continue, those of each line."""
        self.decoded_tokens = 0
        """Sampled tokens that were given to the model again, to sample the next one of their line."""

    def add(self, slot: LineSlot, ids: list[int], max_tokens: int, sampling: SamplingConfig) -> None:
        settings = [getattr(sampling, name) for name in SAMPLING]
        params = _params(max_tokens, self._ends, *settings)
        seed = None
        if self._takes_seeds and isinstance(sampling, SeededSampling):
            seed = sampling.line_seed(len(ids))
        elif self._engine.leader.has_others:
            seed = secrets.randbits(63)  # each shard draws for itself, and all have to draw the same
        if seed is not None:
            params = params.clone()  # `_params` gives other lines the same object
            params.seed = seed
        self.asked_tokens += len(ids)
        if slot.arrival is None:
            slot.arrival = float(next(self._numbers))
        self._ask(slot, ids, params, attempt=1)

    def step(self) -> Iterator[tuple[LineSlot, SampledLine | EngineError]]:
        for output in self._client.get_output().outputs:
            slot = self._running.get(output.request_id)
            if slot is None:
                continue
            if output.new_logprobs is not None:
                slot.logprobs.extend(output.new_logprobs.logprobs[:, 0].tolist())
            if output.finish_reason is None:
                continue
            del self._running[output.request_id]
            request = slot.request
            self._count(request)
            reason = str(output.finish_reason)
            ids = tuple(request.output_token_ids)
            if reason in ("stop", "length"):
                if not all(map(math.isfinite, slot.logprobs)):
                    raise EngineError(
                        f"a token was sampled with log-probability {slot.logprobs}: the weights are broken"
                    )

                if ids[-1] in self._line_ends:
                    finish = Finish.NEWLINE
                elif reason == "length":
                    finish = Finish.LENGTH
                else:
                    finish = Finish.EOS
                yield slot, SampledLine(ids, tuple(slot.logprobs), finish, slot.versions)
            elif slot.attempt < _ATTEMPTS:
                self._ask(slot, request.prompt_token_ids, request.sampling_params, slot.attempt + 1)
            else:
                yield slot, EngineError(f"vLLM gave up on a line {_ATTEMPTS} times, the last time with {reason!r}")

    def abort(self, slot: LineSlot) -> None:
        name = slot.request.request_id
        del self._running[name]
        self._count(slot.request)
        slot.request = None
        self._core.abort_requests([name])

    def leave(self, slot: LineSlot) -> None:
        self.scheduler.release(slot.name)

    def _count(self, request: LineRequest) -> None:
        """Count the decoded tokens of a line that ends. If a step is in flight on a GPU, it was given the last token
        too."""
        self.decoded_tokens += max(0, request.num_computed_tokens - request.num_prompt_tokens)

    def update(self, version: int) -> None:
        for slot in self._running.values():
            slot.versions = updated(slot.versions, slot.request.num_output_tokens, version)
        # Running lines compute their keys and values again.
        self._engine.llm.reset_prefix_cache(reset_running_requests=True)
        for slot in self._running.values():
            request = slot.request
            request.cache_salt = self._salt
            request.block_hashes = []
            request.update_block_hashes()

    @property
    def _salt(self) -> str:
        """Keeps what was cached with other weights apart."""
        return f"w{self._engine.version}"

    def _ask(self, slot: LineSlot, ids: list[int], params: SamplingParams, attempt: int) -> None:
        # If blocks are parked, they are found by the slot's name. Otherwise each line has a new name, because vLLM
        # gives the tokens of a step in flight to whichever request has the id by then.
        name = slot.name if self.scheduler.parks_blocks else f"{slot.name}/{next(self._numbers)}"
        request = LineRequest(
            name, ids, params, None, arrival_time=slot.arrival, cache_salt=self._salt, lora_request=self._engine.adapter
        )
        last = slot.request
        has_same_weights = last is not None and last.cache_salt == request.cache_salt
        if has_same_weights and ids[: last.num_tokens] == last._all_token_ids:
            request.block_hashes = last.block_hashes  # only new blocks are hashed
        else:
            self.scheduler.release(name)  # a parked line has other tokens then, or was computed with other weights
        # Set after the hashes: with a hasher, `Request` would hash the whole transcript when it is made.
        request._block_hasher = self._core.request_block_hasher
        request.update_block_hashes()
        slot.request = request
        slot.attempt = attempt
        slot.versions = ((0, self._engine.version),)
        slot.logprobs = []
        self._running[name] = slot
        self.scheduler.add_line(request)


@lru_cache(maxsize=1024)
def _params(max_tokens: int, ends: StopIds, *settings: float) -> SamplingParams:
    params = SamplingParams(
        **dict(zip(SAMPLING, settings, strict=True)),
        max_tokens=max_tokens,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )
    params.stop_token_ids = ends  # by name, vLLM would make a list of them
    return params
