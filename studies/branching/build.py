"""Makes nano-long, the study's model, from nano: `python -m studies.branching.build --out FOLDER` (12 minutes).

It is shown locks and mazes, more short ones than long ones. The checkpoint beside this file was made with seed 0.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from random import Random

from repl_rl.models.nano import NANO_PATH
from studies.branching.policy import demonstrate_long
from studies.nano.build import Recipe, build
from studies.nano.sessions import SessionRecord, record_families

LOCK, MAZE = "studies.branching.worlds.lock:lock", "studies.branching.worlds.maze:maze"
SHARES = {
    f"{LOCK}-3": 0.24,
    f"{LOCK}-10": 0.26,
    f"{LOCK}-20": 0.18,
    f"{LOCK}-40": 0.12,
    f"{MAZE}-3": 0.08,
    f"{MAZE}-10": 0.08,
    f"{MAZE}-20": 0.03,
    f"{MAZE}-40": 0.01,
}
"""What nano-long is shown, and in which shares."""


def make_long(count: int, seed: int) -> list[SessionRecord]:
    """`count` sessions in as many different locks and mazes."""
    return record_families(SHARES, count, seed, Random(f"{seed}/long"), demonstrate_long)


RECIPE = Recipe(300, 12_800, make_long, start=NANO_PATH, context_tokens=2048, batch=32)

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m studies.branching.build", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=RECIPE.steps)
    parser.add_argument("--sessions", type=int, default=RECIPE.sessions)
    options = parser.parse_args()
    build(options.out, options.seed, replace(RECIPE, steps=options.steps, sessions=options.sessions))
