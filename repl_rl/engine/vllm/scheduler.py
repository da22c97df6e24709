"""vLLM's scheduler, made to stop at the end of a line: a table says for each token whether it ends one.

vLLM searches its own `stop_token_ids`, a list, for every sampled token: 72 µs with 5,000 ids. Here a byte of a table is
read instead.

In our own process (`LineScheduler`), the blocks of a slot's keys and values stay allocated between two of its lines
(`parked`), so that the next line only computes what is new. When blocks run short, parked ones are given back, and
prefix caching keeps what it can of them.

A server (`vllm serve --scheduler-cls repl_rl.engine.vllm.scheduler.ServerLineScheduler`) makes the table from its own
tokenizer. A request asks for it by `extra_args: {"repl_rl_line": [stops, digest]}`, and otherwise stops as in vLLM.

`scheduler_cls` is not a public interface of vLLM; `tests/engine/test_contracts.py` tests what is relied on here.
"""

import functools
import logging
from enum import IntEnum
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from repl_rl.engine.vocabulary import LINE_KEY, Vocabulary, load_vocabulary
from repl_rl.utils.processes import end_with_parent

_log = logging.getLogger(__name__)


class Ends(IntEnum):
    """What a token of the stop table ends."""

    NOTHING = 0
    LINE = 1
    TEXT = 2


def stop_table(vocabulary: Vocabulary, size: int) -> bytes:
    """One `Ends` per id. `size` is the model's vocabulary size, which may exceed the tokenizer's."""
    table = bytearray(max(size, 1 + max(vocabulary.stop_ids | vocabulary.eos_ids)))
    for ids, ends in ((vocabulary.stop_ids, Ends.LINE), (vocabulary.eos_ids, Ends.TEXT)):
        for index in ids:
            table[index] = ends
    return bytes(table)


class LineRequest(Request):  # type: ignore[misc]
    """One line of a slot. Where blocks are parked, all lines of a slot have the same request id, one after another."""


class TableScheduler(Scheduler):  # type: ignore[misc]
    """Stops the requests that `table_of` has a table for; others are handled as in vLLM."""

    def table_of(self, request: Request) -> tuple[bytes, str | None] | None:
        """One `Ends` per row of the model's vocabulary, and what to give as the reason to stop instead of the token."""
        raise NotImplementedError

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        found = self.table_of(request)
        if found is None:
            outcome: tuple[list[int], bool] = super()._update_request_with_output(request, new_token_ids, is_stale)
            return outcome
        table, reason = found
        for position, token in enumerate(new_token_ids, 1):
            request.append_output_token_ids(token)
            if table[token]:
                request.status, request.stop_reason = RequestStatus.FINISHED_STOPPED, reason or token
            elif request.num_output_tokens >= request.max_tokens or request.num_tokens >= self.max_model_len:
                request.status = RequestStatus.FINISHED_LENGTH_CAPPED
            else:
                continue
            del new_token_ids[position:]
            return new_token_ids, True
        return new_token_ids, False


