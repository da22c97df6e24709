"""Traces a typed line of nano, and writes the files whose code ran for it into CONTRIBUTING.md.

    python benchmarks/line_path.py

From the request for its tokens to the end of its output in the transcript: the third line of each session, so that
nothing is being opened or closed meanwhile. The engine's process and that of the line loop are traced, and a session,
which reports what a line runs in it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from repl_rl.rollout import Guest
from repl_rl.trajectory import Line

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
STAGES = {
    "the loop": "repl_rl/rollout/",
    "sampled": "repl_rl/engine/",
    "read": "repl_rl/dialect/",
    "run": "repl_rl/kernel/",
    "everywhere": "repl_rl/",
    "in the sandbox": "kernels/python/",
}
"""What happens to a line, and the folder that does it. A file belongs to the first that it lies in."""
BEGIN, END = "<!-- traced -->\n", "<!-- end -->\n"
TRACER = """
import os, sys, threading
folder, seen = os.environ["TRACED"], set()
def traced(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(folder) and name not in seen and frame.f_code.co_name != "<module>":
        if os.path.exists("counts"):
            seen.add(name)
            with open("ran", "a") as file:
                file.write(name + "\\n")
sys.setprofile(traced)
threading.setprofile(traced)
"""
IN_SESSION = """
import sys
_seen = {}
def _traced(frame, event, argument):
    if event == "call":
        _seen[frame.f_code.co_filename] = None
sys.setprofile(_traced)
"""


class Counting(Guest):
    """The file `counts` is there while the third line is typed."""

    lines = 0

    async def after_line(self, session: Any, line: Line) -> None:
        self.lines += 1
        if self.lines == 2 and session.stop is None:
            Path("counts").touch()
        else:
            Path("counts").unlink(missing_ok=True)


def type_lines() -> None:
    """Sessions one after another in the working folder, with a pause in which the pool makes its next kernel."""
    from repl_rl.config import parse_config
    from repl_rl.rollout import load_engine, start_service
    from repl_rl.tasks import make_tasks

    config = {"model": {"path": "nano"}, "kernel": {"size": 1}, "sampling": {"temperature": 1.5}}
    engine, setup = load_engine(parse_config({**config, "guests": ["line_path:Counting"]}))
    with start_service(engine, setup) as service:
        for task in make_tasks(None, 12, seed=0, split="train"):
            time.sleep(1)
            service.generate([task])
    engine.close()


async def in_a_session() -> set[str]:
    """The files whose code runs in a session for a line."""
    from repl_rl.kernel import KernelPool, Limits

    async with KernelPool(1, Limits(line_s=60)) as pool, pool.session() as kernel:
        for line in (f"exec({IN_SESSION!r})", "1 + 1"):
            await kernel.execute(line)
        ran = await kernel.execute("print(*_seen)")
    return {f"kernels/python/{name.rpartition('/')[2]}" for name in ran.output.split() if "/repl_" in name}


def table(files: set[str]) -> str:
    """A row for each stage."""
    rows: dict[str, list[str]] = {stage: [] for stage in STAGES}
    for file in sorted(files):
        stage = next(stage for stage, folder in STAGES.items() if file.startswith(folder))
        rows[stage].append(f"`{file.removeprefix('repl_rl/')}`")
    lines = "".join(f"| {stage} | {', '.join(names)} |\n" for stage, names in rows.items())
    inside = len(rows["in the sandbox"])
    return f"| | {len(files) - inside} files in `repl_rl/`, {inside} in the sandbox |\n|---|---|\n{lines}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(TRACER)
        paths = f"{folder}:{ROOT}:{ROOT / 'benchmarks'}"
        environment = {**os.environ, "PYTHONPATH": paths, "TRACED": str(ROOT / "repl_rl")}
        subprocess.run([sys.executable, __file__, "type"], cwd=folder, env=environment, check=True)
        ran = {str(Path(name).relative_to(ROOT)) for name in Path(folder, "ran").read_text().split()}
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(ran | asyncio.run(in_a_session())) + END + after, encoding="utf-8")


if __name__ == "__main__":
    type_lines() if sys.argv[1:] else main()
