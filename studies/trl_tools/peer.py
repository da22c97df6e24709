"""TRL's side: its GRPOTrainer with `tools=[python]`, running its own tool loop.

Trainer and loop are TRL's, unmodified; it samples from the same `vllm.LLM` as ours does, or from one that TRL makes.

nano writes no JSON, so the chat template writes a session as nano knows it, each turn stops after a newline, and the
tokenizer's `parse_response`, which TRL calls to find tool calls, turns every line into one call of `python`, which
runs it.

`python` is written as a TRL user would write it: a blocking function with a kernel per rollout. It runs a line as our
rollouts do: our dialect reads it, a sandboxed kernel of our pool runs it, and it returns the output and the next
prompt. A submission does not end the trajectory here, and latency can be added to each cell.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from repl_rl.bench.settings import LINE_S
from repl_rl.bench.train import no_reward
from repl_rl.config import DialectConfig, KernelConfig
from repl_rl.dialect import CellRun, Dialect, make_dialect
from repl_rl.engine import Vocabulary
from repl_rl.kernel import KernelSession
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout import make_pool
from repl_rl.trajectory import Task
from repl_rl.utils.threads import BackgroundLoop


def python(code: str) -> str:
    """Run a line of Python.

    Args:
        code: The line.
    """
    raise NotImplementedError("what TRL's schema is made from; `open_tools` gives the functions that run")


class PythonTool:
    """The `python` tool of one rollout. Each call takes `latency_s` longer than its cell."""

    def __init__(self, loop: BackgroundLoop, kernel: KernelSession, dialect: Dialect, latency_s: float) -> None:
        self.calls = 0
        self.seconds = 0.0
        self._loop = loop
        self._kernel = kernel
        self._reader = dialect.reader()
        self._latency_s = latency_s

    def __call__(self, code: str) -> str:
        """The output of the cells that `code` completes, and the next prompt. Raises KernelDiedError."""
        self.calls += 1
        started = time.perf_counter()
        if self._latency_s:
            time.sleep(self._latency_s)
        cells = self._reader.read(code).cells
        runs = [CellRun(cell, self._loop.run(self._kernel.execute(cell.source)).output) for cell in cells]
        self.seconds += time.perf_counter() - started
        return "".join(part.text for part in self._reader.show(runs, goes_on=True))


@contextmanager
def open_tools(count: int, config: KernelConfig, latency_s: float) -> Iterator[Sequence[PythonTool]]:
    """`count` tools with running kernels, which end with the block. Raises SandboxError if kernels can't run."""
    dialect = make_dialect(DialectConfig())
    stack = AsyncExitStack()

    async def open_sessions() -> list[KernelSession]:
        pool = await stack.enter_async_context(make_pool(config))
        return [await stack.enter_async_context(pool.session()) for _ in range(count)]

    with BackgroundLoop() as loop:
        try:
            yield [PythonTool(loop, kernel, dialect, latency_s) for kernel in loop.run(open_sessions())]
        finally:
            loop.run(stack.aclose())


_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}"
)


class TRLRollouts:
    """TRL's side, with nano. If `llm` is None, TRL makes one. `folder` is for what its trainer writes; `limits` are the
    turns of a rollout, all but the last of which call its tool, the tokens of a turn, and those of a rollout."""

    def __init__(
        self, folder: str, llm: Any | None, vocabulary: Vocabulary, slots: int, limits: tuple[int, int, int]
    ) -> None:
        lines, line_tokens, tokens = limits
        arguments = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=slots,
            num_generations=2,
            max_completion_length=tokens,
            max_tool_calling_iterations=lines - 1,
            temperature=1.0,
            top_k=0,
            report_to="none",
            use_cpu=True,
            bf16=False,
            model_init_kwargs={"dtype": "float32"},
            use_vllm=llm is None,
            vllm_mode="colocate",
            generation_kwargs={"stop_token_ids": sorted(vocabulary.newline_ids), "max_tokens": line_tokens},
        )
        self._trainer = GRPOTrainer(
            model=str(NANO_PATH),
            args=arguments,
            reward_funcs=[no_reward],
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "."}]}]),
            processing_class=_tokenizer(),
            tools=[python],
        )
        self._trainer._last_loaded_step = self._trainer.state.global_step
        if llm is None:
            return
        self._trainer.use_vllm = True
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

    def roll_out(self, tasks: Sequence[Task], latency_s: float) -> dict[str, float]:
        """Make one rollout per task, each with a kernel of its own that is running before the clock starts. The figures
        go by the names that the benchmark writes."""
        dialect = make_dialect(DialectConfig())
        conversations = [[{"role": "user", "content": dialect.completion_prompt(task.question)}] for task in tasks]
        with open_tools(len(tasks), KernelConfig(size=len(tasks), line_s=LINE_S), latency_s) as tools:
            self._trainer._sync_tool_dicts = [{"python": tool} for tool in tools]
            self._trainer._async_tool_dicts = [{} for _ in tools]
            started = time.perf_counter()
            _, _, mask, *_ = self._trainer._generate(conversations)
            seconds = time.perf_counter() - started
        return {
            "trl_rollouts_s": seconds,
            "trl_tool_executions": sum(tool.calls for tool in tools),
            "trl_in_tools_s": sum(tool.seconds for tool in tools),
            "trl_sampled_tokens": sum(map(sum, mask)),
        }


class _SharedLLM(VLLMGeneration):  # type: ignore[misc]
    """TRL's colocated generation on an existing LLM."""

    def __init__(self, llm: Any, **arguments: Any) -> None:
        self._shared = llm
        super().__init__(**arguments)

    def _init_vllm(self) -> None:
        self.llm = self._shared
        self._llm_weights_sleeping = False


def _tokenizer() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(NANO_PATH)
    tokenizer.chat_template = _TEMPLATE
    tokenizer.response_template = {}

    def parse_response(ids: Sequence[int], **_: Any) -> dict[str, Any]:
        call = {"name": "python", "arguments": {"code": tokenizer.decode(ids, skip_special_tokens=True)}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}

    tokenizer.parse_response = parse_response
    return tokenizer
