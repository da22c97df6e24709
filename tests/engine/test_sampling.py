"""Tokens and log-probabilities from logits: worked by hand, and as vLLM processes the same logits."""

import math

import pytest
import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

from repl_rl.config import SamplingConfig
from repl_rl.engine.transformers.model import sample_tokens

PROBABILITIES = [0.5, 0.3, 0.15, 0.05]
LOGITS = torch.tensor([PROBABILITIES]).log() + 3.0  # (1, 4)


def sampled(setting: SamplingConfig, uniform: float) -> tuple[int, float]:
    ids, logprobs = sample_tokens(LOGITS, [setting], [uniform])
    return ids[0], math.exp(logprobs[0])


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (0.94, 2), (0.96, 3), (1 - 2**-53, 3)]
)
def test_a_token_is_drawn_by_inversion(uniform: float, token: int) -> None:
    assert sampled(SamplingConfig(), uniform) == (token, pytest.approx(PROBABILITIES[token]))


def test_greedy_takes_the_likeliest_and_reports_it_at_temperature_one_untruncated() -> None:
    assert sampled(SamplingConfig(temperature=0, top_k=1, top_p=0.1), 0.99) == (0, pytest.approx(0.5))


def test_rows_have_settings_of_their_own() -> None:
    settings = [SamplingConfig(), SamplingConfig(temperature=0), SamplingConfig(top_k=1), SamplingConfig(top_p=0.6)]
    ids, logprobs = sample_tokens(LOGITS.expand(4, -1), settings, [0.99, 0.99, 0.99, 0.99])
    assert ids == [3, 0, 0, 1]
    assert [math.exp(logprob) for logprob in logprobs] == pytest.approx([0.05, 0.5, 1.0, 0.375])


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.9), (5, 1.0), (7, 0.5), (200, 0.99)])
def test_the_distribution_is_vllms(top_k: int, top_p: float) -> None:
    logits = torch.randn(16, 50, generator=torch.Generator().manual_seed(2)) * 3
    ks, ps = torch.full((16,), min(top_k or 50, 50)), torch.full((16,), top_p)
    expected = torch.log_softmax(apply_top_k_top_p_pytorch(logits / 0.7, ks, ps), dim=-1)
    for uniform in (0.01, 0.3, 0.7, 0.99):
        setting = SamplingConfig(temperature=0.7, top_k=top_k, top_p=top_p)
        ids, logprobs = sample_tokens(logits, [setting] * 16, [uniform] * 16)
        assert logprobs == pytest.approx(expected[range(16), ids].tolist(), abs=1e-5)


@pytest.mark.parametrize("setting", [SamplingConfig(), SamplingConfig(temperature=0), SamplingConfig(top_p=0.5)])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_row_of_broken_logits_has_a_logprob_that_is_not_finite(setting: SamplingConfig, broken: float) -> None:
    logits = torch.tensor([[0.0, broken, 1.0], [0.0, 2.0, 1.0]])
    _, logprobs = sample_tokens(logits, [setting, setting], [0.5, 0.5])
    assert not math.isfinite(logprobs[0])
    assert math.isfinite(logprobs[1])
