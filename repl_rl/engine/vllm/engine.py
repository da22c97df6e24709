"""vLLM in this process. A thread of its own steps the engine; every slot has at most one line in the running batch.

There are two ways to drive the `vllm.LLM`: `LineStepper` talks to the engine core and its `LineScheduler`;
`RequestStepper` is for an `LLM` without our scheduler, and uses vLLM's public `add_request` and `step` with
`stop_token_ids`. A slot is identified by its name.

Not covered: servers (see the server engine), and vLLM's own multiprocess mode.
"""

from __future__ import annotations

import itertools
import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.request import Request

from repl_rl.config import EngineConfig, ModelConfig, SamplingConfig, SeededSampling
from repl_rl.engine.base import Finish, SampledLine, Versions, updated
from repl_rl.engine.environment import engine_threads
from repl_rl.engine.threaded import ThreadedEngine
from repl_rl.engine.vllm.scheduler import AsyncLineScheduler, LineRequest, LineScheduler, stop_table
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import EngineError, ModelError
from repl_rl.utils.admission import Admission, Room

_ATTEMPTS = 3
"""How often a line is requested if vLLM aborts it or fails."""
_CPU_BLOCK_TOKENS = 32
"""vLLM's default on a CPU is 128. A line whose blocks were given back may compute up to a block of tokens again."""


