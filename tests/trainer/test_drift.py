"""How far trainer and sampler are apart."""

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from repl_rl.errors import TrainingError
from repl_rl.trainer.step_log import StepLog

TRAINER = torch.tensor([[-1.0, -2.0, -9.0], [-0.5, math.nan, -1.0]])
SAMPLER = torch.tensor([[-1.25, -1.5, 0.0], [-0.5, 0.0, math.inf]])
TYPED = torch.tensor([[1, 1, 0], [1, 0, 0]])
RATIOS = torch.tensor([[1.25, 0.5, 9.0], [1.0, 0.0, 0.0]])


class Logging:
    def __init__(self) -> None:
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(gather=lambda values: values)
        self.state = SimpleNamespace(global_step=7)
        self._metrics: dict[str, Any] = {"train": defaultdict(list)}

    @property
    def logged(self) -> dict[str, list[float]]:
        return dict(self._metrics["train"])


@pytest.mark.parametrize("parts", [(2,), (1, 1)], ids=["a batch as a whole", "in parts"])
def test_logprobs_differ_over_typed_tokens_only(parts: tuple[int, ...]) -> None:
    trainer = Logging()
    log = StepLog(trainer)
    for values in zip(*(each.split(parts) for each in (TRAINER, SAMPLER, TYPED, RATIOS)), strict=True):
        log.drift(*values)
    assert trainer.logged == {
        "drift/logprob_mean": [0.25],
        "drift/logprob_max": [0.5],
        "sampling/sampling_logp_difference/mean": [0.25],
        "sampling/sampling_logp_difference/max": [0.5],
        "sampling/importance_sampling_ratio/min": [0.5],
        "sampling/importance_sampling_ratio/mean": [2.75 / 3],
        "sampling/importance_sampling_ratio/max": [1.25],
    }


def test_nothing_is_logged_of_nothing_typed() -> None:
    trainer = Logging()
    StepLog(trainer).drift(TRAINER, SAMPLER, torch.zeros_like(TYPED))
    assert trainer.logged == {}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_ends_the_run(number: float) -> None:
    broken = torch.tensor([[-1.0, number]])
    with pytest.raises(TrainingError, match=r"differ by (nan|inf) at step 7: the weights are not numbers any more"):
        StepLog(Logging()).drift(broken, torch.tensor([[-1.0, -1.0]]), torch.ones(1, 2))
