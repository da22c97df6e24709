"""A device that takes a fixed time for each step and computes nothing, in the place of vLLM's model runner."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, LogprobsLists, ModelRunnerOutput


class SleepingDevice:
    """Answers `execute_model` and `sample_tokens` of vLLM's executor, as a GPU behind a queue does: at once, with a
    result that is there `step_s` after the one before.

    What is sampled for a request is `inner` until a random number ends its line with `end`; lines have `line_tokens`
    tokens in the mean. With `end` None, no line ends by itself.
    """

    def __init__(self, core: Any, step_s: float, inner: int, end: int | None, line_tokens: float) -> None:
        self.steps = 0
        self.sampled_tokens = 0
        self.idle_s = 0.0
        """How long the device had nothing to do between two steps."""
        self._scheduler = core.scheduler
        self._step_s = step_s
        self._inner = inner
        self._end = end
        self._line_tokens = line_tokens
        self._random = random.Random(0)
        self._free_at = 0.0
        self._scheduled: list[str] = []
        core.model_executor.execute_model = self._execute_model
        core.model_executor.sample_tokens = self._sample_tokens

    def reset(self) -> None:
        """Begin to count anew."""
        self.steps = 0
        self.sampled_tokens = 0
        self.idle_s = 0.0
        self._free_at = 0.0

    def _execute_model(self, scheduled: Any, non_block: bool = False) -> Any:
        self._scheduled = list(scheduled.num_scheduled_tokens)
        # As a worker does: nothing is sampled of an empty batch, and `sample_tokens` follows another.
        output = None if self._scheduled else EMPTY_MODEL_RUNNER_OUTPUT
        done: Future[ModelRunnerOutput | None] = Future()
        done.set_result(output)
        return done if non_block else output

    def _sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        now = time.perf_counter()
        if self._free_at:
            self.idle_s += max(0.0, now - self._free_at)
        self._free_at = max(now, self._free_at) + self._step_s
        output = _DeviceFuture(self._free_at, self._output())
        return output if non_block else output.result()

    def _output(self) -> ModelRunnerOutput:
        names = self._scheduled
        tokens = []
        for name in names:
            is_part_of_prompt = self._scheduler.requests[name].is_prefill_chunk
            tokens.append([] if is_part_of_prompt else [self._token()])
        self.steps += 1
        self.sampled_tokens += sum(map(len, tokens))
        rows = len(names)
        logprobs = LogprobsLists(
            np.zeros((rows, 1), np.int32), np.full((rows, 1), -0.25, np.float32), np.zeros(rows, np.int32)
        )
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=logprobs,
        )

    def _token(self) -> int:
        if self._end is not None and self._random.random() * self._line_tokens < 1:
            return self._end
        return self._inner


class _DeviceFuture(Future[ModelRunnerOutput]):
    def __init__(self, ready_at: float, output: ModelRunnerOutput) -> None:
        super().__init__()
        self._ready_at = ready_at
        self.set_result(output)

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        left_s = self._ready_at - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        return super().result(timeout)
