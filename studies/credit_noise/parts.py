"""`python -m studies.credit_noise.parts`: which lines carry the gradient, and which only its noise?

    python -m studies.credit_noise.parts --folder noise/step10 --adapter runs/qwen/checkpoints/checkpoint-10 --after 38

The gradient of a group, with the outcome alone paid, is cut into parts: its comments, the lines that began in a state
of another session, and so on. Products of the same part from independent groups are its signal, within a problem and
across problems, where it is what a training step keeps. By the last `down_proj`, so forward passes are enough. The
protocol, and what came out, is in README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from repl_rl.credit.normalize import same_state
from repl_rl.errors import ConfigError
from repl_rl.trajectory import LineKind, Trajectory
from repl_rl.utils.machine import machine
from studies.common.command import main
from studies.credit_noise.gradients import Pass
from studies.credit_noise.products import Products, line_advantages_of
from studies.credit_noise.sessions import sessions_of
from studies.credit_noise.settings import EXPLORED, GROUPS, NoiseSettings
from studies.credit_noise.settings import QUICK as QUICK_NOISE
from studies.credit_noise.statistics import Array
from studies.credit_noise.study import FLAGS as FLAGS_NOISE
from studies.credit_noise.study import Groups

__all__ = ["DEFAULT", "FLAGS", "PARTS", "QUICK", "measure", "table"]

FLAGS = (*FLAGS_NOISE, ("--after", int, "leave out so many problems, which have been looked at (default: 0)"))
PARTS = ("whole", "comments", "without comments", "own states", "shared states", "gigpo")
"""Of the gradient with `baseline: place`: all of it; comment lines, and all others; lines that began in a state of no
other session of the group, and all others. `gigpo` is a gradient of its own."""
_FIGURES = ("size", "signal_within", "signal", "noise_at_equal_signal")
_RESAMPLED = 2000


@dataclass(frozen=True)
class PartsSettings(NoiseSettings):
    """Raises ConfigError for invalid counts and config values."""

    after: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.after < self.problems:
            raise ConfigError(f"--after {self.after} of --problems {self.problems}: leave one at least")

    @property
    def products_of_parts(self) -> Path:
        return self.folder / f"parts-{self.after}-{self.problems}.npz"


DEFAULT = PartsSettings()
QUICK = PartsSettings(config=QUICK_NOISE.config, settings=QUICK_NOISE.settings, problems=4)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The K typed tokens of a problem that any part weighs, E parts."""

    inputs: torch.Tensor
    """(K, F): of the last layer's `down_proj`."""
    outputs: torch.Tensor
    """(K, H): the derivatives at its output."""
    weights: torch.Tensor
    """(E * 2, K): a token's weight in each part of each group."""


