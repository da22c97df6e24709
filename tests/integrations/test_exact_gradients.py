"""The gradient that advantages give in other trainers, beside the exact one: enumerated, as in tests/credit.

What docs/credit-elsewhere.md says of each estimator, of ours and of verl's, is computed here again.
"""

import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import yaml
from credit.groups import config
from credit.processes import Path, Process, assert_equal
from pages import ROOT

from repl_rl.config import CreditConfig
from repl_rl.credit.critic import Critic
from repl_rl.integrations.credit import token_advantages

TokenAdvantages = Callable[["Batch"], list[list[float]]]
GRADIENTS = yaml.safe_load((ROOT / "tests" / "credit" / "gradients.yaml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "credit-elsewhere.md").read_text(encoding="utf-8")
PROCESSES, GROUP_SIZE = 10, 3
"""Of the page's table: sessions of two and three turns with two actions each."""


@dataclass(frozen=True)
class Batch:
    """A group of sessions as trainers have it: a token per turn, and one of its environment after each, (B, T)."""

    paths: list[Path]
    mask: torch.Tensor
    rewards: torch.Tensor
    log_probabilities: torch.Tensor
    sums_of_squares: torch.Tensor
    """Of the probabilities of all actions that there were."""

    @property
    def turn_rewards(self) -> list[tuple[float, ...]]:
        return [path.rewards for path in self.paths]

    @property
    def states(self) -> list[list[str]]:
        return [[str(state) for state in path.states] for path in self.paths]


def batch_of(process: Process, paths: list[Path]) -> Batch:
    probabilities = torch.softmax(process.theta.detach(), dim=1)  # (S, A)
    length = 2 * max(len(path.actions) for path in paths)
    mask, rewards, logs, squares = torch.zeros(4, len(paths), length, dtype=torch.float64)
    for row, path in enumerate(paths):
        places = torch.arange(0, 2 * len(path.actions), 2)
        states = list(path.states)
        mask[row, places] = 1
        rewards[row, places] = torch.tensor(path.rewards, dtype=torch.float64)
        logs[row, places] = probabilities[states, list(path.actions)].log()
        squares[row, places] = probabilities[states].square().sum(dim=1)
    return Batch(paths, mask.long(), rewards, logs, squares)


@cache
def batches(process: Process, group_size: int) -> list[tuple[float, Batch]]:
    """All groups there are, with their probabilities."""
    return [(chance, batch_of(process, group)) for chance, group in process.groups(group_size)]


def gradient_and_square(
    process: Process, advantages: TokenAdvantages, group_size: int
) -> tuple[torch.Tensor, float]:  # (S, A)
    """Of a group's mean of A grad log p over its sessions: the expectation, and that of its squared length."""
    probabilities = torch.softmax(process.theta.detach(), dim=1)  # (S, A)
    expected = torch.zeros_like(probabilities)
    square = 0.0
    for chance, batch in batches(process, group_size):
        weights = torch.zeros_like(probabilities)
        for path, row in zip(batch.paths, advantages(batch), strict=True):
            for turn, (state, action) in enumerate(zip(path.states, path.actions, strict=True)):
                weights[state, action] += row[2 * turn] / group_size
        gradient = weights - probabilities * weights.sum(dim=1, keepdim=True)  # of log softmax
        expected += chance * gradient
        square += chance * gradient.square().sum().item()
    return expected, square


def ours(credit: CreditConfig, critic: Critic | None = None) -> TokenAdvantages:
    def advantages(batch: Batch) -> list[list[float]]:
        groups = ["one"] * len(batch.paths)
        made: list[list[float]] = token_advantages(
            batch.mask.tolist(), groups, credit, rewards=batch.turn_rewards, states=batch.states, critic=critic
        )
        return made

    return advantages


def verls(name: str, process: Process, options: dict[str, Any]) -> TokenAdvantages:
    """What verl's trainer makes of a batch with `algorithm.adv_estimator=NAME`."""
    import numpy as np
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    algorithm = OmegaConf.create({"gamma": 1.0, **options})
    divides = options.get("norm_adv_by_std_in_grpo", True)
    best = process.theta.argmax(dim=1).tolist()
    (greedy,) = (
        path for path in process.paths if all(best[s] == a for s, a in zip(path.states, path.actions, strict=True))
    )

    def advantages(batch: Batch) -> list[list[float]]:
        rows = len(batch.paths)
        tensors = {
            "token_level_rewards": batch.rewards.clone(),
            "response_mask": batch.mask,
            "old_log_probs": batch.log_probabilities,
            "sum_pi_squared": batch.sums_of_squares,
            "reward_baselines": torch.full((rows,), math.fsum(greedy.rewards), dtype=torch.float64),
        }
        data = DataProto.from_dict(tensors, non_tensors={"uid": np.array(["one"] * rows, dtype=object)})
        made = compute_advantage(data, name, norm_adv_by_std_in_grpo=divides, config=algorithm)
        values: list[list[float]] = made.batch["advantages"].tolist()
        return values

    return advantages


@pytest.mark.parametrize("case", GRADIENTS["exact"], ids=lambda case: str(case["credit"]))
def test_the_gradient_of_a_batch_of_turns_is_the_exact_one_or_a_share_of_it(case: dict[str, Any]) -> None:
    for kind in case["processes"]:
        process = Process(2, **kind)
        gradient, _ = gradient_and_square(process, ours(CreditConfig(**case["credit"])), 3)
        share = {"whole": 1.0, "shrunk": 2 / 3}[case["share"]]
        assert_equal(gradient, share * process.exact_gradient())


@pytest.mark.parametrize("case", GRADIENTS["turned"], ids=lambda case: str(case["credit"]))
def test_the_others_give_what_they_give_in_our_own_trainer(case: dict[str, Any]) -> None:
    process = Process(2, early=True)
    credit = CreditConfig(**case["credit"])
    gradient, _ = gradient_and_square(process, ours(credit), 2)
    assert_equal(gradient, process.expected_gradient(credit, 2))


def test_a_critic_that_remembers_other_batches_is_unbiased() -> None:
    process = Process(2, early=True)
    remembering = Critic()
    _, other_batch = batches(process, 3)[7]
    ours(config("critic"), remembering)(other_batch)

    def advantages(batch: Batch) -> list[list[float]]:
        critic = Critic()
        critic.sums = remembering.sums.copy()
        return ours(config("critic"), critic)(batch)

    gradient, _ = gradient_and_square(process, advantages, 3)
    assert_equal(gradient, process.exact_gradient())
    unlike, _ = gradient_and_square(process, ours(config("critic")), 3)
    assert_equal(unlike, process.exact_gradient())


def figures(make: Callable[[Process], TokenAdvantages]) -> list[str]:
    """What a row of the page's table says: of ten processes, the median share and cosine, the worst cosine, and the
    median noise."""
    shares, cosines, noises = [], [], []
    for seed in range(PROCESSES):
        process = process_of(seed)
        exact = process.exact_gradient()
        gradient, square = gradient_and_square(process, make(process), GROUP_SIZE)
        length = gradient.norm().item()
        along = (gradient * exact).sum().item()
        shares.append(along / exact.square().sum().item())
        cosines.append(along / length / exact.norm().item())
        noises.append(math.sqrt(max(0.0, square - length**2)) / length)
    median_cosine, worst_cosine = statistics.median(cosines), min(cosines)
    return [
        f"{statistics.median(shares):.2f}",
        "1" if worst_cosine > 1 - 1e-9 else f"{median_cosine:.3f}",
        "1" if worst_cosine > 1 - 1e-9 else f"{worst_cosine:.3f}",
        f"{statistics.median(noises):.2f}",
    ]


@cache
def process_of(seed: int) -> Process:
    return Process(2, early=True, seed=seed)


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a line of the page that begins so."""
    table = re.search(rf"^\| {re.escape(heading)}.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in row.strip("|\n").split("|")] for row in table[1].splitlines()]


def settings_of(cell: str) -> tuple[str, dict[str, Any]]:
    """`name`, or `name` with `key: value, ...`."""
    name, *more = re.findall(r"`([^`]+)`", cell)
    return name, yaml.safe_load("{" + ", ".join(more) + "}")


@pytest.mark.more
@pytest.mark.parametrize("row", rows("ours"), ids=lambda row: row[0].replace("`", ""))
def test_the_page_says_of_our_estimators_what_they_give(row: list[str]) -> None:
    name, settings = settings_of(row[0])
    assert figures(lambda process: ours(config(name, **settings))) == row[1:5]


@pytest.mark.more
@pytest.mark.usefixtures("verl_path")
@pytest.mark.parametrize("row", rows("verl's"), ids=lambda row: row[0].replace("`", ""))
def test_the_page_says_of_verls_estimators_what_they_give(row: list[str]) -> None:
    name, options = settings_of(row[0])
    assert figures(lambda process: verls(name, process, options)) == row[1:5]


@pytest.mark.more
@pytest.mark.usefixtures("verl_path")
def test_verl_gets_our_gradient_through_its_own_entry_point() -> None:
    process = Process(2, early=True)
    for name, options in (("return_to_go", {}), ("rloo", {}), ("return_to_go", {"baseline": "none"})):
        gradient, _ = gradient_and_square(process, verls(f"repl_rl/{name}", process, {"repl_rl": options}), 3)
        assert_equal(gradient, process.exact_gradient())