class LineScheduler(TableScheduler):
    """Stops `LineRequest`s by the table and parks their blocks; other requests are handled as in vLLM."""

    parks_blocks = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.stop_table = b""
        """One `Ends` per row of the model's vocabulary."""
        self.parked: dict[str, LineRequest] = {}
        """By request id: the last line of a slot whose next one has not come yet."""
        self.computed_tokens = 0
        """What the model was given to compute so far, not what was found in blocks and caches."""
        self._spare_blocks = self.max_num_running_reqs + -(-self.max_model_len // self.block_size)

    def add_line(self, request: LineRequest) -> None:
        """Add a slot's next line. If its last one is parked, `request` has to continue all of that one's ids."""
        past = self.parked.pop(request.request_id, None)
        if past is not None:
            request.num_computed_tokens = past.num_computed_tokens
        self.add_request(request)

    def release(self, request_id: str) -> None:
        """Give back the blocks of a parked line, if there is one."""
        past = self.parked.pop(request_id, None)
        if past is not None:
            super()._free_request_blocks(past)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        for request_id in list(self.parked) if reset_running_requests else ():
            self.release(request_id)
        for request in list(self.kv_holding_waiting) if reset_running_requests else ():
            self._wait_without_blocks(request)
        done: bool = super().reset_prefix_cache(reset_running_requests, reset_connector)
        return done

    def schedule(self, throttle_prefills: bool = False) -> Any:
        while self.parked and self.kv_cache_manager.block_pool.get_num_free_blocks() < self._spare_blocks:
            self.release(next(iter(self.parked)))
        self._break_the_tie()
        scheduled = super().schedule(throttle_prefills)
        self.computed_tokens += scheduled.total_num_scheduled_tokens
        return scheduled

    def _break_the_tie(self) -> None:
        """If nothing runs and waiting requests hold blocks that the first of them lacks, free those of the others."""
        for request in list(self.kv_holding_waiting)[:0:-1] if not self.running else ():
            if self.kv_cache_manager.block_pool.get_num_free_blocks() >= self._spare_blocks:
                return
            self._wait_without_blocks(request)

    def _wait_without_blocks(self, request: Request) -> None:
        self.kv_holding_waiting.remove_requests([request])
        super()._free_request_blocks(request)
        request.num_computed_tokens = 0
        self.waiting.add_request(request)

    def table_of(self, request: Request) -> tuple[bytes, str | None] | None:
        return (self.stop_table, None) if isinstance(request, LineRequest) else None

    def _free_request_blocks(self, request: Request) -> None:
        ended_a_line = request.status == RequestStatus.FINISHED_STOPPED and isinstance(request, LineRequest)
        if ended_a_line and self.parks_blocks and self.stop_table[request.all_token_ids[-1]] == Ends.LINE:
            self.parked[request.request_id] = request
        else:
            super()._free_request_blocks(request)


class AsyncLineScheduler(AsyncScheduler, LineScheduler):  # type: ignore[misc]
    """For engines that schedule a step while the one before still runs (GPUs).

    A step in flight may still write into a finished line's blocks, so they are freed as in vLLM, and the next line
    starts from the prefix cache, whose blocks are smaller on a GPU.
    """

    parks_blocks = False


class _ServerScheduler(TableScheduler):
    """Stops by a table the requests that ask for it, and parks nothing: a server's lines come from many trajectories.

    What they ask for is `[stops, digest]`, see `Vocabulary.digest`. With another digest than that of this server's own
    table, a request ends after one token, and its stop reason is the digest, or why there is no table.

    It is made in vLLM's engine process, which would outlive a server that is killed, and keep its memory.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        end_with_parent()
        self._own: dict[str, tuple[str, bytes]] = {}
        """By the bytes that end a turn: the digest and the table."""
        self._size: int = self.vllm_config.model_config.get_vocab_size()
        self._every_token = bytes([Ends.TEXT]) * self._size

    def add_request(self, request: Request) -> None:
        """Without our worker extension, a CPU's worker would end over a seed (`allow_seeds_on_cpu`)."""
        is_allowed = not current_platform.is_cpu() or self.vllm_config.parallel_config.worker_extension_cls
        if request.sampling_params is not None and not is_allowed:
            request.sampling_params.seed = None
        super().add_request(request)

    def table_of(self, request: Request) -> tuple[bytes, str | None] | None:
        extra = request.sampling_params and request.sampling_params.extra_args
        if not extra or LINE_KEY not in extra:
            return None
        stops, wanted = extra[LINE_KEY]
        digest, table = self._own_table(stops)
        return (table, None) if digest == wanted else (self._every_token, digest)

    def _own_table(self, stops: str) -> tuple[str, bytes]:
        if stops not in self._own:
            try:
                path = self.vllm_config.model_config.model  # which the trainer that asks has tried
                vocabulary = load_vocabulary(path, stops.encode("ascii"), is_tried=True)
                self._own[stops] = vocabulary.digest, stop_table(vocabulary, self._size)
            except Exception as error:  # noqa: BLE001 - the trainer has to hear of it, and the server keeps running
                _log.exception("no table of the tokens that end a line")
                self._own[stops] = f"none: {error}", self._every_token
        return self._own[stops]


class _AsyncServerScheduler(AsyncScheduler, _ServerScheduler):  # type: ignore[misc]
    pass


def allow_seeds_on_cpu() -> None:
    """Let requests with seeds have prompts that don't fit into one step, of which vLLM throws away what it samples.

    It then sets their generators back by an offset, which a CPU's generators don't have. They begin again instead.
    """
    bookkeeping: Any = GPUModelRunner._bookkeeping_sync
    if getattr(bookkeeping, "takes_seeds", False):
        return

    @functools.wraps(bookkeeping)
    def with_seeds(runner: Any, *arguments: Any, **named: Any) -> Any:
        batch = runner.input_batch
        partial = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        unfinished = {index: batch.generators.pop(index) for index in partial if index in batch.generators}
        try:
            return bookkeeping(runner, *arguments, **named)
        finally:
            for index, generator in unfinished.items():
                if not runner.requests[batch.req_ids[index]].output_token_ids:
                    generator.manual_seed(generator.initial_seed())
            batch.generators.update(unfinished)

    with_seeds.takes_seeds = True  # type: ignore[attr-defined]
    GPUModelRunner._bookkeeping_sync = with_seeds


def repack_experts_on_cpu() -> None:
    """Let experts follow a reload of weights. vLLM packs them for the CPU's kernel when it makes that, and leaves them
    unpacked when it finds it made. Now it is made anew."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    setup: Any = UnquantizedFusedMoEMethod._setup_kernel

    @functools.wraps(setup)
    def anew(method: Any, *arguments: Any, **named: Any) -> None:
        method.moe_kernel = None
        setup(method, *arguments, **named)

    UnquantizedFusedMoEMethod._setup_kernel = anew


if current_platform.is_cpu():
    allow_seeds_on_cpu()
    repack_experts_on_cpu()

ServerLineScheduler = _ServerScheduler if current_platform.is_cpu() else _AsyncServerScheduler
"""For `vllm serve --scheduler-cls`."""
