"""64 rollouts of nano through real vLLM and real sandboxed kernels are exact to the token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from exactness import (
    RecordingEngine,
    assert_masked_text_is_the_outputs,
    assert_the_engine_was_given_the_sequence_so_far,
    largest_logprob_difference,
)
from transformers import AutoModelForCausalLM

from repl_rl.config import (
    BranchConfig,
    BudgetConfig,
    DialectConfig,
    EngineConfig,
    KernelConfig,
    ModelConfig,
    SamplingConfig,
)
from repl_rl.engine import Vocabulary, load_vocabulary, make_engine
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.service import RolloutService
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.tasks import make_tasks
from repl_rl.trajectory import Trajectory, whole_session

CONTEXT_TOKENS = 512
TREE = BranchConfig(roots=3, forks=2, branches=3, within=5)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(str(NANO_PATH))


@pytest.fixture(scope="module")
def engine(vocabulary: Vocabulary) -> Iterator[RecordingEngine]:
    config = EngineConfig(context_tokens=CONTEXT_TOKENS)
    engine = make_engine(str(NANO_PATH), vocabulary, ModelConfig(), config, seed=7)
    yield RecordingEngine(engine)
    engine.close()


@pytest.fixture(scope="module")
def made(engine: RecordingEngine, vocabulary: Vocabulary) -> tuple[list[Trajectory], list[Trajectory]]:
    """Independent trajectories, and four groups of trees."""
    tasks = make_tasks(None, 64, seed=3, split="heldout")
    with RolloutService(
        engine,
        RolloutSetup(
            vocabulary,
            DialectConfig(max_output_chars=120),
            context_tokens=CONTEXT_TOKENS,
            budget=BudgetConfig(line_tokens=48, lines=8, tokens=256),
            sampling=SamplingConfig(temperature=1.3),
            kernel=KernelConfig(size=16),
        ),
    ) as service:
        return service.generate(tasks), service.generate(
            [task for task in tasks[:4] for _ in range(TREE.group_size)], branch=TREE
        )


@pytest.fixture(scope="module")
def trajectories(made: tuple[list[Trajectory], list[Trajectory]]) -> list[Trajectory]:
    return made[0]


@pytest.fixture(scope="module")
def trees(made: tuple[list[Trajectory], list[Trajectory]]) -> list[Trajectory]:
    return made[1]


def test_64_rollouts_are_made_of_many_kinds_of_lines(trajectories: list[Trajectory]) -> None:
    assert len(trajectories) == 64
    kinds = {line.kind for trajectory in trajectories for line in trajectory.lines}
    assert {"statement", "expression", "answer"} <= kinds
    assert kinds & {"exception", "syntax_error"}
    assert not any(trajectory.is_void for trajectory in trajectories)


def test_the_engine_was_given_prompt_and_completion_so_far(
    trajectories: list[Trajectory], trees: list[Trajectory], engine: RecordingEngine
) -> None:
    """Each sampled token is in one trajectory: a branch has those of its root in its prompt."""
    assert_the_engine_was_given_the_sequence_so_far([*trajectories, *trees], engine.calls)


def test_trees_have_forks_and_their_branches_begin_as_their_roots_do(trees: list[Trajectory]) -> None:
    groups = [trees[start : start + TREE.group_size] for start in range(0, len(trees), TREE.group_size)]
    begun = [each.branch for each in trees if each.branch is not None]
    assert len(begun) == len(groups) * (TREE.group_size - TREE.roots)
    assert any(branch.by == "fork" and branch.line > 0 for branch in begun)
    for group in groups:
        for each in group:
            session = whole_session(each, group)
            assert session.prompt_ids == group[0].prompt_ids
            assert (
                session.completion_ids[len(session.completion_ids) - len(each.completion_ids) :] == each.completion_ids
            )


def test_masked_text_is_exactly_the_outputs(
    trajectories: list[Trajectory], trees: list[Trajectory], vocabulary: Vocabulary
) -> None:
    for trajectory in [*trajectories, *trees]:
        assert_masked_text_is_the_outputs(trajectory, vocabulary)


def test_logprobs_equal_a_float32_forward_pass_over_the_finished_sequence(
    trajectories: list[Trajectory], trees: list[Trajectory]
) -> None:
    # The sampler's are at temperature 1.3 (processed_logprobs): so is the reference.
    model = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32).eval()
    model.lm_head.register_forward_hook(lambda module, arguments, logits: logits / 1.3)
    assert max(largest_logprob_difference(trajectory, model) for trajectory in [*trajectories, *trees]) < 1e-3
