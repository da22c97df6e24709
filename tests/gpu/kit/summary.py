"""Print what the checks found, a line each, and the tables of the product's own commands; short enough for a reply.

python3 summary.py results.jsonl day.log
"""

import json
import re
import sys
from pathlib import Path

TABLES = re.compile(
    r"  (sync|rollout|loss|backward|optimizer)|loading  |a step|sampled|peak memory|drift|weights that|packed rows"
    r"|attention  |CUDA graphs|MISSING|ok  |repl-rl:|│|transformers, |vllm, |.{,112}Engine, "
)
"""Rows of the tables that `doctor --train`, `bench` and `train` print, and errors of theirs."""
MOST = 9000
"""Characters, so that all of it can be read where the end of a log is all that comes back."""


def main(results: str, log: str) -> None:
    lines = []
    for text in Path(results).read_text(encoding="utf-8").splitlines():
        values = json.loads(text)
        check, name = values.pop("check"), values.pop("name")
        lines.append(f"{check:>2} {name}: " + " ".join(f"{key}={shown(value)}" for key, value in values.items()))
    tables = [
        line for line in Path(log).read_text(encoding="utf-8", errors="replace").splitlines() if TABLES.match(line)
    ]
    print("\n".join(tables)[-2800:])
    print("\n".join(line[:330] for line in lines)[-MOST:])


def shown(value: object) -> str:
    if isinstance(value, list):
        return "[" + " ".join(map(shown, value)) + "]"
    return json.dumps(value) if isinstance(value, dict) else str(value).replace("\n", " ")


if __name__ == "__main__":
    main(*sys.argv[1:])
