"""A model that several trainer processes hold together, each a shard of every weight (tensor parallelism).

vLLM's external launcher expects every process to schedule the same requests in the same order. Ours can't: lines come
one by one, as interpreters answer. So the first process schedules for all. Each call that it makes of its shard, by its
executor's `collective_rpc`, is sent to the others, which make it of theirs. They have an `Engine` that samples nothing
(`VLLMShard`).

All processes take part in a change of weights, each with its own shard: no call is sent inside of `paused`.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import torch
from vllm import LLM
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.serial_utils import run_method

from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine.base import Slot
from repl_rl.engine.environment import limit_openmp
from repl_rl.engine.vllm.llm import LocalLLM
from repl_rl.engine.vocabulary import Vocabulary
from repl_rl.errors import EngineError

_log = logging.getLogger(__name__)

_HOLD = "hold"
"""Sent in place of a call: the process that gets it waits for its own `paused`."""
_CLOSE_S = 60.0


class Leader:
    """Sends the calls of this process's executor to the other shards. With the whole model in this process, it does
    nothing."""

    def __init__(self, llm: LLM) -> None:
        executor = llm.llm_engine.model_executor
        self._queue: Any = get_tp_group().mq_broadcaster
        self._call_shard: Callable[..., Any] = executor.collective_rpc
        self._is_held = False
        self.has_others = self._queue is not None
        if self.has_others:
            executor.collective_rpc = self._call_all

    def _call_all(
        self, method: Any, timeout: float | None = None, args: Any = (), kwargs: Any = None, **options: Any
    ) -> Any:
        if not self._is_held:
            self._queue.enqueue((method, args, kwargs or {}))
        return self._call_shard(method, timeout, args, kwargs, **options)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No call is sent to the other shards inside the block. They wait for the blocks of their own `paused`."""
        if self.has_others:
            self._queue.enqueue(_HOLD)
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def close(self) -> None:
        """Let the others end."""
        if self.has_others:
            self._queue.enqueue(None)


class VLLMShard(LocalLLM):
    """The engine of a process that is not the first of its model's. Takes weights like `VLLMEngine`, and no slots."""

    def __init__(
        self, path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int = 0
    ) -> None:
        super().__init__(path, model, config, seed)
        self.version = 0
        self._gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._is_held = threading.Event()
        """Set when the first process has reached its `paused`."""
        self._may_go_on = threading.Event()
        """Set when this process has left its own."""
        self._thread = threading.Thread(target=self._follow, name="vLLM", daemon=True)
        self._thread.start()

    def slot(self, tokens: int, is_subcall: bool = False) -> AbstractAsyncContextManager[Slot]:
        raise EngineError("only the first process of a model in shards samples")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No call runs on this shard inside the block. Waits until the first process has entered its own `paused`."""
        self._is_held.wait()
        self._is_held.clear()
        try:
            yield
        finally:
            self._may_go_on.set()

    def update(self) -> None:
        """Count one more version of the weights, which have just been replaced. Only inside of `paused`."""
        self.version += 1

    def close(self) -> None:
        """Wait until the first process closes its engine, or a minute, and unload the shard."""
        if hasattr(self, "llm"):
            self.end_rest()
            self._thread.join(_CLOSE_S)
            self.shut_down()

    def _follow(self) -> None:
        """Make the calls that the first process sends, until it closes its engine."""
        try:
            if self.threads is not None:
                limit_openmp(self.threads)
            if self._gpu is not None:
                torch.cuda.set_device(self._gpu)  # a new thread begins on the first one
            queue: Any = get_tp_group().mq_broadcaster
            worker = self.llm.llm_engine.model_executor.driver_worker
            while True:
                call = queue.dequeue(indefinite=True)
                if call is None:
                    return
                if call == _HOLD:
                    self._is_held.set()
                    self._may_go_on.wait()
                    self._may_go_on.clear()
                else:
                    method, args, kwargs = call
                    run_method(worker, method, args, kwargs)
        except BaseException:  # noqa: BLE001
            _log.exception("a shard of the model failed, and the first process would wait for it for ever")
            os._exit(1)
