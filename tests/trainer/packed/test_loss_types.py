"""Each of TRL's losses against its formula, worked out token by token in plain floats on a hand-made batch.

The formulas are those of the papers that TRL's `loss_type` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from test_masked_loss import (
    ADVANTAGES,
    PADDING_MASK,
    TYPED_MASK,
    TYPED_TOKENS,
    WithoutEngine,
    batch,
    make_trainer,
    plain_logps,
)

TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
EPSILON, EPSILON_HIGH, BETA, MAX_TOKENS = 0.2, 0.3, 0.05, 40
SAPO_POSITIVE, SAPO_NEGATIVE = 1.0, 1.05
# log(new / old), log(new / reference) and the ratio trainer / sampler of each token. Outputs and padding have large
# ones that the mask has to keep out.
LOG_RATIOS = [[0.0, 0.5, 3.0, 3.0, -0.5, 0.1], [-0.4, 3.0, 0.25, 0.0, -0.1, 3.0]]
TO_REFERENCE = [[0.2, -0.3, 2.0, 2.0, 0.1, 0.0], [0.4, 2.0, -0.1, 0.3, -0.6, 2.0]]
CORRECTIONS = [[1.0, 0.9, 1.0, 1.0, 1.2, 1.1], [0.8, 1.0, 1.0, 1.5, 0.95, 1.0]]


@dataclass
class Token:
    """What one typed token brings into the loss."""

    logprob: float
    log_ratio: float
    to_reference: float
    correction: float
    advantage: float
    sequence: list[Token] = field(default_factory=list, repr=False)

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)


def clipped(token: Token) -> float:
    inside = min(max(token.ratio, 1 - EPSILON), 1 + EPSILON_HIGH)
    return -min(token.ratio * token.advantage, inside * token.advantage)


def cispo(token: Token) -> float:
    return -min(token.ratio, EPSILON_HIGH) * token.advantage * token.logprob


def sapo(token: Token) -> float:
    temperature = SAPO_POSITIVE if token.advantage > 0 else SAPO_NEGATIVE
    gate = 1 / (1 + math.exp(-temperature * (token.ratio - 1)))
    return -gate * 4 / temperature * token.advantage


def vespo(token: Token, with_correction: bool) -> float:
    log_w = sum(other.log_ratio for other in token.sequence)
    log_w += sum(math.log(other.correction) for other in token.sequence) if with_correction else 0.0
    shape, rate = (2.0, 3.0) if token.advantage >= 0 else (3.0, 2.0)
    weight = math.exp(rate + shape * log_w - rate * math.exp(log_w))
    return -weight * token.advantage * token.logprob


def by_hand(loss_type: str, rows: list[list[Token]], with_kl: bool, with_correction: bool) -> float:
    per_token: Callable[[Token], float] = {"cispo": cispo, "sapo": sapo}.get(loss_type, clipped)

    def term(token: Token) -> float:
        value = vespo(token, with_correction) if loss_type == "vespo" else per_token(token)
        if with_correction and loss_type != "vespo":
            value *= token.correction
        # k3 (Schulman 2020), r - log r - 1 with r = reference / new, by the ratio (DeepSeek-V3.2)
        kl = token.ratio * (math.exp(-token.to_reference) + token.to_reference - 1)
        return value + (BETA * kl if with_kl else 0.0)

    sums = [sum(term(token) for token in row) for row in rows]
    if loss_type in ("grpo", "sapo"):
        return sum(total / len(row) for total, row in zip(sums, rows, strict=True)) / len(rows)
    if loss_type == "dr_grpo":
        return sum(sums) / (len(rows) * MAX_TOKENS)
    if loss_type == "luspo":
        return sum(sums) / len(rows)
    return sum(sums) / TYPED_TOKENS


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithoutEngine]:
    """On two threads, whatever earlier tests left: one rounds otherwise, which the exponents of vespo multiply."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield make_trainer(
        tmp_path_factory.mktemp("types"),
        epsilon=EPSILON,
        epsilon_high=EPSILON_HIGH,
        budget={"tokens": MAX_TOKENS},
        sapo_temperature_pos=SAPO_POSITIVE,
        sapo_temperature_neg=SAPO_NEGATIVE,
    )
    torch.set_num_threads(before)


def typed_tokens(logprobs: torch.Tensor) -> list[list[Token]]:
    rows: list[list[Token]] = []
    for row in range(2):
        tokens: list[Token] = []
        for at in range(6):
            if TYPED_MASK[row][at] and PADDING_MASK[row][at]:
                numbers = (LOG_RATIOS[row][at], TO_REFERENCE[row][at], CORRECTIONS[row][at], ADVANTAGES[row][at])
                tokens.append(Token(float(logprobs[row, at]), *numbers, sequence=tokens))
        rows.append(tokens)
    return rows


@pytest.mark.parametrize("with_correction", [False, True], ids=["uncorrected", "corrected"])
@pytest.mark.parametrize("with_kl", [False, True], ids=["no KL", "KL"])
@pytest.mark.parametrize("loss_type", TYPES)
def test_the_loss_is_its_formula_over_typed_tokens(
    trainer: WithoutEngine, monkeypatch: pytest.MonkeyPatch, loss_type: str, with_kl: bool, with_correction: bool
) -> None:
    monkeypatch.setattr(trainer, "loss_type", loss_type)
    monkeypatch.setattr(trainer, "beta", BETA if with_kl else 0.0)
    monkeypatch.setattr(trainer, "use_vllm", with_correction)
    with torch.no_grad():
        logprobs = plain_logps(trainer.model)
    inputs: dict[str, Any] = batch(old_logps=logprobs - torch.tensor(LOG_RATIOS))
    inputs["ref_per_token_logps"] = logprobs - torch.tensor(TO_REFERENCE)
    if with_correction:
        # TRL masks the difference before it takes its exponential, so that the ratio is 1 where nothing was typed
        inputs["importance_sampling_ratio"] = torch.tensor(CORRECTIONS)
    loss = trainer._compute_loss(trainer.model, inputs).item()
    expected = by_hand(loss_type, typed_tokens(logprobs), with_kl, with_correction)
    assert loss == pytest.approx(expected, abs=1e-6, rel=2e-6)
    assert abs(expected) > 1e-3


def test_every_loss_type_of_the_config_is_here(tmp_path: Path) -> None:
    from repl_rl.config import TrainConfig

    assert set(TYPES) == set(TrainConfig.model_fields["loss_type"].annotation.__args__)  # type: ignore[union-attr]
