"""Inner products of the gradients of a problem's groups, with the policy that sampled them.

E estimators, P adapter parameters, L lines of both groups, K typed tokens of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from peft import PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from repl_rl.config import CreditConfig
from repl_rl.credit import batch_line_advantages
from repl_rl.errors import ConfigError
from repl_rl.models import resolve_model
from repl_rl.run.lora import lora_config
from repl_rl.trajectory import Trajectory
from studies.credit_noise.gradients import Gradients, line_products
from studies.credit_noise.settings import ESTIMATORS, GROUPS, NoiseSettings
from studies.credit_noise.statistics import Array


class Products:
    """The policy in float32, ready for `of_problem`. Raises ConfigError for a checkpoint of other adapters."""

    def __init__(self, settings: NoiseSettings) -> None:
        config = settings.loaded
        torch.manual_seed(config.seed)
        base = AutoModelForCausalLM.from_pretrained(resolve_model(config.model.path), dtype=torch.float32)
        self.divisor: torch.Tensor | None = None
        """(P,): what Adam would divide a gradient by; None for fresh adapters, of which it remembers nothing."""
        if settings.adapter is None:
            model = get_peft_model(base, lora_config(config.train))
            self.gradients = Gradients(model, config.sampling.temperature)
            return
        model = PeftModel.from_pretrained(base, str(settings.adapter), is_trainable=True)
        self.gradients = Gradients(model, config.sampling.temperature)
        stored = torch.load(settings.adapter / "optimizer.pt", weights_only=True)
        states, group = [stored["state"][at] for at in sorted(stored["state"])], stored["param_groups"][0]
        moments = [state["exp_avg_sq"] for state in states]
        if [each.shape for each in moments] != [each.shape for each in self.gradients.adapters]:
            raise ConfigError(f"--adapter {settings.adapter}: its optimizer.pt is of other weights")
        bias = 1 - group["betas"][1] ** float(states[0]["step"])
        self.divisor = (torch.cat([each.flatten() for each in moments]) / bias).sqrt() + group["eps"]

    def of_problem(self, groups: Sequence[Sequence[Trajectory]]) -> dict[str, Array]:
        """By name: `plain`, (E, 2, E, 2), of the gradients of `ESTIMATORS` by all adapters; `scaled`, the same, divided
        as Adam would; `lines`, (L, L), of lines by the last `down_proj`; `tokens`, (2,), that were typed; and `drift`,
        by how much log-probabilities are off the sampler's at most, in nats."""
        passes, gradients = [], []
        for group in groups:
            done = self.gradients.forward(group)
            of_group = [
                self.gradients.by_adapters(done, _of_tokens(group, config)[done.lines])
                for config in ESTIMATORS.values()
            ]
            gradients.append(torch.stack(of_group))
            passes.append(replace(done, hidden=done.hidden.detach()))  # its graph takes gigabytes
        vectors = torch.stack(gradients, dim=1).flatten(0, 1)
        drift = 0.0
        for group, done in zip(groups, passes, strict=True):
            off = done.logprobs - torch.tensor(_sampled_logprobs(group))
            drift = max(drift, float(off.abs().max()))
        found = {
            "plain": _products(vectors),
            "lines": line_products(passes, [_line_count(group) for group in groups]).numpy(),
            "tokens": np.array([len(done.logprobs) for done in passes]),
            "drift": np.array(drift),
        }
        if self.divisor is not None:
            found["scaled"] = _products(vectors / self.divisor)
        return found


def line_advantages_of(groups: Sequence[Sequence[Trajectory]], config: CreditConfig) -> list[list[float]]:
    """For each group of a batch, the advantages of the lines of all its sessions, by the rewards that they carry."""
    rewards = [[[line.reward or 0.0 for line in each.lines] for each in group] for group in groups]
    right = [[[_is_right(line.shown, each) for line in each.lines] for each in group] for group in groups]
    found = batch_line_advantages(groups, rewards, config, shown=right)
    return [[value for of_one in group for value in of_one] for group in found]


def _is_right(shown: str, trajectory: Trajectory) -> bool:
    """Whether a line showed the reference answer, as `repl_rl.rollout.score` says it."""
    return shown.strip() == (trajectory.reference or "").strip() != ""


def _of_tokens(group: Sequence[Trajectory], config: CreditConfig) -> torch.Tensor:
    (values,) = line_advantages_of([group], config)
    return torch.tensor(values)


def _sampled_logprobs(group: Sequence[Trajectory]) -> list[float]:
    """Of the typed tokens of all sessions, as the sampler had them."""
    found = list[float]()
    for session in group:
        for line in session.lines:
            found += session.logprobs[line.start : line.end]
    return found


def _line_count(group: Sequence[Trajectory]) -> int:
    return sum(len(each.lines) for each in group)


def _products(vectors: torch.Tensor) -> Array:
    """(E, 2, E, 2) of (E * 2, P)."""
    count = len(ESTIMATORS)
    found: Array = (vectors @ vectors.T).reshape(count, GROUPS, count, GROUPS).numpy()
    return found
