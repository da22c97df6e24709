"""The checks for a GPU (README.md): at full size where there is one, small on a CPU elsewhere."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

DAY = Path(__file__).with_name("kit") / "day.sh"
CHECKOUT = Path(__file__).parents[2]
HAS_GPU = torch.cuda.is_available()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
Records = dict[str, list[dict[str, Any]]]


def is_a_result(row: dict[str, Any]) -> bool:
    """What did not fit, and one of the ways in which vLLM may start."""
    return row["name"].startswith("start, ") or "OutOfMemoryError" in row["failed"]


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Records]:
    """Runs a check and returns its records by name. No record may say that something failed."""
    folder = tmp_path_factory.mktemp("gpu")

    def run(number: str) -> Records:
        out = folder / number
        environment = {
            **os.environ,
            "DAY_TINY": str(int(not HAS_GPU)),
            "DAY_LIMIT_S": "1700",
            "DAY_PYTHON": sys.executable,
            "DAY_PYTHONPATH": str(CHECKOUT),
            "DAY_BACKEND": "vllm",
            "GPU_HAS_VLLM": "1",
            "GPU_HOME": str(folder),
            "OUT": str(out),
        }
        subprocess.run(["bash", str(DAY), number], cwd=CHECKOUT, env=environment, check=True, capture_output=True)
        records: Records = {}
        for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            records.setdefault(row["name"], []).append(row)
        log = (out / "day.log").read_text(encoding="utf-8", errors="replace")
        assert records["end"][0].get("status") == 0, log[-3000:]
        failed = [row for rows in records.values() for row in rows if "failed" in row and not is_a_result(row)]
        assert not failed, log[-3000:]
        return records

    return run


def test_sessions_run_behind_walls(check: Callable[[str], Records]) -> None:
    records = check("0")
    for kind in ("bwrap", "sandlock"):
        [session] = records[f"session in {kind}"]
        assert (session["output"], session["endless"]) == ("2\n", "timeout")


def test_attention_agrees_with_float64(check: Callable[[str], Records]) -> None:
    for row in check("2")["packed agrees with float64"]:
        most = 1e-5 if row["dtype"] == "torch.float32" else 2e-2
        assert max(row["output"], *row["gradients"]) < most


def test_flex_attention_agrees_with_float64(check: Callable[[str], Records]) -> None:
    [row] = check("9")["flex agrees with float64"]
    assert row["output"] < (2e-2 if HAS_GPU else 1e-5)


def test_loss_and_gradient_are_those_of_trl(check: Callable[[str], Records]) -> None:
    ratios = [row for name, rows in check("3").items() if name.endswith("ours by TRL's") for row in rows]
    assert ratios
    for row in ratios:
        assert all(abs(ratio or 0.0) < 0.02 for ratio in row["loss_and_norm"])


def test_weights_come_back_from_files(check: Callable[[str], Records]) -> None:
    records = check("4")
    assert all(records[f"to {folder}"][0]["same"] for folder in ("/dev/shm", "/tmp"))


def test_tokens_have_the_log_probabilities_of_their_weights(check: Callable[[str], Records]) -> None:
    records = check("6")
    for row in records["tokens of a version"]:
        assert row["mean"] < row["mean_if_other_weights"] / 5
    for row in records["greedy beside transformers"]:
        assert row["likeliest"] > 0.95


@pytest.mark.parametrize("graphs", ["7", *(["7l", "7f"] if HAS_GPU else [])])
def test_sessions_beside_plain_generation(check: Callable[[str], Records], graphs: str) -> None:
    records = check(graphs)
    rounds = [row for name, rows in records.items() if name.endswith(": sessions") for row in rows]
    assert len(rounds) == (5 if graphs == "7" else 3)
    assert all(row["tokens_per_s"] > 0 for row in rounds)
    for row in records.get("places", ()):
        assert 0 < row["occupied"] <= 1


def test_a_training_run(check: Callable[[str], Records]) -> None:
    steps = [rows[0] for name, rows in check("8").items() if name.startswith("train, step")]
    assert len(steps) == 2
    assert all(row["drift/logprob_mean"] < 0.05 for row in steps)


@pytest.mark.parametrize("number", ["1", "5", "10", "11", "12", "13"])
def test_commands_of_the_product(check: Callable[[str], Records], number: str) -> None:
    check(number)
