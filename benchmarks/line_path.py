"""Traces a training step of nano, and writes the files whose code ran in it into CONTRIBUTING.md.

    python benchmarks/line_path.py

The second of two steps counts, from its first token to its gradient, so that nothing is being loaded any more. The
trainer's process and that of the line loop are traced, and a session, which reports what a line runs in it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
STAGES = {
    "the loop": "repl_rl/rollout/",
    "sampled": "repl_rl/engine/",
    "read": "repl_rl/dialect/",
    "run": "repl_rl/kernel/",
    "in the sandbox": "kernels/python/",
    "paid and credited": "repl_rl/tasks/ repl_rl/rewards/ repl_rl/credit/",
    "learnt from": "repl_rl/trainer/",
    "everywhere": "repl_rl/",
}
"""What happens to a line, and the folders that do it. A file belongs to the first that it lies in."""
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


def train() -> None:
    """Two steps in the working folder; the file `counts` is there during the part that counts."""
    from transformers import TrainerCallback

    from repl_rl import ReplGRPOConfig, ReplGRPOTrainer
    from repl_rl.models.nano import NANO_PATH
    from repl_rl.tasks import make_tasks

    class Counting(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_begin(self, args: object, state: object, control: object, **_: object) -> None:
            if state.global_step == 1:  # type: ignore[attr-defined]
                Path("counts").touch()

        def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
            Path("counts").unlink(missing_ok=True)

    args = ReplGRPOConfig(
        "out",
        per_device_train_batch_size=8,
        num_generations=8,
        max_steps=2,
        bf16=False,
        report_to="none",
        model_init_kwargs={"dtype": "float32"},
        rewards={"kinds": {"exception": -0.05}},
        budget={"lines": 8, "tokens": 256},
    )
    trainer = ReplGRPOTrainer(str(NANO_PATH), args, make_tasks(None, 64, seed=0, split="train"), callbacks=[Counting()])
    trainer.train()
    trainer.close()


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
        stage = next(stage for stage, folders in STAGES.items() if file.startswith(tuple(folders.split())))
        rows[stage].append(f"`{file.removeprefix('repl_rl/')}`")
    lines = "".join(f"| {stage} | {', '.join(names)} |\n" for stage, names in rows.items())
    return f"| | {len(files)} files; those without `kernels/` are in `repl_rl/` |\n|---|---|\n{lines}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(TRACER)
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "TRACED": str(ROOT / "repl_rl")}
        subprocess.run([sys.executable, __file__, "train"], cwd=folder, env=environment, check=True)
        ran = {str(Path(name).relative_to(ROOT)) for name in Path(folder, "ran").read_text().split()}
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(ran | asyncio.run(in_a_session())) + END + after, encoding="utf-8")


if __name__ == "__main__":
    train() if sys.argv[1:] else main()
