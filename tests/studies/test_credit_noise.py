"""Gradients of many estimators from one pass, held against plain ones; and what is made of their inner products."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from made_trajectories import line, made
from peft import LoraConfig, get_peft_model
from recorded import recorded
from transformers import AutoModelForCausalLM

from repl_rl.config import CreditConfig
from repl_rl.models.nano import NANO_PATH
from repl_rl.trajectory import LineKind, Task, Trajectory
from studies.credit_noise import estimators, statistics
from studies.credit_noise.gradients import Gradients, line_products
from studies.credit_noise.parts import PARTS, _moments, weights_of
from studies.credit_noise.states import plain

pytestmark = pytest.mark.slow

TEMPERATURE = 0.8
GROUPS = [
    [
        replace(recorded(Task("t", "?", "1"), 10 * half + index, lines=1 + index), prompt_ids=tuple(range(50, 70)))
        for index in range(3)
    ]
    for half in range(2)
]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32),
        LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
    ).eval()
    for name, weights in model.named_parameters():
        if "lora_B" in name:  # which begins with zeros
            torch.nn.init.normal_(weights.data, std=0.02)
    return model


def line_logprobs(model: Any, trajectory: Trajectory) -> list[torch.Tensor]:
    """The log-probability of each line by a plain pass over this session alone."""
    before = len(trajectory.prompt_ids)
    ids = torch.tensor([[*trajectory.prompt_ids, *trajectory.completion_ids]])
    logps = torch.log_softmax(model(ids).logits[0] / TEMPERATURE, dim=-1)
    tokens = [range(each.start + before, each.end + before) for each in trajectory.lines]
    return [sum((logps[at - 1, ids[0, at]] for at in places), torch.zeros(())) for places in tokens]


def test_a_group_has_the_gradient_of_plain_passes_over_its_sessions(model: Any) -> None:
    group = GROUPS[0]
    gradients = Gradients(model, TEMPERATURE)
    done = gradients.forward(group)
    values = torch.randn(sum(len(each.lines) for each in group), generator=torch.Generator().manual_seed(1))
    found = gradients.by_adapters(done, values[done.lines])
    plain = torch.stack([each for trajectory in group for each in line_logprobs(model, trajectory)])
    expected = torch.autograd.grad((values * plain).sum(), gradients.adapters)
    flat = torch.cat([each.flatten() for each in expected])
    assert torch.linalg.vector_norm(found - flat) < 1e-4 * torch.linalg.vector_norm(flat)
    of_line = torch.zeros(len(values)).index_add(0, done.lines, done.logprobs)
    assert of_line.tolist() == pytest.approx(plain.tolist(), abs=1e-3)


def test_products_of_lines_are_those_of_their_gradients_by_the_last_projection(model: Any) -> None:
    gradients = Gradients(model, TEMPERATURE)
    counts = [sum(len(each.lines) for each in group) for group in GROUPS]
    found = line_products([gradients.forward(group) for group in GROUPS], counts)
    weights = model.get_base_model().model.layers[-1].mlp.down_proj.base_layer.weight.requires_grad_()
    vectors = [
        torch.autograd.grad(each, weights, retain_graph=True)[0].flatten()
        for group in GROUPS
        for trajectory in group
        for each in line_logprobs(model, trajectory)
    ]
    weights.requires_grad_(False)
    expected = torch.stack(vectors) @ torch.stack(vectors).T
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_baselines_of_states_by_hand() -> None:
    """The start is shared by all, and comments leave it as it is; after `1`, two sessions are in one state."""
    comment = line("# first", LineKind.COMMENT)
    sessions = [
        made([comment, comment, line("1", fingerprint="a"), line("2")]),
        made([line("1", fingerprint="a"), line("3")]),
        made([line("7", fingerprint="b"), line("3")]),
    ]
    rewards = [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0], [0.0, 2.0]]
    # the second session's first line is beside three lines of return 1 and one of 2, with 1.5 at its place
    of_second = {
        "shrunk": -(1 + 1 + 1 + 2 + 1.5) / 5,
        "shrunk_by_four": -(1 + 1 + 1 + 2 + 4 * 1.5) / 8,
        "by_session": -(1 + 2) / 2,
        "shrunk_by_session": -(1 + 2 + 1.5) / 3,
    }
    for name, expected in of_second.items():
        first, second, third = getattr(estimators, name)(sessions, rewards, CreditConfig())
        assert first[0] == pytest.approx(1 - (0 + 2) / 2)
        assert second[0] == pytest.approx(expected)
        assert third[1] == pytest.approx(2 - 0.5)  # nobody else was there
    assert estimators.shrunk(sessions, rewards, CreditConfig())[1][1] == pytest.approx(-(1 + 1.5) / 2)


def products(problems: int, seed: int) -> np.ndarray:
    """Of vectors of two estimators around a mean of their problem: the second has noise of twice the length."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(problems, 1, 1, 6))
    noise = rng.normal(size=(problems, 2, 2, 6)) * np.array([1.0, 2.0])[:, None, None]
    return np.einsum("nehx,nfkx->nehfk", means + noise, means + noise)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("12.0", "12"), ("Fraction(24, 2)", "12"), ("0.5", "1/2"), ("1/2", "1/2"), ("'12'", "'12'"), ("[1.0]", "[1.0]")],
)
def test_equal_numbers_have_one_form(value: str, expected: str) -> None:
    assert plain(value) == expected


