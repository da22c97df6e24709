"""Two processes log what one logs of the whole batch, and send no session for it: real ones, over gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
PROGRAM = TESTS / "logged_steps.py"
SETTINGS: dict[str, dict[str, Any]] = {
    "oversampled": {"oversample": 2, "task_sampling": "pass_rate", "log_completions": True},
    "redrawn": {"redraws": 1, "mask": {"overlong": True}},
}
DEPENDS_ON_TIME = ("time/loop_share", "time/waited_s", "tokens_per_s", "step_time")
OF_THE_LOSS = ("loss", "grad_norm", "entropy", "drift/", "sampling/", "clip_ratio/")
"""Sums of tensors, which another order changes in the last bits."""


def start(processes: int, folder: Path) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent))), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *launcher, str(PROGRAM), str(folder), json.dumps(SETTINGS)],
        cwd=folder,
        env=os.environ | paths,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What one process wrote, and what two did. They end with an error if a session is pickled."""
    made = {}
    for count in (1, 2):
        made[count] = tmp_path_factory.mktemp(f"of-{count}")
        started = start(count, made[count])
        output, _ = started.communicate(timeout=600)
        assert started.returncode == 0, output
    return made


def written(folder: Path, rank: int) -> Any:
    return json.loads((folder / f"{rank}.json").read_text())


@pytest.mark.more
def test_the_log_of_two_processes_is_that_of_one_to_the_bit(folders: dict[int, Path]) -> None:
    one = written(folders[1], 0)["logged"]
    assert written(folders[2], 0)["logged"] == written(folders[2], 1)["logged"] == one
    assert len([name for name in one if name.startswith("errors/")]) > 21, "they differ from batch to batch"
    assert {len(values) for name, values in one.items() if name.startswith(("errors/", "stops/"))} == {3}
    kinds = {
        "subcalls/seconds",
        "tools/multiply/seconds",
        "compactions_per_trajectory",
        "branches/replay",
        "kept/share",
    }
    assert kinds <= one.keys()


@pytest.mark.more
@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_of_two_processes_logs_the_row_of_one(name: str, folders: dict[int, Path]) -> None:
    one = written(folders[1], 0)["steps"][name]["row"]
    first, second = (written(folders[2], rank)["steps"][name]["row"] for rank in (0, 1))
    apart = (*DEPENDS_ON_TIME, *OF_THE_LOSS)
    same = {key: value for key, value in one.items() if not key.startswith(apart)}
    assert {"solve_rate", "reward_std", "kept/solve_rate", "completions/mean_length", "letters"} <= same.keys()
    for row in (first, second):
        assert row.keys() == one.keys()
        assert {key: row[key] for key in same} == same


@pytest.mark.more
def test_the_main_process_alone_has_the_table_and_has_all_of_it_where_it_is_printed(folders: dict[int, Path]) -> None:
    one = written(folders[1], 0)["steps"]["oversampled"]["table"]
    first, second = (written(folders[2], rank)["steps"] for rank in (0, 1))
    assert (len(one["completion"]), one["extra"]["main"]) == (8, ["yes"] * 8)
    one["extra"]["main"][4:] = [None] * 4
    assert first["oversampled"]["table"] == one
    assert second["oversampled"]["table"]["completion"] == []
    assert first["redrawn"]["table"]["completion"] == [], "nobody prints it"


@pytest.mark.more
@pytest.mark.parametrize("name", SETTINGS)
def test_the_sessions_of_both_are_in_one_file_with_their_pictures(name: str, folders: dict[int, Path]) -> None:
    of_one, of_two = (folders[count] / name / "rollouts" for count in (1, 2))
    files = sorted(path.relative_to(of_one) for path in of_one.rglob("*") if path.is_file())
    assert len(files) > 1
    assert sorted(path.relative_to(of_two) for path in of_two.rglob("*") if path.is_file()) == files
    for path in files:
        assert (of_two / path).read_bytes() == (of_one / path).read_bytes()
