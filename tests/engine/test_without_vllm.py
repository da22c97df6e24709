"""A machine without vLLM: the package imports, rolls out and trains with the transformers engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.more
def test_it_rolls_out_and_trains_and_the_engine_has_the_trainers_weights(tmp_path: Path) -> None:
    program = [sys.executable, "-c", (HERE / "without_vllm.py.txt").read_text(), str(tmp_path)]
    paths = os.pathsep.join(map(str, (HERE, HERE.parent, HERE.parents[1])))
    done = subprocess.run(
        program, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["engine"] == "transformers"
    assert len(found["lines"]) == 4
    assert min(found["lines"]) >= 1
    assert found["steps"] == found["version"] == 2
    trained, untrained = found["apart"]
    assert trained < 1e-4
    assert untrained > 1e-3
    assert found["drift"] == pytest.approx(0.0, abs=1e-3)
