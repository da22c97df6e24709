"""A small decision process of which everything can be enumerated: three lines, two or three actions each, states that
different beginnings share, and (with `early`) an action that ends the episode.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from credit.groups import Typed, of_lines

from repl_rl.config import CreditConfig
from repl_rl.credit import advantages

STATES = 5  # the start; two after the first line; two after the second
NEXT = {0: (1, 2, 1), 1: (3, 4, 4), 2: (4, 3, 4)}


@dataclass(frozen=True)
class Path:
    """One way through: states, actions and rewards of its lines."""

    states: tuple[int, ...]
    actions: tuple[int, ...]
    rewards: tuple[float, ...]

    def typed(self) -> list[Typed]:
        left = [*map(str, self.states[1:]), "end"]
        return [Typed(1, reward, state) for reward, state in zip(self.rewards, left, strict=True)]


class Process:
    """The enumerated process with a softmax policy over a table of logits, theta (S, A)."""

    def __init__(
        self,
        actions: int,
        *,
        early: bool = False,
        last_line_pays: bool = False,
        uniform: bool = False,
        seed: int = 5,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._pays = (4 * torch.rand(STATES, actions, generator=generator, dtype=torch.float64) - 1).tolist()  # (S, A)
        theta = torch.randn(STATES, actions, generator=generator, dtype=torch.float64)  # (S, A)
        self.theta = (torch.zeros_like(theta) if uniform else theta).requires_grad_()
        self._early, self._last_line_pays = early, last_line_pays
        self.paths = self._enumerate(actions)

    def _enumerate(self, actions: int) -> list[Path]:
        paths, open_paths = [], [Path((0,), (), ())]
        while open_paths:
            begun = open_paths.pop()
            state = begun.states[-1]
            for action in range(actions):
                ends = state not in NEXT or (self._early and state > 0 and action == 0)
                reward = 0.0 if self._last_line_pays and not ends else self._pays[state][action]
                after = begun.states if ends else (*begun.states, NEXT[state][action])
                path = Path(after, (*begun.actions, action), (*begun.rewards, reward))
                (paths if ends else open_paths).append(path)
        return paths

    def log_probability(self, path: Path) -> torch.Tensor:  # ()
        logits = torch.log_softmax(self.theta, dim=1)  # (S, A)
        return logits[list(path.states), list(path.actions)].sum()

    def exact_gradient(self) -> torch.Tensor:  # (S, A)
        """Of sum_path p(path) R(path)."""
        value = torch.stack([self.log_probability(path).exp() * math.fsum(path.rewards) for path in self.paths]).sum()
        return torch.autograd.grad(value, self.theta)[0]

    def visits(self, state: int) -> float:
        """The share of trajectories that visit a state."""
        return math.fsum(self.log_probability(path).exp().item() for path in self.paths if state in path.states)

    def expected_gradient(
        self,
        credit: CreditConfig,
        group_size: int,
        divided_by: Callable[[int, int], int] | None = None,
        stays: Callable[[Path, Sequence[Path]], bool] = lambda path, group: True,
    ) -> torch.Tensor:  # (S, A)
        """Of the loss E[sum_i sum_l A_{i,l} log pi(line l of i) / D], over the i that stay.

        D is the size of the group, or follows from the lines of i and of the group.
        """
        weights = torch.zeros_like(self.theta)  # (S, A)
        probabilities = [self.log_probability(path).exp().item() for path in self.paths]
        trajectories = [of_lines(path.typed()) for path in self.paths]
        for group in itertools.product(range(len(self.paths)), repeat=group_size):
            members = [trajectories[index] for index in group]
            per_token = advantages(members, [self.paths[index].rewards for index in group], credit)
            probability, lines = math.prod(probabilities[index] for index in group), sum(len(m.lines) for m in members)
            paths = [self.paths[index] for index in group]
            for index, made, values in zip(group, members, per_token, strict=True):
                if not stays(self.paths[index], paths):
                    continue
                share = probability / (divided_by(len(made.lines), lines) if divided_by else group_size)
                add_values(weights, self.paths[index], [share * values[line.start] for line in made.lines])
        return self.gradient(weights)

    def groups(self, group_size: int) -> Iterator[tuple[float, list[Path]]]:
        """All groups there are, each with its probability."""
        chances = [self.log_probability(path).exp().item() for path in self.paths]
        for group in itertools.product(range(len(self.paths)), repeat=group_size):
            yield math.prod(chances[index] for index in group), [self.paths[index] for index in group]

    def gradient(self, weights: torch.Tensor) -> torch.Tensor:  # (S, A) -> (S, A)
        """What autograd gives for `weights` on the log-probabilities of actions."""
        return torch.autograd.grad((weights * torch.log_softmax(self.theta, dim=1)).sum(), self.theta)[0]


def add_values(weights: torch.Tensor, path: Path, values: Sequence[float]) -> None:
    for state, action, value in zip(path.states, path.actions, values, strict=True):
        weights[state, action] += value


def assert_equal(gradient: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)
