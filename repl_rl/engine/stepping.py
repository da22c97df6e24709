"""Two ways to drive the `vllm.LLM` of this process: lines in, one step at a time, finished lines out.

`LineStepper` speaks to the engine core and its `LineScheduler`. `RequestStepper` uses vLLM's public `add_request` and
`step` with `stop_token_ids`, where a scheduler of our own is refused. Neither is safe to use from two threads at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from vllm import LLM, SamplingParams
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

from repl_rl.engine.line_scheduler import Ends, LineRequest, LineScheduler
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import EngineError


@dataclass(frozen=True, slots=True)
class FinishedLine:
    """What vLLM made of a line. `reason` is vLLM's: stop, length, abort or error."""

    slot: str
    ids: list[int]
    logprobs: list[float]
    reason: str


class VLLMStepper(Protocol):
    """At most one line of a slot is under way at any time."""

    def add(self, slot: str, ids: list[int], params: SamplingParams, version: int) -> None:
        """Ask for the line that follows `ids`, under the weights of `version`."""

    def step(self) -> Iterator[FinishedLine]:
        """Sample one token for every running line."""

    def abort(self, slot: str) -> None:
        """Drop the line under way, if there is one."""

    def leave(self, slot: str) -> None:
        """Forget a slot: it has no line under way and will ask for none."""


class LineStepper:
    """A `VLLMStepper` on the engine core. What a line costs does not grow with its transcript, but for copying ids."""

    def __init__(self, llm: LLM, vocabulary: Vocabulary) -> None:
        self._client: Any = llm.llm_engine.engine_core
        self._core: Any = self._client.engine_core
        self._scheduler: LineScheduler = self._core.scheduler
        self._scheduler.stop_table = stop_table(vocabulary, llm.llm_engine.model_config.get_vocab_size())
        self._numbers = itertools.count()
        self._names: dict[str, str] = {}
        """By slot: the request id of its last line."""
        self._arrivals = _Arrivals()
        self._running: dict[str, _Running] = {}
        """By request id."""
        self._past: dict[str, LineRequest] = {}
        """By slot: its last line, whose block hashes the next one goes on from."""

    def add(self, slot: str, ids: list[int], params: SamplingParams, version: int) -> None:
        name = self._name(slot)
        request = LineRequest(name, ids, params, None, arrival_time=self._arrivals.of(slot), cache_salt=f"w{version}")
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

    def step(self) -> Iterator[FinishedLine]:
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
                yield FinishedLine(running.slot, ids, running.logprobs, str(output.finish_reason))

    def abort(self, slot: str) -> None:
        name = self._names.get(slot, slot)
        if self._running.pop(name, None) is not None:
            self._core.abort_requests([name])

    def leave(self, slot: str) -> None:
        self._past.pop(slot, None)
        self._arrivals.forget(slot)
        self._scheduler.release(self._names.pop(slot, slot))

    def _name(self, slot: str) -> str:
        """The request id of a slot's next line: the slot's where its blocks wait for it, else a new one each time.

        vLLM hands the tokens of a step in flight to whichever request has the id by then.
        """
        return slot if self._scheduler.parks_blocks else f"{slot}/{next(self._numbers)}"


class RequestStepper:
    """A `VLLMStepper` on vLLM's public interface."""

    def __init__(self, llm: LLM, vocabulary: Vocabulary) -> None:
        self._engine: Any = llm.llm_engine
        self._stop_ids = sorted(vocabulary.stop_ids | vocabulary.eos_ids)
        self._ids: dict[str, list[int]] = {}
        self._arrivals = _Arrivals()

    def add(self, slot: str, ids: list[int], params: SamplingParams, version: int) -> None:
        stopping = params.clone()
        stopping.stop_token_ids = self._stop_ids
        self._ids[slot] = ids
        prompt = {"prompt_token_ids": ids, "cache_salt": f"w{version}"}
        self._engine.add_request(slot, prompt, stopping, arrival_time=self._arrivals.of(slot))

    def step(self) -> Iterator[FinishedLine]:
        for output in self._engine.step():
            if output.finished:
                yield self._finished(output)

    def _finished(self, output: Any) -> FinishedLine:
        if list(output.prompt_token_ids) != self._ids.pop(output.request_id):
            raise EngineError(f"vLLM continued other ids than {output.request_id} was given")
        completion = output.outputs[0]
        ids = list(completion.token_ids)
        logprobs = [at[token].logprob for at, token in zip(completion.logprobs, ids, strict=True)]
        return FinishedLine(output.request_id, ids, logprobs, completion.finish_reason)

    def abort(self, slot: str) -> None:
        if self._ids.pop(slot, None) is not None:
            self._engine.abort_request([slot])

    def leave(self, slot: str) -> None:
        self._arrivals.forget(slot)


def make_stepper(llm: LLM, vocabulary: Vocabulary, keeps_blocks: bool = True) -> VLLMStepper:
    """The faster of the two that `llm` was built for.

    With `keeps_blocks=False` every line computes all of its prefix, whatever was computed before: keys and values that
    came out of another batch shape differ in their last bits on some processors.
    """
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    scheduler = getattr(core, "scheduler", None)
    if isinstance(scheduler, LineScheduler):
        scheduler.parks_blocks = scheduler.parks_blocks and keeps_blocks
        return LineStepper(llm, vocabulary)
    return RequestStepper(llm, vocabulary)


def stop_table(vocabulary: Vocabulary, size: int) -> bytes:
    """One `Ends` per id. `size` is the model's number of rows, which may be more than the tokenizer has."""
    table = bytearray(max(size, 1 + max(vocabulary.stop_ids | vocabulary.eos_ids)))
    for ids, ends in ((vocabulary.stop_ids, Ends.LINE), (vocabulary.eos_ids, Ends.TEXT)):
        for index in ids:
            table[index] = ends
    return bytes(table)


def kv_capacity_tokens(llm: LLM) -> int:
    """Tokens whose keys and values the engine can hold at once."""
    config = llm.llm_engine.vllm_config
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    if core is None:
        return int((config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size)
    sequences = get_max_concurrency_for_kv_cache_config(config, core.scheduler.kv_cache_config)
    return int(sequences * config.model_config.max_model_len)


class _Arrivals:
    """When each slot asked for its first line: what vLLM takes for the arrival of all its lines.

    The batch then finishes what was begun first, as it does with sequences that never stop. By the arrival of each
    line, all trajectories would go on side by side and end together, their kernels with them.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._by_slot: dict[str, int] = {}

    def of(self, slot: str) -> float:
        number = self._by_slot.get(slot)
        if number is None:
            number = self._by_slot[slot] = next(self._numbers)
        return float(number)

    def forget(self, slot: str) -> None:
        self._by_slot.pop(slot, None)


@dataclass(slots=True)
class _Running:
    slot: str
    request: LineRequest
    logprobs: list[float] = field(default_factory=list)


def _goes_on_from(request: LineRequest, past: LineRequest) -> bool:
    """Whether all that was computed for `past` holds for `request`: same weights, and its ids open the new ones."""
    known: list[int] = past._all_token_ids
    ids: list[int] = request.prompt_token_ids
    return bool(request.cache_salt == past.cache_salt) and ids[: len(known)] == known
