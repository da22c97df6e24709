"""What repl_rl relies on inside vLLM. A failure here means: read vLLM's change, then engine/vllm/scheduler.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.request import Request

OVERRIDDEN = [
    (Scheduler._update_request_with_output, ["self", "request", "new_token_ids", "is_stale"]),
    (Scheduler._free_request_blocks, ["self", "request"]),
    (Scheduler.schedule, ["self", "throttle_prefills"]),
]

RELIED_ON = [
    (Scheduler.update_from_output, "self._update_request_with_output(", "every sampled token is seen there"),
    (Scheduler._free_blocks, "self._free_request_blocks(request)", "a finished request's blocks are freed there"),
    (Scheduler._free_request, "self.finished_req_ids.add(request_id)", "the worker forgets a finished request"),
    (Scheduler._holds_kv_blocks, "request.num_computed_tokens > 0", "a request with computed tokens keeps its blocks"),
    (Scheduler.schedule, "if request.num_computed_tokens == 0:", "the prefix cache is asked only for fresh requests"),
    (Scheduler.schedule, "num_computed_tokens = request.num_computed_tokens", "others go on from what is computed"),
    (Scheduler.schedule, "self.kv_cache_manager.get_blocks(", "the worker is told of all blocks of such a request"),
    (AsyncScheduler._update_request_with_output, "super()._update_request_with_output(", "ours is called from there"),
    (Request.__init__, "self.update_block_hashes()", "a request without a hasher begins with no hashes"),
    (Request.append_output_token_ids, "self.update_block_hashes()", "hashes grow with the tokens"),
    (InprocClient.get_output, "self.engine_core.step_fn()", "one call is one step"),
    (EngineCore.abort_requests, "self.scheduler.finish_requests", "aborting frees a request"),
    (EngineCore.preprocess_add_request, "self.request_block_hasher", "the hasher is the core's"),
]


@pytest.mark.parametrize(("method", "parameters"), OVERRIDDEN)
def test_an_overridden_method_of_vllm_keeps_its_parameters(method: Callable[..., Any], parameters: list[str]) -> None:
    found = list(inspect.signature(method).parameters)
    assert found == parameters, f"vLLM changed {method.__qualname__}: {found}; the line scheduler has {parameters}"


@pytest.mark.parametrize(("method", "code", "promise"), RELIED_ON)
def test_a_method_of_vllm_still_does_what_the_line_scheduler_builds_on(
    method: Callable[..., Any], code: str, promise: str
) -> None:
    source = inspect.getsource(method)
    assert code in source, f"vLLM changed {method.__qualname__}; the line scheduler builds on this: {promise}"
