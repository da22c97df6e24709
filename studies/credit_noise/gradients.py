"""Gradients of what a group of sessions typed, for many vectors of advantages at the cost of one forward pass.

The gradient of a group is the sum over typed tokens t of A_t grad log p_t, with p at the temperature of sampling. A
token's log-probability depends on the model's last hidden state at its own position alone, so that d log p_t / d hidden
is found once, and each vector of advantages takes a backward pass from there.

With respect to the `down_proj` of the last layer, where each token's loss reaches its own position alone, no backward
pass is needed: a token's gradient is the outer product of d_t, the derivative at the layer's output, and x_t, the
projection's input, and the inner product of two tokens' gradients is (d_s . d_t)(x_s . x_t).

K typed tokens of the group, L lines, H hidden size, F inputs of the projection, P adapter parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from repl_rl.trainer.attention import PACKED_ATTENTION
from repl_rl.trainer.packing import pack
from repl_rl.trajectory import Trajectory

_TOKENS_AT_ONCE = 128
"""Of the head: each has a row of logits as long as the vocabulary."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass over a group, of which gradients can be taken."""

    hidden: torch.Tensor
    """(K, H): the states that predict typed tokens, with their graph."""
    derivatives: torch.Tensor
    """(K, H): of each typed token's log-probability by its own state."""
    logprobs: torch.Tensor
    """(K,), in nats, at the temperature of sampling."""
    lines: torch.Tensor
    """(K,): the line of each token, counted through all sessions of the group."""
    inputs: torch.Tensor
    """(K, F): of the last layer's `down_proj`."""
    outputs: torch.Tensor
    """(K, H): the derivatives at its output."""


class Gradients:
    """By the adapters of a PEFT model on the CPU, whose base is a decoder of transformers' usual form."""

    def __init__(self, model: Any, temperature: float) -> None:
        self.base = model.get_base_model()
        self.base.set_attn_implementation(PACKED_ATTENTION)
        self.base.eval()
        self.temperature = temperature
        self.adapters = [weights for _, weights in model.named_parameters() if weights.requires_grad]

    def forward(self, group: Sequence[Trajectory], *, with_graph: bool = True) -> Pass:
        """One pass over the sessions of one task, whose prompt is computed once. Without its graph, no gradient by the
        adapters can be taken, and it takes a third of the time."""
        ids, attention, typed = padded(group)
        packed = pack(ids, attention, typed)
        kept: dict[str, torch.Tensor] = {}
        hooks = [
            self.base.model.layers[-1].mlp.down_proj.register_forward_pre_hook(
                lambda _, given: kept.update(inputs=given[0])
            ),
            self.base.model.norm.register_forward_pre_hook(lambda _, given: kept.update(before_norm=given[0])),
        ]
        try:
            with torch.set_grad_enabled(with_graph):
                states = self.base.model(
                    input_ids=packed.ids,
                    position_ids=packed.positions,
                    attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool),
                    sequence_lengths=packed.lengths,
                    sequence_shared=packed.shared,
                    use_cache=False,
                ).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        hidden = states[0, packed.at]
        derivatives, logprobs = self._of_head(hidden.detach(), packed.targets)
        before_norm = kept["before_norm"][0, packed.at].detach().requires_grad_()
        (outputs,) = torch.autograd.grad(self.base.model.norm(before_norm), before_norm, derivatives)
        return Pass(
            hidden,
            derivatives,
            logprobs,
            line_numbers(group, typed)[packed.offsets],
            kept["inputs"][0, packed.at].detach(),
            outputs,
        )

    def by_adapters(self, done: Pass, advantages: torch.Tensor) -> torch.Tensor:
        """The group's gradient, (P,), for advantages of each typed token, (K,)."""
        if not advantages.any():  # a group without variance, half of all where the outcome alone is paid
            return torch.zeros(sum(each.numel() for each in self.adapters))
        found = torch.autograd.grad(
            done.hidden, self.adapters, advantages[:, None] * done.derivatives, retain_graph=True
        )
        return torch.cat([each.flatten() for each in found])

    def _of_head(self, hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(K, H) derivatives by `hidden`, and (K,) log-probabilities."""
        derivatives, logprobs = [], []
        for states, chosen in zip(hidden.split(_TOKENS_AT_ONCE), targets.split(_TOKENS_AT_ONCE), strict=True):
            leaf = states.detach().requires_grad_()
            logits = self.base.lm_head(leaf).float() / self.temperature
            taken = torch.log_softmax(logits, dim=-1).gather(1, chosen[:, None])[:, 0]
            derivatives.append(torch.autograd.grad(taken.sum(), leaf)[0])
            logprobs.append(taken.detach())
        return torch.cat(derivatives), torch.cat(logprobs)


def line_products(passes: Sequence[Pass], counts: Sequence[int]) -> torch.Tensor:
    """(L, L): inner products of the gradients by the last `down_proj` of all lines of several passes, `counts` each."""
    starts = torch.tensor([0, *counts]).cumsum(0)
    lines = torch.cat([done.lines + start for done, start in zip(passes, starts, strict=False)])
    inputs = torch.cat([done.inputs for done in passes])
    outputs = torch.cat([done.outputs for done in passes])
    products = (inputs @ inputs.T) * (outputs @ outputs.T)  # (K, K)
    of_line = torch.nn.functional.one_hot(lines, int(starts[-1])).to(products)  # (K, L)
    return of_line.T @ products @ of_line


def padded(group: Sequence[Trajectory]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids and attention mask, (B, S), and the mask of typed tokens, (B, T), of sessions with one prompt."""
    prompt = list(group[0].prompt_ids)
    width = max(len(each.completion_ids) for each in group)
    ids = torch.zeros(len(group), len(prompt) + width, dtype=torch.long)
    attention, typed = torch.zeros_like(ids), torch.zeros(len(group), width, dtype=torch.long)
    for row, each in enumerate(group):
        if list(each.prompt_ids) != prompt:
            raise ValueError(f"sessions of task {each.task_id!r} have different prompts")
        whole = [*prompt, *each.completion_ids]
        ids[row, : len(whole)] = torch.tensor(whole)
        attention[row, : len(whole)] = 1
        typed[row, : len(each.sampled_mask)] = torch.tensor(each.sampled_mask, dtype=torch.long)
    return ids, attention, typed


def line_numbers(group: Sequence[Trajectory], typed: torch.Tensor) -> torch.Tensor:
    """(B * T,): which line of the group each token is of, -1 for outputs."""
    numbers, count = torch.full(typed.shape, -1), 0
    for row, each in enumerate(group):
        for line in each.lines:
            numbers[row, line.start : line.end] = count
            count += 1
    return numbers.flatten()
