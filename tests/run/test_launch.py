"""The command that is printed for several processes: the same everywhere, and the one that is tested."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import CONFIGS, rollouts, rows
from exactness import largest_logprob_difference
from sharded import on_cpus, started
from transformers import AutoModelForCausalLM

from repl_rl.config import load_config, parse_config, shipped_configs
from repl_rl.models.nano import NANO_PATH
from repl_rl.run.launch import SHARDED, WHOLE, ZERO_3, launch_command
from repl_rl.trajectory import Trajectory
from repl_rl.utils.folders import resource_folder

CHECKOUT = Path(__file__).parents[2]
PAGES = [*sorted((CHECKOUT / "docs").glob("*.md")), CHECKOUT / "README.md"]
SHIPPED = [resource_folder("configs") / f"{name}.yaml" for name in shipped_configs()]
BEGINNING = re.compile(r"accelerate launch --num_processes \d+( --mixed_precision bf16)? ")


def commands_in(path: Path) -> list[str]:
    """Each command of the file with `accelerate launch`, in one line, without what is set before it."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [" ".join(line.lstrip("# ").split()) for line in text.splitlines()]
    return [line[line.index("accelerate launch") :] for line in lines if "accelerate launch --" in line]


def test_every_command_that_is_written_down_is_the_one_that_is_printed() -> None:
    commands = [command for path in (*PAGES, *SHIPPED) for command in commands_in(path)]
    assert len(commands) >= 6
    for command in commands:
        beginning = BEGINNING.match(command)
        assert beginning is not None, command
        assert command.removeprefix(beginning[0]).startswith(f"{SHARDED} -m repl_rl.cli train "), command


def test_a_config_that_ships_has_its_own_command() -> None:
    found = {path.stem: commands_in(path) for path in SHIPPED}
    for name, commands in found.items():
        config = load_config(name)
        own = [f"{launch_command(config)} train {name}"] * (config.train.processes > 1)
        assert commands == own
    assert sum(map(len, found.values())) == 3


@pytest.mark.more
def test_what_the_tests_start_is_what_is_written_down_and_what_a_dry_run_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    page = CHECKOUT / "docs" / "gpus.md"
    [written] = {command for command in commands_in(page) if command.endswith(" train gpu-8")}
    shown = " ".join(said("train", "gpu-8", "--dry-run", "--gpu", "80").split())
    assert f"start it with: {written} " in f"{shown} "
    assert on_cpus(written) == [*started(8, "bfloat16"), "train", "gpu-8"]
    text = page.read_text(encoding="utf-8")
    for flags in (ZERO_3, WHOLE):
        assert f"`{flags}`" in text
        assert on_cpus(written.replace(SHARDED, flags)) == [*started(8, "bfloat16", flags), "train", "gpu-8"]


@pytest.mark.parametrize(
    ("trl", "flags"), [({}, f" {SHARDED}"), ({"fsdp": True}, ""), ({"deepspeed": "zero3.json"}, "")]
)
def test_flags_do_not_contradict_what_the_config_says_of_sharding(trl: dict[str, Any], flags: str) -> None:
    config = parse_config({"train": {"processes": 4, "trl": trl}, "model": {"dtype": "float32"}})
    assert launch_command(config) == f"accelerate launch --num_processes 4{flags} -m repl_rl.cli"


def outcome(trajectory: Trajectory) -> tuple[Any, ...]:
    advantages = [line.advantage for line in trajectory.lines]
    return trajectory.task_id, trajectory.completion_ids, trajectory.outcome_reward, advantages


@pytest.mark.more
@pytest.mark.timeout(900)
@pytest.mark.covers(
    "two processes, by the command that a dry run prints", "in each, the sessions and the drift of one process"
)
def test_the_printed_command_runs_and_each_process_does_its_part_of_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    small = CONFIGS["two processes"]
    config = small | {
        "name": "two",
        "budget": {"line_tokens": 32, "lines": 6, "tokens": 160},
        "train": small["train"] | {"steps": 1, "redraws": 0, "mask": []},
        "eval": {"problems": 12},
    }
    Path("c.yaml").write_text(yaml.safe_dump(config))
    shown = " ".join(said("train", "c.yaml", "--dry-run").split())
    printed = re.search(r"start it with: (accelerate launch .*? train c\.yaml)", shown)
    assert printed is not None
    one = [sys.executable, "-m", "repl_rl.cli", "train", "c.yaml", "--set=name=one", "--set=train.processes=1"]
    for command in (on_cpus(printed[1]), one):
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, (shlex.join(command), done.stdout, done.stderr)
    runs = Path("runs/two"), Path("runs/one")
    before_two, before_one = (rows(run, "eval")[0] for run in runs)
    assert before_two["solve_rate"] == before_one["solve_rate"] > 0
    nano = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32).eval()
    for step, folder in ((0, "eval"), (1, "rollouts")):
        of_two, of_one = (rollouts(run, step, folder) for run in runs)
        half = len(of_one) // 2
        for rank, part in enumerate((slice(half), slice(half, None))):
            assert list(map(outcome, of_two[part])) == list(map(outcome, of_one[part])), f"process {rank}, {folder}"
            assert max(largest_logprob_difference(each, nano) for each in of_two[part]) < 1e-4, f"process {rank}"
    [step_of_two], [step_of_one] = (rows(run, "train") for run in runs)
    for name in ("drift/logprob_mean", "drift/logprob_max", "passes/packed", "passes/one_call"):
        assert step_of_two[name] == pytest.approx(step_of_one[name], abs=1e-5)
    assert step_of_two["drift/logprob_max"] < 1e-4
