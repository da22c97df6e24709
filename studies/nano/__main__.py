"""Makes a model that ships, again, from a seed."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from studies.nano.build import RECIPES, build

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m studies.nano", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", choices=RECIPES, default="nano", help="which one (default: nano)")
    parser.add_argument("--steps", type=int, help="instead of as many as it takes")
    parser.add_argument("--sessions", type=int)
    options = parser.parse_args()
    recipe = RECIPES[options.model]
    steps, sessions = options.steps or recipe.steps, options.sessions or recipe.sessions
    build(options.out, options.seed, replace(recipe, steps=steps, sessions=sessions))
