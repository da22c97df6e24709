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
import math
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
    for index in vocabulary.stop_ids:
        table[index] = Ends.LINE
    for index in vocabulary.eos_ids:
        table[index] = Ends.TEXT
    return bytes(table)


class LineRequest(Request):  # type: ignore[misc]
    """One line of a slot. Where blocks are parked, all lines of a slot have the same request id, one after another."""


class TableScheduler(Scheduler):  # type: ignore[misc]
    """Stops the requests that `table_of` has a table for; others are handled as in vLLM."""

    def table_of(self, request: Request) -> tuple[bytes, str | None] | None:
        """One `Ends` per row of the model's vocabulary, and the reason to stop if it is not to be the token."""
        raise NotImplementedError

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        table_and_reason = self.table_of(request)
        if table_and_reason is None:
            outcome: tuple[list[int], bool] = super()._update_request_with_output(request, new_token_ids, is_stale)
            return outcome
        table, reason = table_and_reason
        for position, token in enumerate(new_token_ids, 1):
            request.append_output_token_ids(token)
            if table[token]:  # it ends a line or the text
                request.status = RequestStatus.FINISHED_STOPPED
                request.stop_reason = reason or token
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

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.stop_table = b""
        """One `Ends` per row of the model's vocabulary."""
        self.parked: dict[str, LineRequest] = {}
        """By request id: the last line of a slot whose next one has not come yet."""
        self.computed_tokens = 0
        """What the model was given to compute so far, not what was found in blocks and caches."""
        blocks_of_longest = math.ceil(self.max_model_len / self.block_size)
        self._spare_blocks: int = self.max_num_running_reqs + blocks_of_longest
        """Blocks to keep free: the next one of each running request, and all of one more request."""

    def add_line(self, request: LineRequest) -> None:
        """Add a slot's next line. If its last one is parked, `request` has to continue all of that one's ids."""
        last = self.parked.pop(request.request_id, None)
        if last is not None:
            request.num_computed_tokens = last.num_computed_tokens  # in the blocks that are under its request id
        self.add_request(request)

    def release(self, request_id: str) -> None:
        """Give back the blocks of a parked line, if there is one."""
        line = self.parked.pop(request_id, None)
        if line is not None:
            super()._free_request_blocks(line)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        if reset_running_requests:
            for request_id in list(self.parked):
                self.release(request_id)
            for request in list(self.kv_holding_waiting):
                self._wait_without_blocks(request)
        is_reset: bool = super().reset_prefix_cache(reset_running_requests, reset_connector)
        return is_reset

    def schedule(self, throttle_prefills: bool = False) -> Any:
        while self.parked and self._is_short_of_blocks():
            first_parked = next(iter(self.parked))
            self.release(first_parked)
        if not self.running:
            self._break_the_tie()
        scheduled = super().schedule(throttle_prefills)
        self.computed_tokens += scheduled.total_num_scheduled_tokens
        return scheduled

    def _is_short_of_blocks(self) -> bool:
        free_blocks: int = self.kv_cache_manager.block_pool.get_num_free_blocks()
        return free_blocks < self._spare_blocks

    def _break_the_tie(self) -> None:
        """Nothing runs, and the first waiting request may lack blocks that later ones hold: free these, the last
        request's first, until there are enough."""
        later_requests = list(self.kv_holding_waiting)[1:]
        for request in reversed(later_requests):
            if not self._is_short_of_blocks():
                return
            self._wait_without_blocks(request)

    def _wait_without_blocks(self, request: Request) -> None:
        """Let a waiting request compute from its beginning when its turn comes."""
        self.kv_holding_waiting.remove_requests([request])
        super()._free_request_blocks(request)
        request.num_computed_tokens = 0
        self.waiting.add_request(request)

    def table_of(self, request: Request) -> tuple[bytes, str | None] | None:
        return (self.stop_table, None) if isinstance(request, LineRequest) else None

    def _free_request_blocks(self, request: Request) -> None:
        has_stopped = request.status == RequestStatus.FINISHED_STOPPED
        if self.parks_blocks and has_stopped and isinstance(request, LineRequest):
            last_token = request.all_token_ids[-1]
            if self.stop_table[last_token] == Ends.LINE:  # no line follows the end of a text
                self.parked[request.request_id] = request
                return
        super()._free_request_blocks(request)