class VLLMEngine(ThreadedEngine[str]):
    """An `Engine` over `vllm.LLM`. Raises ModelError or ConfigError if the checkpoint can't be served as asked."""

    def __init__(
        self,
        path: str,
        vocabulary: Vocabulary,
        model: ModelConfig,
        config: EngineConfig,
        seed: int = 0,
        **llm_kwargs: Any,
    ) -> None:
        self.llm = load_llm(path, model.dtype, config, seed, llm_kwargs)
        self.adapter: LoRARequest | None = None
        """What lines are sampled with, beside the weights."""
        self.stepper = make_stepper(self, vocabulary, is_deterministic=config.deterministic)
        self._names = itertools.count()
        (parameters,) = self.llm.apply_model(lambda model: sum(weights.numel() for weights in model.parameters()))
        threads = None if torch.cuda.is_available() else engine_threads(parameters)
        super().__init__(
            self.stepper,
            "vLLM",
            Admission(Room(_kv_capacity_tokens(self.llm)), learns=True),
            config.context_tokens,
            threads,
        )

    def make_sequence(self, tokens: int) -> str:
        return f"slot-{next(self._names)}"

    @property
    def prompt_tokens(self) -> tuple[int, int]:
        return self.stepper.prompt_tokens

    @property
    def takes_adapters(self) -> bool:
        """Whether vLLM was started with `enable_lora`."""
        return self.llm.llm_engine.vllm_config.lora_config is not None

    def load_weights(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load weights, named as in the checkpoint. Lines under way go on with them from their next token on."""
        with self.paused():
            self.reload(named_weights)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self.update()

    def reload(self, named_weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load weights without counting a version. Only inside of `paused`.

        vLLM packs weights again as its kernels want them, and keeps what it is given until it has all of a layer.
        """
        own = ((name, weight.clone()) for name, weight in named_weights)
        self.llm.llm_engine.model_executor.driver_worker.reload_weights(weights_iterator=own)

    def load_adapter(self, folder: str) -> None:
        """Sample with PEFT's adapter in `folder` from now on. Raises what vLLM does for one that it doesn't support."""
        load = LoRARequest("trained", 1, folder, load_inplace=True)
        self.llm.llm_engine.model_executor.driver_worker.add_lora(load)
        self.adapter = LoRARequest("trained", 1, folder)

    def close(self) -> None:
        if hasattr(self, "llm"):
            super().close()
            # Left to the garbage collector, vLLM would take down what the next engine of this process has set up.
            self.llm.llm_engine.engine_core.shutdown()
            del self.stepper, self._stepper, self.llm


def load_llm(path: str, dtype: str, config: EngineConfig, seed: int, extra: dict[str, Any]) -> LLM:
    """Load the checkpoint at `path` with our scheduler, replaceable weights and, on a CPU, small blocks.

    `extra` are further arguments of `LLM`. Raises ModelError with vLLM's reason.
    """
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        # oneDNN repacks linear weights when the model is built, and `load_weights` can't fill them afterwards.
        import vllm._custom_ops as custom_ops

        custom_ops._supports_onednn = False
        # The sampler's few compiled functions need a C++ compiler and a cache that all processes of a user share; two
        # installations of torch that fill it at once corrupt it. Eager functions cost nothing here.
        type(current_platform).simple_compile_backend = "eager"
    device = {"block_size": _CPU_BLOCK_TOKENS} if on_cpu else {"gpu_memory_utilization": config.gpu_memory_utilization}
    arguments: dict[str, Any] = {
        "model": path,
        "dtype": dtype,
        "seed": seed,
        "max_model_len": config.context_tokens,
        "max_num_seqs": config.places,
        "max_num_batched_tokens": max(4096, config.context_tokens),
        "enforce_eager": on_cpu,
        "enable_prefix_caching": not config.deterministic,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "scheduling_policy": "priority",  # with equal priorities: by arrival, and a line arrives when its slot did
        "scheduler_cls": LineScheduler if on_cpu else AsyncLineScheduler,
    }
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # without a GPU, vLLM asks for Triton in vain
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.distributed.reduce_op` is deprecated", FutureWarning)
            return LLM(**{**arguments, **device, **config.vllm, **extra})
    except (ValueError, OSError, RuntimeError) as error:
        raise ModelError(f"vLLM can't load {path!r}: {error}") from error


class VLLMLine(NamedTuple):
    """A line as vLLM returned it. `reason` is vLLM's finish reason: stop, length, abort or error."""

    slot: str
    ids: list[int]
    logprobs: list[float]
    reason: str


@dataclass(slots=True)
class _Asked:
    ids: list[int]
    params: SamplingParams
    attempts: int = 0
    versions: Versions = ()


class VLLMStepper(ABC):
    """A `Stepper` whose sequences are names of slots. Requests a line again if vLLM aborts it or fails.

    vLLM is told that all lines of a slot arrived when its first one did. It then finishes the trajectories that began
    first, as if each were one long sequence. With each line's own arrival time, all trajectories would advance together
    and end at the same time, each holding its kernel until then.
    """

    def __init__(self, engine: VLLMEngine, vocabulary: Vocabulary, follows_seeds: bool) -> None:
        self._engine = engine
        self._stop_ids = vocabulary.stop_ids
        self._follows_seeds = follows_seeds
        self._asked: dict[str, _Asked] = {}
        self._numbers = itertools.count()
        self._arrivals: dict[str, float] = {}
        self.asked_tokens = 0
        """The tokens that lines were to continue, those of each line."""

    @property
    @abstractmethod
    def prompt_tokens(self) -> tuple[int, int]:
        """`asked_tokens`, and how many of them were computed."""

    def add(self, slot: str, ids: list[int], max_tokens: int, sampling: SamplingConfig) -> None:
        params = _params(max_tokens, sampling.temperature, sampling.top_p, sampling.top_k)
        if self._follows_seeds and isinstance(sampling, SeededSampling):
            params = params.clone()
            params.seed = sampling.line_seed(len(ids))
        self.asked_tokens += len(ids)
        if slot not in self._arrivals:
            self._arrivals[slot] = float(next(self._numbers))
        self._ask(slot, _Asked(ids, params))

    def step(self) -> Iterator[tuple[str, SampledLine | EngineError]]:
        for slot, ids, logprobs, reason in self.step_vllm():
            asked = self._asked.pop(slot)
            if reason in ("stop", "length"):
                if not all(map(math.isfinite, logprobs)):
                    raise EngineError(f"a token was sampled with log-probability {logprobs}: the weights are broken")
                is_line = ids[-1] in self._stop_ids
                finish = Finish.NEWLINE if is_line else Finish.LENGTH if reason == "length" else Finish.EOS
                yield slot, SampledLine(tuple(ids), tuple(logprobs), finish, asked.versions)
            elif asked.attempts < _ATTEMPTS:
                self._ask(slot, asked)
            else:
                yield slot, EngineError(f"vLLM gave up on a line {_ATTEMPTS} times, the last time with {reason!r}")

    def abort(self, slot: str) -> None:
        if self._asked.pop(slot, None) is not None:
            self.abort_request(slot)

    def leave(self, slot: str) -> None:
        self._arrivals.pop(slot, None)

    def _ask(self, slot: str, asked: _Asked) -> None:
        asked.attempts += 1
        asked.versions = ((0, self._engine.version),)
        self._asked[slot] = asked
        self.request(slot, asked.ids, asked.params, self._arrivals[slot], self.salt)

    @property
    def salt(self) -> str:
        """Keeps what was cached with other weights apart."""
        return f"w{self._engine.version}"

    def update(self, version: int) -> None:
        for slot, asked in self._asked.items():
            asked.versions = updated(asked.versions, self.request_of(slot).num_output_tokens, version)
        # Running lines compute their keys and values again.
        self._engine.llm.reset_prefix_cache(reset_running_requests=True)

    @abstractmethod
    def request_of(self, slot: str) -> Request:
        """vLLM's own record of the line under way."""

    @abstractmethod
    def request(self, slot: str, ids: list[int], params: SamplingParams, arrival: float, salt: str) -> None:
        """Ask vLLM for the line that follows `ids`."""

    @abstractmethod
    def step_vllm(self) -> Iterator[VLLMLine]:
        """Let vLLM sample one token for every running line."""

    @abstractmethod
    def abort_request(self, slot: str) -> None:
        """Have vLLM drop the line under way."""


@dataclass(slots=True)
class _Running:
    slot: str
    request: LineRequest
    logprobs: list[float] = field(default_factory=list)


class LineStepper(VLLMStepper):
    """Drives the engine core. Apart from copying ids, the cost of a line does not grow with its transcript."""

    def __init__(self, engine: VLLMEngine, vocabulary: Vocabulary, follows_seeds: bool = False) -> None:
        super().__init__(engine, vocabulary, follows_seeds)
        llm = engine.llm.llm_engine
        self._client: Any = llm.engine_core
        self._core: Any = self._client.engine_core
        self._scheduler: LineScheduler = self._core.scheduler
        self._scheduler.stop_table = stop_table(vocabulary, llm.model_config.get_vocab_size())
        self._names: dict[str, str] = {}
        """By slot: the request id of its last line."""
        self._running: dict[str, _Running] = {}
        """By request id."""
        self._past: dict[str, LineRequest] = {}
        """By slot: its last line, whose block hashes the next one continues."""
        self._decoded_tokens = 0
        """Sampled tokens that were given to the model again, to sample the next one of their line."""

    @property
    def prompt_tokens(self) -> tuple[int, int]:
        return self.asked_tokens, self._scheduler.computed_tokens - self._decoded_tokens

    def request(self, slot: str, ids: list[int], params: SamplingParams, arrival: float, salt: str) -> None:
        # If blocks are parked, they are found by the slot's name. Otherwise each line has a new name, because vLLM
        # gives the tokens of a step in flight to whichever request has the id by then.
        name = slot if self._scheduler.parks_blocks else f"{slot}/{next(self._numbers)}"
        adapter = self._engine.adapter
        request = LineRequest(name, ids, params, None, arrival_time=arrival, cache_salt=salt, lora_request=adapter)
        past = self._past.pop(slot, None)
        if past is not None and _goes_on_from(request, past):
            request.block_hashes = past.block_hashes
        else:
            self._scheduler.release(name)
        request._block_hasher = self._core.request_block_hasher
        request.update_block_hashes()
        self._running[name] = _Running(slot, request)
        self._names[slot] = name
        self._scheduler.add_line(request)

    def step_vllm(self) -> Iterator[VLLMLine]:
        for output in self._client.get_output().outputs:
            running = self._running.get(output.request_id)
            if running is None:
                continue
            if output.new_logprobs is not None:
                running.logprobs.extend(output.new_logprobs.logprobs[:, 0].tolist())
            if output.finish_reason is not None:
                del self._running[output.request_id]
                self._past[running.slot] = running.request
                ids = list(running.request.output_token_ids)
                self._decoded_tokens += len(ids) - 1
                yield VLLMLine(running.slot, ids, running.logprobs, str(output.finish_reason))

    def abort_request(self, slot: str) -> None:
        name = self._names[slot]
        if self._running.pop(name, None) is not None:
            self._core.abort_requests([name])

    def update(self, version: int) -> None:
        super().update(version)
        for running in self._running.values():
            request = running.request
            request.cache_salt, request.block_hashes = self.salt, []
            request.update_block_hashes()

    def request_of(self, slot: str) -> LineRequest:
        return self._running[self._names[slot]].request

    def leave(self, slot: str) -> None:
        super().leave(slot)
        self._past.pop(slot, None)
        self._scheduler.release(self._names.pop(slot, slot))


class RequestStepper(VLLMStepper):
    """Uses vLLM's public interface."""

    def __init__(self, engine: VLLMEngine, vocabulary: Vocabulary, follows_seeds: bool = False) -> None:
        super().__init__(engine, vocabulary, follows_seeds)
        self._llm: Any = engine.llm.llm_engine
        self._stop_token_ids = sorted(vocabulary.stop_ids | vocabulary.eos_ids)
        self._cached_tokens = 0

    @property
    def prompt_tokens(self) -> tuple[int, int]:
        return self.asked_tokens, self.asked_tokens - self._cached_tokens

    def request(self, slot: str, ids: list[int], params: SamplingParams, arrival: float, salt: str) -> None:
        stopping = params.clone()
        stopping.stop_token_ids = self._stop_token_ids
        prompt = {"prompt_token_ids": ids, "cache_salt": salt}
        self._llm.add_request(slot, prompt, stopping, arrival_time=arrival, lora_request=self._engine.adapter)

    def step_vllm(self) -> Iterator[VLLMLine]:
        for output in self._llm.step():
            if not output.finished:
                continue
            slot, completion = output.request_id, output.outputs[0]
            if list(output.prompt_token_ids) != self._asked[slot].ids:
                raise EngineError(f"vLLM continued other ids than {slot} was given")
            ids = list(completion.token_ids)
            self._cached_tokens += output.num_cached_tokens or 0
            logprobs = [at[token].logprob for at, token in zip(completion.logprobs, ids, strict=True)]
            yield VLLMLine(slot, ids, logprobs, completion.finish_reason)

    def abort_request(self, slot: str) -> None:
        self._llm.abort_request([slot])

    def request_of(self, slot: str) -> Request:
        (name,) = self._llm.output_processor.external_req_ids[slot]
        return self._llm.engine_core.engine_core.scheduler.requests[name]


def make_stepper(engine: VLLMEngine, vocabulary: Vocabulary, is_deterministic: bool = False) -> VLLMStepper:
    """A `LineStepper` if `engine.llm` has our scheduler, else a `RequestStepper`.

    With `is_deterministic`, lines follow their seeds, and each line computes its whole prefix, whatever was computed
    before: keys and values from a batch of another shape differ in their last bits on some processors.
    """
    core = getattr(engine.llm.llm_engine.engine_core, "engine_core", None)
    scheduler = getattr(core, "scheduler", None)
    if isinstance(scheduler, LineScheduler):
        if is_deterministic:
            scheduler.parks_blocks = False
        return LineStepper(engine, vocabulary, is_deterministic)
    return RequestStepper(engine, vocabulary, is_deterministic)


def _goes_on_from(request: LineRequest, past: LineRequest) -> bool:
    """Whether what was computed for `past` holds for `request`: same weights, and ids that begin with its ids."""
    known: list[int] = past._all_token_ids
    ids: list[int] = request.prompt_token_ids
    return bool(request.cache_salt == past.cache_salt) and ids[: len(known)] == known


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


def _kv_capacity_tokens(llm: LLM) -> int:
    """Tokens whose keys and values the engine can hold at once."""
    config = llm.llm_engine.vllm_config
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    if core is None:
        return int((config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size)
    sequences = get_max_concurrency_for_kv_cache_config(config, core.scheduler.kv_cache_config)
    return int(sequences * config.model_config.max_model_len)
