"""TRL's own tool loop with the LLM that TRL itself makes; `repl-rl bench rollout` lends it ours."""

from __future__ import annotations

import argparse
import json
import os
import tempfile

from repl_rl.engine import load_vocabulary
from repl_rl.models.nano import NANO_PATH
from repl_rl.tasks import make_tasks


def main() -> None:
    """Measure rollouts of nano, 8 turns each; the first round warms up."""
    parser = argparse.ArgumentParser("python -m studies.trl_tools", description=__doc__)
    parser.add_argument("--trajectories", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="default: 6")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    import repl_rl.trainer  # noqa: F401 - silences what TRL says about versions of vLLM
    from repl_rl.bench.trl_tools import TRLRollouts

    vocabulary = load_vocabulary(str(NANO_PATH))
    tasks = make_tasks(None, options.trajectories, seed=5, split="heldout")
    with tempfile.TemporaryDirectory(prefix="repl_rl_bench_") as folder:
        trl = TRLRollouts(folder, None, vocabulary, slots=len(tasks), lines=8, line_tokens=48, tokens=512)
        for _ in range(options.rounds):
            print(json.dumps(trl.roll_out(tasks, latency_s=0.0)), flush=True)


if __name__ == "__main__":
    main()
