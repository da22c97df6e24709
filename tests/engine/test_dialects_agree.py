"""Every dialect behind every engine: sequences are exact, logprobs are a forward pass's, greedy sessions the same.

nano-conventions types, which was shown all of them but `ipython`, and its code runs in real kernels. One engine serves
all, with `inline`'s stops: where a turn ends changes nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from exactness import (
    RecordingEngine,
    assert_masked_text_is_the_outputs,
    assert_the_engine_was_given_the_sequence_so_far,
    largest_logprob_difference,
)
from transformers import AutoModelForCausalLM

from repl_rl.config import BudgetConfig, DialectConfig, EngineConfig, KernelConfig, ModelConfig, SamplingConfig
from repl_rl.dialect import DIALECTS
from repl_rl.engine import Vocabulary, load_vocabulary, make_engine
from repl_rl.models.nano import SHIPPED
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Trajectory

pytestmark = pytest.mark.slow

MODEL = str(SHIPPED["nano-conventions"])
CONTEXT_TOKENS = 512
ENGINES = ["vllm", "transformers"]
SHOWN = {
    "python": ">>>",
    "ipython": "\nIn [",
    "fenced": "```output\n",
    "inline": "</fn_",
    "tool_call": "<tool_response>",
}
"""What stands in many outputs of a dialect."""

Made = tuple[list[Trajectory], list[Trajectory], RecordingEngine]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(MODEL, DIALECTS["inline"].stops)


@pytest.fixture(scope="module")
def rollouts(vocabulary: Vocabulary) -> Callable[[str], dict[str, Made]]:
    """Sampled and greedy trajectories of an engine by dialect, made once."""
    made: dict[str, dict[str, Made]] = {}

    def of(name: str) -> dict[str, Made]:
        if name not in made:
            config = EngineConfig(backend=name, context_tokens=CONTEXT_TOKENS)
            engine = make_engine(MODEL, vocabulary, ModelConfig(path=MODEL), config, seed=5)
            try:
                made[name] = {dialect: roll_out(RecordingEngine(engine), vocabulary, dialect) for dialect in DIALECTS}
            finally:
                engine.close()
        return made[name]

    return of


def roll_out(engine: RecordingEngine, vocabulary: Vocabulary, dialect: str) -> Made:
    tasks = make_tasks(None, 6, seed=3, split="heldout")
    with start_service(
        engine,
        RolloutSetup(
            vocabulary,
            DialectConfig(name=dialect, max_output_chars=80),
            context_tokens=CONTEXT_TOKENS,
            budget=BudgetConfig(line_tokens=96, lines=16, tokens=400),
            sampling=SamplingConfig(temperature=1.2),
            chat=True,
            kernel=KernelConfig(size=8),
        ),
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
        put_in = [line.output for each in trajectories for line, _ in pairwise(each.lines) if line.output]
        assert sum(SHOWN.get(dialect, "never") in text for text in put_in) >= (3 if dialect in SHOWN else 0), dialect


@pytest.mark.parametrize("name", ENGINES)
def test_logprobs_agree_with_a_float32_forward_pass(rollouts: Callable[[str], dict[str, Made]], name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
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
