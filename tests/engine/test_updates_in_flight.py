"""Weights that change while sessions are under way: each token is that of the weights which it is recorded with."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from random_checkpoint import make_random_checkpoint
from transformers import AutoModelForCausalLM

from repl_rl.config import BranchConfig, BudgetConfig, EngineConfig, KernelConfig, ModelConfig, SamplingConfig
from repl_rl.engine import Vocabulary, load_vocabulary, make_engine
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import Task, Trajectory, whole_session

CONTEXT_TOKENS = 1024
UPDATES = 6
TREE = BranchConfig(roots=2, forks=2, branches=3, within=20)


pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_checkpoint(tmp_path_factory.mktemp("checkpoint"), end_bias=-3.0)


@pytest.fixture(scope="module")
def models(checkpoint: Path) -> list[Any]:
    """The policy of each version."""
    models = []
    for version in range(UPDATES + 1):
        torch.manual_seed(version)
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if version and "proj" in name:
                    weight.add_(0.3 * weight.std() * torch.randn_like(weight))
        models.append(model)
    return models


@pytest.fixture(params=["vllm", "transformers"])
def engine(request: pytest.FixtureRequest, checkpoint: Path, vocabulary: Vocabulary) -> Iterator[Any]:
    config = EngineConfig(backend=request.param, context_tokens=CONTEXT_TOKENS, places=12)
    engine = make_engine(str(checkpoint), vocabulary, ModelConfig(), config, seed=1)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def vocabulary(checkpoint: Path) -> Vocabulary:
    return load_vocabulary(str(checkpoint))


def assert_tokens_are_those_of_their_versions(trajectory: Trajectory, models: list[Any]) -> None:
    ids = torch.tensor([trajectory.prompt_ids + trajectory.completion_ids])
    start = len(trajectory.prompt_ids)
    versions = trajectory.token_versions
    assert len(versions) == len(trajectory.completion_ids)
    with torch.no_grad():
        logps = {
            version: torch.log_softmax(models[version](input_ids=ids).logits[0], dim=-1) for version in {*versions}
        }
    for place, token in enumerate(trajectory.completion_ids):
        if trajectory.sampled_mask[place]:
            found = logps[versions[place]][start + place - 1, token].item()
            assert abs(found - trajectory.logprobs[place]) < 1e-3, (place, versions[place])


def test_each_token_has_the_logprob_of_the_weights_that_sampled_it(
    engine: Any, vocabulary: Vocabulary, models: list[Any]
) -> None:
    """Sessions and trees are under way while weights are updated six times; lines in flight go on with the new ones."""
    setup = RolloutSetup(
        vocabulary,
        context_tokens=CONTEXT_TOKENS,
        budget=BudgetConfig(line_tokens=64, lines=24, tokens=800),
        sampling=SamplingConfig(),
        kernel=KernelConfig(size=24),
        chat=False,
    )
    ended = threading.Semaphore(0)
    tasks = [Task(f"t{number}", f"What is {number} + 1?", "1") for number in range(48)]
    with start_service(engine, setup) as service:
        calls = [service.begin(RolloutBatch(tasks[:24]), lambda *_: ended.release())]
        calls.append(service.begin(RolloutBatch([tasks[0]] * TREE.group_size, branch=TREE), lambda *_: ended.release()))
        for version in range(1, UPDATES + 1):
            for _ in range(3):
                assert ended.acquire(timeout=300)
            engine.load_weights([(name, weight.data) for name, weight in models[version].named_parameters()])
            assert engine.version == version
        made = [call.result(300) for call in calls]
    trajectories, group = made
    sessions = [*trajectories, *(whole_session(each, group) for each in group)]
    for trajectory in sessions:
        assert_tokens_are_those_of_their_versions(trajectory, models)
    assert any(len(trajectory.updates) > 1 for trajectory in sessions)
    starts = {line.start for trajectory in sessions for line in trajectory.lines}
    assert any(place not in starts for trajectory in sessions for place, _ in trajectory.updates), "none within a line"
    assert Trajectory.from_dict(sessions[0].to_dict()) == sessions[0]
