"""The peer of `repl-rl bench rollout`: TRL's GRPOTrainer with `tools=[python]`, running its own tool loop.

The trainer is TRL's, untouched, and so is its loop; it samples from the same `vllm.LLM` as ours does. nano makes no
JSON, so the chat template writes a session as nano knows it, each turn stops behind a newline, and the tokenizer's
`parse_response`, which TRL asks for tool calls, makes every line one call of `python`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from repl_rl.engine import Vocabulary

_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ message.content }}>>>"
    "{% else %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "{% endif %}{% endfor %}"
)


class TRLRollouts:
    """TRL's side. Each rollout takes `lines` turns; all but the last call the tool, which takes `tool_s` seconds."""

    def __init__(self, model: str, llm: Any, vocabulary: Vocabulary, lines: int, line_tokens: int, tokens: int) -> None:
        self.calls = 0
        self._tool_s = 0.0
        self._folder = tempfile.TemporaryDirectory(prefix="repl_rl_bench_")
        arguments = GRPOConfig(
            output_dir=self._folder.name,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=tokens,
            max_tool_calling_iterations=lines - 1,
            temperature=1.0,
            top_k=0,
            report_to="none",
            use_cpu=True,
            bf16=False,
            model_init_kwargs={"dtype": "float32"},
            generation_kwargs={"stop_token_ids": sorted(vocabulary.newline_ids), "max_tokens": line_tokens},
        )

        def python(code: str) -> str:
            """Run a line of Python.

            Args:
                code: The line.
            """
            self.calls += 1
            if self._tool_s:
                time.sleep(self._tool_s)
            return ""

        self._trainer = GRPOTrainer(
            model=model,
            args=arguments,
            reward_funcs=[_no_reward],
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "."}]}]),
            processing_class=_tokenizer(model),
            tools=[python],
        )
        self._trainer.use_vllm, self._trainer.vllm_mode = True, "colocate"
        self._trainer._last_loaded_step = self._trainer.state.global_step
        self._trainer.vllm_generation = _SharedLLM(
            llm,
            model=self._trainer.model,
            accelerator=self._trainer.accelerator,
            processing_class=self._trainer.processing_class,
            temperature=1.0,
            top_k=0,
            max_completion_length=tokens,
            logprobs=0,
            generation_kwargs=arguments.generation_kwargs,
        )
        self._python = python

    def roll_out(self, prompts: Sequence[str], tool_s: float) -> tuple[float, int]:
        """One rollout per prompt: seconds and tool calls."""
        self.calls, self._tool_s = 0, tool_s
        self._trainer._sync_tool_dicts = [{"python": self._python} for _ in prompts]
        self._trainer._async_tool_dicts = [{} for _ in prompts]
        conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
        started = time.perf_counter()
        self._trainer._generate(conversations)
        return time.perf_counter() - started, self.calls

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._folder.cleanup()


class _SharedLLM(VLLMGeneration):  # type: ignore[misc]
    """TRL's colocated generation on an LLM that is there already."""

    def __init__(self, llm: Any, **arguments: Any) -> None:
        self._shared = llm
        super().__init__(**arguments)

    def _init_vllm(self) -> None:
        self.llm = self._shared
        self._llm_weights_sleeping = False


def _tokenizer(model: str | Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = _TEMPLATE
    tokenizer.response_template = {}

    def parse_response(ids: Sequence[int], **_: Any) -> dict[str, Any]:
        call = {"name": "python", "arguments": {"code": tokenizer.decode(ids)}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}

    tokenizer.parse_response = parse_response
    return tokenizer


def _no_reward(completions: Sequence[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)
