"""Every dialect behind every engine: sequences are exact, logprobs are a forward pass's, greedy sessions the same.

A random policy (`typist`) types pieces of all dialects; whichever of them mean something to the dialect run in real
kernels. One engine serves all, with `inline`'s stops: where a turn ends changes nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from exactness import (
    RecordingEngine,
    assert_masked_text_is_the_outputs,
    assert_the_engine_was_given_the_sequence_so_far,
    largest_logprob_difference,
)
from transformers import AutoModelForCausalLM
from typist import make_typist

from repl_rl.config import BudgetConfig, DialectConfig, EngineConfig, KernelConfig, ModelConfig, SamplingConfig
from repl_rl.dialect import DIALECTS
from repl_rl.engine import Vocabulary, load_vocabulary, make_engine
from repl_rl.service import RolloutService
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Trajectory

CONTEXT_TOKENS = 1000
PIECES = (
    " x = 2\n", " x\n", " 1 / 0\n", " if x:\n", "    x\n\n", "\n", " 'long ' * 90\n", " # so far\n", " )\n",
    "```python\nx = 3\nx\n```\n", "```py\n1 / 0\n```\n", "```python\n'long ' * 90\n```\n",
    "```python\n6 * 7\n```\nSo",
    "<fn>6 * 7</fn>", "<fn>1 / 0</fn>.", "<fn>'long ' * 90</fn>", " It is", " x >",
    '<tool_call>{"name": "python", "arguments": {"code": "6 * 7"}}</tool_call>',
    '<tool_call>{"name": "python", "arguments": {"code": "print(\'<|end|>\')\\n1 / 0"}}</tool_call>',
    '<tool_call>{"name": "search"}</tool_call>\n',
)  # fmt: skip
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for message in messages %}"
    "<|{{ message.role }}|>{{ message.content }}{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ENGINES = ["vllm", "transformers"]
SHOWN = {
    "python": ">>>",
    "ipython": "\nIn [",
    "fenced": "```output\n",
    "inline": "</fn_",
    "tool_call": "\n<|tool|>",
}
"""What stands in many outputs of a dialect."""

Made = tuple[list[Trajectory], list[Trajectory], RecordingEngine]


@pytest.fixture(scope="module")
def typist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_typist(tmp_path_factory.mktemp("typist"), pieces=PIECES, template=TEMPLATE)


@pytest.fixture(scope="module")
def vocabulary(typist: Path) -> Vocabulary:
    return load_vocabulary(str(typist), DIALECTS["inline"].stops)


@pytest.fixture(scope="module")
def rollouts(typist: Path, vocabulary: Vocabulary) -> Callable[[str], dict[str, Made]]:
    """Sampled and greedy trajectories of an engine by dialect, made once."""
    made: dict[str, dict[str, Made]] = {}

    def of(name: str) -> dict[str, Made]:
        if name not in made:
            config = EngineConfig(backend=name, context_tokens=CONTEXT_TOKENS)
            engine = make_engine(str(typist), vocabulary, ModelConfig(path=str(typist)), config, seed=5)
            try:
                made[name] = {dialect: roll_out(RecordingEngine(engine), vocabulary, dialect) for dialect in DIALECTS}
            finally:
                engine.close()
        return made[name]

    return of


def roll_out(engine: RecordingEngine, vocabulary: Vocabulary, dialect: str) -> Made:
    tasks = make_tasks(None, 12, seed=3, split="heldout")
    with RolloutService(
        engine,
        vocabulary,
        kernel=KernelConfig(size=8),
        dialect=DialectConfig(name=dialect, max_output_chars=80),
        budget=BudgetConfig(line_tokens=32, lines=10, tokens=450),
        sampling=SamplingConfig(temperature=1.2),
        context_tokens=CONTEXT_TOKENS,
        chat=False,
        apart=False,
    ) as service:
        sampled = service.generate(tasks)
        greedy = service.generate(tasks, SamplingConfig(temperature=0))
    return sampled, greedy, engine


@pytest.mark.parametrize("name", ENGINES)
def test_outputs_occur_and_sequences_are_exact(
    rollouts: Callable[[str], dict[str, Made]], vocabulary: Vocabulary, name: str
) -> None:
    for dialect, (sampled, greedy, engine) in rollouts(name).items():
        trajectories = sampled + greedy
        assert not any(trajectory.is_void for trajectory in trajectories), dialect
        assert_the_engine_was_given_the_sequence_so_far(trajectories, engine.calls)
        for trajectory in trajectories:
            assert_masked_text_is_the_outputs(trajectory, vocabulary)
        put_in = [line.output for each in sampled for line, _ in pairwise(each.lines) if line.output]
        assert sum(SHOWN.get(dialect, "never") in text for text in put_in) >= (3 if dialect in SHOWN else 0), dialect


@pytest.mark.parametrize("name", ENGINES)
def test_logprobs_agree_with_a_float32_forward_pass(
    rollouts: Callable[[str], dict[str, Made]], typist: Path, name: str
) -> None:
    model = AutoModelForCausalLM.from_pretrained(typist, dtype=torch.float32).eval()
    differences = {
        dialect: max(largest_logprob_difference(trajectory, model) for trajectory in greedy)
        for dialect, (_, greedy, _) in rollouts(name).items()
    }
    model.lm_head.register_forward_hook(lambda module, arguments, logits: logits / 1.2)
    for dialect, (sampled, _, _) in rollouts(name).items():
        differences[f"{dialect}, sampled"] = max(largest_logprob_difference(each, model) for each in sampled)
    assert {dialect: value for dialect, value in differences.items() if value >= 1e-3} == {}


def test_greedy_rollouts_are_the_same_token_by_token(rollouts: Callable[[str], dict[str, Made]]) -> None:
    ours, theirs = rollouts("vllm"), rollouts("transformers")
    for dialect in DIALECTS:
        assert list(map(essence, ours[dialect][1])) == list(map(essence, theirs[dialect][1])), dialect


def essence(trajectory: Trajectory) -> tuple[object, ...]:
    lines = [(line.start, line.end, line.text, line.kind, line.output) for line in trajectory.lines]
    return trajectory.completion_ids, trajectory.sampled_mask, trajectory.stop_reason, lines
