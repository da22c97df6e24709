"""Draws rollout.svg, the still in the README, from rollout.jsonl beside it: `python docs/images/rollout.py`.

The trajectory is one of eight of Qwen2.5-Coder-0.5B-Instruct (seed 0), chosen because it shows an error and its repair:

    repl-rl rollout --model qwen2.5-coder-0.5b --set model.dtype=bfloat16 --set rewards.preset=gentle -n 8 \\
        --set 'sampling={temperature: 1}' \\
        --task "Determine the value of q that satisfies: 1196*q + 48 = 7224" --answer 6 --out FILE.jsonl

It is drawn as `repl-rl view FILE` prints it, without the system message.
rich's own picture fetches a font from the network; this one does not.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from repl_rl.trajectory import read_jsonl
from repl_rl.view.terminal import transcript_table
from repl_rl.view.transcript import ending, screen_rows

HERE = Path(__file__).parent


def still() -> str:
    """The picture as SVG text."""
    [trajectory] = read_jsonl(HERE / "rollout.jsonl")
    console = Console(record=True, width=104, file=io.StringIO(), color_system="truecolor", legacy_windows=False)
    rows = list(screen_rows(trajectory))
    question = next(at for at, row in enumerate(rows) if "satisfies" in "".join(piece.text for piece in row.pieces))
    console.print(transcript_table(f"task {trajectory.task_id}", rows[question:]))
    console.print(Text(ending(trajectory)))
    svg = console.export_svg(title="repl-rl view", unique_id="rollout")
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    (HERE / "rollout.svg").write_text(still(), encoding="utf-8")