class AsyncLineScheduler(AsyncScheduler, LineScheduler):  # type: ignore[misc]
    """For engines that schedule a step while the one before still runs (GPUs).

    A step in flight may still write into a finished line's blocks, so they are freed as in vLLM, and the next line
    starts from the prefix cache, whose blocks are smaller on a GPU.
    """

    parks_blocks = False


class _ServerScheduler(TableScheduler):
    """Stops by a table the requests that ask for it, and parks nothing: a server's lines come from many trajectories.

    A request asks by `[stops, digest]`, see `Vocabulary.digest`. If this server's table has another digest, the request
    ends after one token, and its stop reason is the table's digest, or why there is no table.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        end_with_parent()  # vLLM's engine process would outlive a server that is killed, and keep its memory
        self._tables: dict[str, tuple[str, bytes]] = {}
        """By the bytes that end a turn: the digest and the table."""
        self._size: int = self.vllm_config.model_config.get_vocab_size()
        self._every_token = bytes([Ends.TEXT]) * self._size

    def add_request(self, request: Request) -> None:
        has_extension = bool(self.vllm_config.parallel_config.worker_extension_cls)
        if current_platform.is_cpu() and not has_extension and request.sampling_params is not None:
            # Without our worker extension, a CPU's worker would end over a seed (`allow_seeds_on_cpu`).
            request.sampling_params.seed = None
        super().add_request(request)

    def table_of(self, request: Request) -> tuple[bytes, str | None] | None:
        extra = request.sampling_params and request.sampling_params.extra_args
        if not extra or LINE_KEY not in extra:
            return None
        stops, requested_digest = extra[LINE_KEY]
        if stops not in self._tables:
            self._tables[stops] = self._make_table(stops)
        digest, table = self._tables[stops]
        if digest != requested_digest:
            return self._every_token, digest
        return table, None

    def _make_table(self, stops: str) -> tuple[str, bytes]:
        """The digest and the table; in place of the digest, why there is no table."""
        try:
            path = self.vllm_config.model_config.model  # which the trainer that asks has tried
            vocabulary = load_vocabulary(path, stops.encode("ascii"), is_tried=True)
            return vocabulary.digest, stop_table(vocabulary, self._size)
        except Exception as error:  # noqa: BLE001 - the trainer has to hear of it, and the server keeps running
            _log.exception("no table of the tokens that end a line")
            return f"none: {error}", self._every_token


class _AsyncServerScheduler(AsyncScheduler, _ServerScheduler):  # type: ignore[misc]
    pass


def allow_seeds_on_cpu() -> None:
    """Let requests with seeds have prompts that don't fit into one step.

    vLLM throws away the token that it samples after a part of a prompt, and then sets the request's generator back by
    an offset. A CPU's generators have none, so here they are kept from vLLM for such a step, and begin again at their
    seed.
    """
    bookkeeping: Any = GPUModelRunner._bookkeeping_sync
    if getattr(bookkeeping, "takes_seeds", False):
        return

    @functools.wraps(bookkeeping)
    def with_seeds(runner: Any, *arguments: Any, **keywords: Any) -> Any:
        batch = runner.input_batch
        is_discarded = runner.discard_request_mask.np[: batch.num_reqs]
        withheld = {}
        for index in is_discarded.nonzero()[0].tolist():
            if index in batch.generators:
                withheld[index] = batch.generators.pop(index)
        try:
            return bookkeeping(runner, *arguments, **keywords)
        finally:
            for index, generator in withheld.items():
                request = runner.requests[batch.req_ids[index]]
                if not request.output_token_ids:
                    generator.manual_seed(generator.initial_seed())
            batch.generators.update(withheld)

    with_seeds.takes_seeds = True  # type: ignore[attr-defined]
    GPUModelRunner._bookkeeping_sync = with_seeds


def repack_experts_on_cpu() -> None:
    """Let experts follow a reload of weights.

    vLLM packs experts for the CPU's kernel when it makes the kernel. At a reload it finds the kernel made, and would
    leave the new experts unpacked. So the kernel is made again.
    """
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    setup: Any = UnquantizedFusedMoEMethod._setup_kernel

    @functools.wraps(setup)
    def setup_again(method: Any, *arguments: Any, **keywords: Any) -> None:
        method.moe_kernel = None
        setup(method, *arguments, **keywords)

    UnquantizedFusedMoEMethod._setup_kernel = setup_again


if current_platform.is_cpu():
    allow_seeds_on_cpu()
    repack_experts_on_cpu()

ServerLineScheduler = _ServerScheduler if current_platform.is_cpu() else _AsyncServerScheduler
"""For `vllm serve --scheduler-cls`."""
