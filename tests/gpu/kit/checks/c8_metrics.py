"""After check 8: what a run's metrics say of its steps, as records.

python3 c8_metrics.py metrics.jsonl
"""

import json
import re
import sys
from pathlib import Path

from common import record

WANTED = re.compile(
    r"seconds|step_time|tokens_per_s|drift/.*|engine/reused_share|engine/occupied|loss|grad_norm|reward|time/.*"
    r"|completions/mean_length|solve_rate|entropy|num_tokens"
)

for text in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
    row = json.loads(text)
    chosen = {key: value for key, value in row.items() if WANTED.fullmatch(key)}
    record(8, f"{row['kind']}, step {row['step']}", **chosen)
