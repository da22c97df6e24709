"""Several processes: how many there are, how long they wait, and what they share. Runs of two: tests/run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repl_rl.config import load_config
from repl_rl.run import training
from repl_rl.run.launch import SHARDED
from repl_rl.utils.distributed import (
    WAIT_S,
    any_of_all,
    from_main,
    gather,
    gather_to_main,
    is_main_process,
    share_of_main,
)

Said = Callable[..., str]
SHARES = """
from pathlib import Path
from repl_rl.errors import KernelError
from repl_rl.utils.distributed import leave, process_rank, share_of_main

def fail():
    raise KernelError("no kernel could be opened")

share = share_of_main(lambda: ["first", "second"])
try:
    share_of_main(fail)
except KernelError as error:
    Path(str(process_rank())).write_text(f"{share}, {error}")
leave()
"""
TO_MAIN = """
import json
from pathlib import Path
from repl_rl.utils.distributed import gather, gather_to_main, leave, process_rank

class Unsent:
    def __reduce__(self):
        raise AssertionError("the main process's are sent")

rank = process_rank()
first, *others = gather_to_main([Unsent()] if rank == 0 else [10, 20]) or [None]
of_main = [isinstance(first, Unsent), others]
as_team = gather_to_main([rank], team=1)
Path(str(rank)).write_text(json.dumps([gather([rank] * (rank + 1)), of_main, as_team]))
leave()
"""
LEFT = """
import gc, weakref
from pathlib import Path
import torch.distributed
from repl_rl.utils.distributed import gather, leave, process_rank

rank = process_rank()
gather([rank])
group = weakref.ref(torch.distributed.group.WORLD)
leave()
gc.collect()
Path(str(rank)).write_text(str(group()))
"""
PROGRAM = Path(__file__).with_name("shared_credit.py.txt")


def test_one_process_is_all_of_them() -> None:
    assert is_main_process() is True
    assert from_main(lambda: "made") == "made"
    assert gather([1, 2]) == gather_to_main([1, 2]) == [1, 2]
    assert share_of_main(lambda: ["share"]) == "share"
    assert (any_of_all(True), any_of_all(False)) == (True, False)


@pytest.mark.parametrize(
    ("processes", "started_in", "start"),
    [("2", "1", f"accelerate launch --num_processes 2 {SHARDED} -m repl_rl.cli"), ("1", "4", "repl-rl")],
)
def test_another_number_of_processes_than_the_config_names_is_refused(
    processes: str, started_in: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", started_in)
    message = f"train.processes is {processes}, and this run was started in {started_in}; start it with `{start} train"
    assert message in said("train", "quickstart", "--set", f"train.processes={processes}", code=2)
    assert not (tmp_path / "runs").exists()


def test_more_processes_than_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("repl_rl.engine.environment.gpus_here", lambda: (4, 80.0))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "8")
    shown = said("train", "quickstart", "--set", "train.processes=8", code=2)
    assert "train.processes: 8 were started on this machine, which has 4 GPUs" in shown


@pytest.mark.parametrize(("given", "seconds"), [({}, WAIT_S), ({"ddp_timeout": 77}, 77)])
def test_processes_wait_as_long_for_each_other_as_the_config_says(
    given: dict[str, int], seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(training, "join", waits.append)
    monkeypatch.setattr(training, "require_processes", lambda *_: None)
    config = load_config("quickstart", ("train.processes=2", f"train.trl={json.dumps(given)}"))
    with training.prepare(config, tmp_path) as prepared:
        made = training.training_arguments(prepared.config, prepared.folder, use_cpu=True)
    assert (waits, made.ddp_timeout) == ([seconds], seconds)


def run_two(folder: Path, program: str) -> None:
    """Run this program in two processes."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.more
def test_a_group_ends_when_it_is_left(tmp_path: Path) -> None:
    """Left to the interpreter's end, its threads can abort the process."""
    run_two(tmp_path, LEFT)
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["None", "None"]


@pytest.mark.more
def test_each_process_gets_its_share_of_the_main_one_or_what_failed_there(tmp_path: Path) -> None:
    run_two(tmp_path, SHARES)
    for rank, share in ((0, "first"), (1, "second")):
        assert (tmp_path / str(rank)).read_text() == f"{share}, no kernel could be opened"


@pytest.mark.more
def test_what_goes_to_the_main_process_goes_to_no_other(tmp_path: Path) -> None:
    run_two(tmp_path, TO_MAIN)
    assert json.loads((tmp_path / "0").read_text()) == [[0, 1, 1], [True, [10, 20]], [0]]
    assert json.loads((tmp_path / "1").read_text()) == [[0, 1, 1], [False, []], [1]]


@pytest.mark.slow
def test_credit_over_the_batch_is_over_that_of_all_processes(tmp_path: Path) -> None:
    """Less their group's mean: 1 (1 token) and -1 (2) here, 4 (1) and -4 (2) there. Mean -5/6, over both."""
    run_two(tmp_path, PROGRAM.read_text())
    (first, counts), (second, same_counts) = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    mean = -5 / 6
    std = ((51 - 6 * mean**2) / 5) ** 0.5 + 1e-4
    assert first == pytest.approx([0.0, 0.0, (1 - mean) / std, (-1 - mean) / std])
    assert second == pytest.approx([(4 - mean) / std, (-4 - mean) / std, 0.0, 0.0])
    expected = {"credit/groups": 4.0, "credit/groups_without_variance": 2.0, "credit/void_trajectories": 0.0}
    assert counts == same_counts == expected
