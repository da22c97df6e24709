"""Draws rollout.svg, the still in the README, from rollout.jsonl beside it: `python docs/images/rollout.py`.

The trajectory is one of a quickstart run (seed 0, step 35), chosen because it shows a thought, an error and its repair.
It is drawn by what `repl-rl view FILE` prints. rich's own picture fetches a font from the network; this one does not.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from repl_rl.trajectory import read_jsonl
from repl_rl.view import print_trajectory

HERE = Path(__file__).parent


def still() -> str:
    """The picture as SVG text."""
    [trajectory] = read_jsonl(HERE / "rollout.jsonl")
    console = Console(record=True, width=104, file=io.StringIO(), color_system="truecolor", legacy_windows=False)
    print_trajectory(console, trajectory)
    svg = console.export_svg(title="repl-rl view", unique_id="rollout")
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    (HERE / "rollout.svg").write_text(still(), encoding="utf-8")
