"""vLLM's scheduler, made to stop at the end of a line, and to keep what a line has computed for the next one.

vLLM searches its own `stop_token_ids`, a list, for every sampled token: 72 µs with 5,000 ids. Here it is given a set
(`StopIds`), which it searches just as well.

In our own process (`LineScheduler`), the blocks of a slot's keys and values stay allocated between two of its lines
(`parked`), so that the next line only computes what is new. When blocks run short, parked ones are given back, and
prefix caching keeps what it can of them.

A server (`vllm serve --scheduler-cls repl_rl.engine.vllm.scheduler.ServerLineScheduler`) makes the set from its own
tokenizer. A request asks for it by `extra_args: {"repl_rl_line": [stops, digest]}`, and otherwise stops as in vLLM.

`scheduler_cls` is not a public interface of vLLM; `tests/engine/test_contracts.py` tests what is relied on here.
"""

import functools
import logging
import math
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from repl_rl.engine.vocabulary import LINE_KEY, Vocabulary, load_vocabulary
from repl_rl.utils.processes import end_with_parent

_log = logging.getLogger(__name__)


class StopIds(frozenset[int]):
    """The tokens that end a line or a text, in place of the list in vLLM's `SamplingParams`.

    The scheduler alone asks for them. In vLLM's workers they are none, so that no line sends thousands there.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return StopIds, ()


def stop_ids(vocabulary: Vocabulary) -> StopIds:
    """The tokens that end a line or a text."""
    return StopIds(vocabulary.stop_ids | vocabulary.eos_ids)


class LineRequest(Request):  # type: ignore[misc]
    """One line of a slot. Where blocks are parked, all lines of a slot have the same request id, one after another."""


class LineScheduler(Scheduler):  # type: ignore[misc]
    """Parks the blocks of `LineRequest`s that end with their line; other requests are handled as in vLLM."""

    parks_blocks = True

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.line_ends: frozenset[int] = frozenset()
        """The tokens that end a line, after which another one may come."""
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

    def _free_request_blocks(self, request: Request) -> None:
        has_stopped = request.status == RequestStatus.FINISHED_STOPPED
        is_parked = self.parks_blocks and has_stopped and isinstance(request, LineRequest)
        if is_parked and request.all_token_ids[-1] in self.line_ends:  # no line follows the end of a text
            self.parked[request.request_id] = request
            return
        super()._free_request_blocks(request)


class AsyncLineScheduler(AsyncScheduler, LineScheduler):  # type: ignore[misc]
    """For engines that schedule a step while the one before still runs (GPUs).

    A step in flight may still write into a finished line's blocks, so they are freed as in vLLM, and the next line
    starts from the prefix cache, whose blocks are smaller on a GPU.
    """

    parks_blocks = False


class _ServerScheduler(Scheduler):  # type: ignore[misc]
    """Stops at the ends of lines the requests that ask for it, and parks nothing: a server's lines come from many
    trajectories.

    A request asks by `[stops, digest]`, see `Vocabulary.digest`. If this server's tokenizer has another digest, the
    request ends after one token, and its stop reason is that digest, or why there is none.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        end_with_parent()  # vLLM's engine process would outlive a server that is killed, and keep its memory
        self._ends: dict[str, tuple[str, StopIds]] = {}
        """By the bytes that end a turn: the digest and the tokens."""

    def add_request(self, request: Request) -> None:
        params = request.sampling_params
        has_extension = bool(self.vllm_config.parallel_config.worker_extension_cls)
        if current_platform.is_cpu() and not has_extension and params is not None:
            # Without our worker extension, a CPU's worker would end over a seed (`allow_seeds_on_cpu`).
            params.seed = None
        if params is not None and params.extra_args and LINE_KEY in params.extra_args:
            stops, requested_digest = params.extra_args[LINE_KEY]
            if stops not in self._ends:
                self._ends[stops] = self._find_ends(stops)
            digest, ends = self._ends[stops]
            params.stop_token_ids = ends
            if digest != requested_digest:
                params.stop_token_ids = None
                request.max_tokens = 1
                request.stop_reason = digest  # vLLM gives none of its own where `max_tokens` end a request
        super().add_request(request)

    def _find_ends(self, stops: str) -> tuple[str, StopIds]:
        """The digest and the tokens; in place of the digest, why there are none."""
        try:
            path = self.vllm_config.model_config.model  # which the trainer that asks has tried
            vocabulary = load_vocabulary(path, stops.encode("ascii"), is_tried=True)
            return vocabulary.digest, stop_ids(vocabulary)
        except Exception as error:  # noqa: BLE001 - the trainer has to hear of it, and the server keeps running
            _log.exception("which tokens end a line is not known")
            return f"none: {error}", StopIds()


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
