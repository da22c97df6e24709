"""V as a ridge regression on the policy's hidden states, without further rollouts or another network.

    G_l = sum_{k >= l} gamma^(k - l) r_k          V(s) = w . x(s),  w = argmin sum (G - w . x)^2 + ridge |w|^2
    d_l = r_l + gamma V(s_{l+1}) - V(s_l)         A_l = sum_{k >= l} (gamma lam)^(k - l) d_k

where V = 0 after the last line. Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage
Estimation, with a linear value, as in `repl_rl.credit.critic`, whose x(s) is what the host knows of a session.

Here x(s) is the hidden state that predicts a line's first token, divided by its length, and a constant. w is fitted to
the returns of all other groups of the batch, and of earlier batches, each weighted `decay` times the one after it; V is
bounded by what these returned, and 0. The ridge is the one of `RIDGES` whose values were nearest to the returns of
earlier batches, the largest in the first. So a line's own reward decides nothing about its baseline.

L lines, H hidden units, F = H + 1 features. A batch takes F^3 steps, and the memory F^2 numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import TrainerCallback

from repl_rl.credit.return_to_go import discounted_returns
from repl_rl.trajectory import read_jsonl

Array = NDArray[Any]

RIDGES = 10.0 ** np.arange(2, -5, -1)
_CONSTANT = 3.0
"""Beside hidden states of length 1: so a ridge shrinks the mean of the returns less than what differs from it."""


class HiddenValue:
    """What earlier batches said of states, each batch decayed."""

    def __init__(self) -> None:
        self.sums: Array = np.zeros(())  # x x' and x G, (F, F + 1)
        self.errors: Array = np.zeros(len(RIDGES))  # (G - V)^2 of each ridge
        self.bounds = (0.0, 0.0)  # the least and the greatest return

    def learn(self, groups: Sequence[tuple[Array, Array]], decay: float) -> list[Array]:
        """V before the lines of each group, (L,), from their hidden states, (L, H), and returns, (L,), which are then
        remembered."""
        batch = [(features(states), earned) for states, earned in groups]
        self.sums = decay * self.sums + sum(x.T @ np.column_stack([x, earned]) for x, earned in batch)
        lows = sorted([self.bounds[0], *(earned.min() for _, earned in batch)])
        highs = sorted([self.bounds[1], *(earned.max() for _, earned in batch)])
        scales, axes = np.linalg.eigh(self.sums[:, :-1])
        fit, errors, found = axes.T @ self.sums[:, -1], np.zeros(len(RIDGES)), []
        for x, earned in batch:
            turned = x @ axes
            shrunk = [turned / (scales + ridge) for ridge in RIDGES]
            # (X'X + ridge - x'x)^-1, which is without the group's own lines, by Woodbury's identity
            apart = [np.linalg.solve(np.eye(len(x)) - each @ turned.T, earned - each @ fit) for each in shrunk]
            # without the group's own, the extremes are those next to them
            low, high = lows[int(lows[0] == earned.min())], highs[-1 - int(highs[-1] == earned.max())]
            values = np.clip(earned - np.array(apart), low, high)  # (ridges, L)
            errors += np.square(values - earned).sum(axis=1)
            found.append(values[np.argmin(self.errors)])
        self.errors, self.bounds = decay * self.errors + errors, (lows[0], highs[-1])
        return found


def features(states: Array) -> Array:
    """x(s) of hidden states, (L, H) to (L, F)."""
    lengths = np.linalg.norm(states.astype(float), axis=1, keepdims=True).clip(1e-30)
    return np.insert(states / lengths, 0, _CONSTANT, axis=1)


def generalized_advantages(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """A of each line of a session, from its rewards and V before it."""
    steps = zip(rewards, values, [*values[1:], 0.0], strict=True)
    return discounted_returns([reward + gamma * after - before for reward, before, after in steps], gamma * lam)


class KeepStates(TrainerCallback):  # type: ignore[misc]
    """Keeps, before a step's update, the hidden states that predict the first tokens of its valid sessions' lines."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        rollouts = Path(args.rollout_dir, f"step_{state.global_step + 1:05d}.jsonl")
        states = []
        for session in (each for each in read_jsonl(rollouts) if not each.is_void):
            ids = torch.tensor([[*session.prompt_ids, *session.completion_ids]], device=model.device)
            with torch.no_grad():
                hidden = model.base_model(input_ids=ids).last_hidden_state[0]  # (tokens, H)
            before = [len(session.prompt_ids) + line.start - 1 for line in session.lines]
            states.append(hidden[before].float().numpy(force=True))
        np.savez(rollouts.with_suffix(".npz"), *states)