def measure(settings: PartsSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Take forward passes if the folder has no products; returns the content of the JSON file.

    Raises ConfigError, and what loading a model and its kernels raises.
    """
    problems = sessions_of(settings, say)[settings.after :]
    file = settings.products_of_parts
    if not file.is_file():
        products, counts = _products_of(settings, problems, say)
        new = file.with_suffix(".new.npz")
        np.savez_compressed(new, products=products, tokens=counts)
        new.replace(file)
    stored = np.load(file)
    products, counts = stored["products"], stored["tokens"]
    divided = products / counts[:, None, :, None, None, None] / counts[None, None, None, :, None, :]
    rows = [row | {"loss": loss} for loss, values in (("sum", products), ("dapo", divided)) for row in _rows(values)]
    lines = [line for problem in problems for group in problem for session in group for line in session.lines]
    comments = sum(line.kind is LineKind.COMMENT for line in lines) / len(lines)
    return {"problems": len(problems), "comments": comments, "rows": rows} | machine(("repl-rl", "torch"))


def weights_of(group: Sequence[Trajectory]) -> Array:
    """(E, L): the weight of each line in each of `PARTS`."""
    whole = np.array(line_advantages_of([group], EXPLORED["place"])[0])
    gigpo = np.array(line_advantages_of([group], EXPLORED["gigpo"])[0])
    lines = [line for session in group for line in session.lines]
    is_comment = np.array([line.kind is LineKind.COMMENT for line in lines])
    starts = np.cumsum([0, *(len(session.lines) for session in group)])
    is_shared = np.zeros(len(lines), dtype=bool)
    for places in same_state(group).values():
        if len({session for session, _ in places}) > 1:
            is_shared[[starts[session] + line for session, line in places]] = True
    return np.stack([whole, whole * is_comment, whole * ~is_comment, whole * ~is_shared, whole * is_shared, gigpo])


def _products_of(
    settings: NoiseSettings, problems: Sequence[Groups], say: Callable[[str], None]
) -> tuple[Array, Array]:
    """(problems, E, 2, problems, E, 2) inner products of parts, and (problems, 2) typed tokens."""
    gradients = Products(settings).gradients
    tokens = dict[int, Tokens]()
    counts = np.zeros((len(problems), GROUPS))
    for number, groups in enumerate(problems):
        weighed = []
        for half, group in enumerate(groups):
            counts[number, half] = sum(sum(session.sampled_mask) for session in group)
            weights = weights_of(group)
            if weights.any():  # a group without variance has no gradient
                weighed.append(_weighed(gradients.forward(group, with_graph=False), weights, half))
        if weighed:
            tokens[number] = Tokens(
                torch.cat([each.inputs for each in weighed]),
                torch.cat([each.outputs for each in weighed]),
                torch.cat([each.weights for each in weighed], dim=1),
            )
        say(f"forward passes of {number + 1} of {len(problems)} problems")
    found = np.zeros((len(problems), len(problems), len(PARTS) * GROUPS, len(PARTS) * GROUPS), dtype=np.float32)
    for (row, one), (column, other) in product(tokens.items(), repeat=2):
        if column <= row:
            of_tokens = (one.inputs @ other.inputs.T) * (one.outputs @ other.outputs.T)
            found[row, column] = (one.weights @ of_tokens @ other.weights.T).numpy()
            found[column, row] = found[row, column].T
    shape = (len(problems), len(problems), len(PARTS), GROUPS, len(PARTS), GROUPS)
    return found.reshape(shape).transpose(0, 2, 3, 1, 4, 5), counts


def _weighed(done: Pass, weights: Array, half: int) -> Tokens:
    """The tokens of a group that any part weighs; `weights` (E, L) are those of its lines."""
    of_tokens = torch.tensor(weights, dtype=torch.float32)[:, done.lines]  # (E, K)
    in_halves = torch.zeros(len(PARTS), GROUPS, of_tokens.size(1))
    in_halves[:, half] = of_tokens
    some = of_tokens.any(dim=0)
    return Tokens(done.inputs[some], done.outputs[some], in_halves.flatten(0, 1)[:, some])


def _rows(products: Array) -> list[dict[str, Any]]:
    """For each part its figures, with bootstrap intervals over problems."""
    problems = len(products)
    drawn = np.random.default_rng(0).integers(problems, size=(_RESAMPLED, problems))
    counts = np.array([np.bincount(some, minlength=problems) for some in drawn]) / problems
    weights = np.concatenate([np.full((1, problems), 1 / problems), counts])  # the estimate, then what was drawn
    whole = _moments(products, 0, weights)
    rows = []
    for at, part in enumerate(PARTS):
        size, within, across = _moments(products, at, weights)
        noise, noise_of_whole = size - across, whole[0] - whole[2]
        with np.errstate(divide="ignore", invalid="ignore"):  # few problems may be drawn without any gradient
            values = (
                size / whole[0],
                within / whole[1],
                across / whole[2],
                noise / across**2 / (noise_of_whole / whole[2] ** 2),
            )
        row: dict[str, Any] = {"part": part}
        for name, of_draws in zip(_FIGURES, values, strict=True):
            low, high = np.nanquantile(of_draws[1:], (0.025, 0.975))
            row[name] = (float(of_draws[0]), float(low), float(high))
        rows.append(row)
    return rows


def _moments(products: Array, at: int, weights: Array) -> tuple[Array, Array, Array]:
    """For each vector of weights over problems, (B, problems): the mean squared length of a part; and the mean of its
    products with the whole gradient of an independent group, of the same problem, and of any problem."""
    own = products[:, at, :, :, at, :]  # (problems, 2, problems, 2)
    lengths = (np.einsum("ppaa->p", own.transpose(0, 2, 1, 3))) / GROUPS
    beside = products[:, at, :, :, 0, :]
    pairs = (beside[:, 0, :, 1] + beside[:, 1, :, 0]) / 2  # (problems, problems)
    return weights @ lengths, weights @ np.diagonal(pairs), np.einsum("bp,pq,bq->b", weights, pairs, weights)


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    said = f"{report['problems']} problems, {report['comments']:.0%} of lines are comments"
    shown = Table(box=SIMPLE_HEAD, title=f"{said}: over the whole gradient, last down_proj")
    for column in ("loss", "part", *(name.replace("_", " ") for name in _FIGURES)):
        shown.add_column(column)
    for row in report["rows"]:
        figures = ["{:.2f} ({:.2f}, {:.2f})".format(*row[name]) for name in _FIGURES]
        shown.add_row(row["loss"], row["part"], *figures)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__], "studies.credit_noise.parts"))