def test_noise_and_signal_are_told_apart() -> None:
    many = products(20_000, 0)
    found = statistics.ratio(statistics.noise(many, 1), statistics.noise(many, 0))
    assert found.value == pytest.approx(4, rel=0.03)
    signal = statistics.ratio(statistics.signal(many, 1, 0), statistics.signal(many, 0))
    assert signal.value == pytest.approx(1, rel=0.03)
    assert statistics.size(many, 1).mean() == pytest.approx(6 * (1 + 4), rel=0.03)


def test_an_interval_holds_the_ratio_as_often_as_it_says() -> None:
    held = []
    for seed in range(200):
        few = products(60, seed)
        found = statistics.ratio(statistics.noise(few, 1), statistics.noise(few, 0), resampled=400)
        held.append(found.low < 4 < found.high)
    assert 0.88 < np.mean(held) < 0.99


def test_four_times_the_problems_show_half_the_effect() -> None:
    few = products(60, 0)
    sizes = statistics.size(few, 1), statistics.size(few, 0)
    assert statistics.smallest_effect(*sizes, 50) == pytest.approx(2 * statistics.smallest_effect(*sizes, 200))


def test_moments_of_parts_are_those_of_their_gradients() -> None:
    """Of 5 problems with 3 parts in two groups: the mean length, and the mean products with another group's whole."""
    gradients = np.random.default_rng(0).normal(size=(5, 3, 2, 4))  # (problems, E, 2, dimensions)
    products = np.einsum("pehx,qfkx->pehqfk", gradients, gradients)
    size, within, across = _moments(products, 1, np.full((1, 5), 1 / 5))
    part, whole = gradients[:, 1], gradients[:, 0]
    assert size == pytest.approx((part**2).sum(axis=-1).mean())
    crossed = whole[:, ::-1]
    assert within == pytest.approx((part * crossed).sum(axis=-1).mean())
    assert across == pytest.approx((part.mean(axis=0) * crossed.mean(axis=0)).sum(axis=-1).mean())


def test_parts_of_a_group_add_up_to_the_whole() -> None:
    """One session thinks first; both then bind the same, and the first is right."""
    comment = line("# think", LineKind.COMMENT)
    first = [comment, line("x = 1", fingerprint="a"), replace(line("y = 2", fingerprint="b"), reward=1.0)]
    second = [line("x = 1", fingerprint="a"), line("y = 3", fingerprint="c"), line("y")]
    weights = dict(zip(PARTS, weights_of([made(first), made(second)]), strict=True))
    assert weights["whole"].tolist() == [1, 1, 1, -1, -1, -1]
    assert weights["comments"].tolist() == [1, 0, 0, 0, 0, 0]
    assert weights["shared states"].tolist() == [1, 1, 1, -1, -1, 0]
    for part, rest in (("comments", "without comments"), ("own states", "shared states")):
        assert (weights[part] + weights[rest]).tolist() == weights["whole"].tolist()
