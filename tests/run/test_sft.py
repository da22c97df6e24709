"""`repl-rl sft` on nano: real kernels, TRL's trainer, and held-out problems before and after."""

import argparse
import asyncio
import os
import shlex
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import CONFIGS, begin, finish, rows
from made_trajectories import line, made
from run.test_two_processes import KINDS
from safetensors.torch import load_file
from sharded import NO_DEEPSPEED, environment
from vocabularies import nano, qwen

from repl_rl.cli import main
from repl_rl.config import parse_config
from repl_rl.engine import Vocabulary
from repl_rl.errors import ConfigError, RunError
from repl_rl.kernel import KernelPool
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout import RolloutSetup, check_rollouts, retyped
from repl_rl.rollout.retyping import is_of_vocabulary
from repl_rl.rollout.scripted import type_session
from repl_rl.run.folder import RunFolder
from repl_rl.run.launch import ZERO_3
from repl_rl.run.sft import training
from repl_rl.run.sft.command import _training_command
from repl_rl.run.sft.sessions import LeftOut, choose, read_sessions, session_files, type_again
from repl_rl.tasks import load_tasks
from repl_rl.trajectory import Branch, LineKind, StopReason, Task, Trajectory, read_jsonl, write_jsonl
from repl_rl.view.charts import charts
from repl_rl.view.run import facts, read_run

CONFIG: dict[str, Any] = CONFIGS["small"] | {
    "sft": {"batch": 4, "micro_batch": 2, "epochs": 3, "learning_rate": 1e-3},
    "tasks": {"train": 16},
    "engine": CONFIGS["small"]["engine"] | {"backend": "transformers"},
}
COMMAND = ("sft", "small.yaml", "--from", "sessions.jsonl")


async def typed(tasks: list[Task], text: str) -> list[Trajectory]:
    """Right sessions of these tasks, `text` typed before the answer."""
    sessions = []
    async with KernelPool(4) as pool:
        for task in tasks:
            answer = f"{text} x = {task.answer}\n submit_final_answer(x)\n"
            session = await type_session(task, answer, kernels=pool)
            sessions.append(replace(session, outcome_reward=1.0, reference=task.answer))
    return sessions


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    config = parse_config(CONFIG)
    return load_tasks(config.tasks, "train", config.seed, 16)


@pytest.fixture(scope="module")
def recorded(tasks: list[Task]) -> list[Trajectory]:
    return asyncio.run(typed(tasks, ""))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, recorded: list[Trajectory]) -> Path:
    """Sessions, a config, and a run."""
    folder = tmp_path_factory.mktemp("sft")
    write_jsonl(folder / "sessions.jsonl", recorded)
    (folder / "small.yaml").write_text(yaml.safe_dump(CONFIG))
    output = finish(begin(folder, *COMMAND))
    assert "16 sessions, " in output
    assert "repl-rl train small.yaml --set model.path=runs/small-sft/model" in output
    return folder


def test_a_run_leaves_what_others_do(folder: Path, recorded: list[Trajectory]) -> None:
    run = folder / "runs" / "small-sft"
    assert [row["step"] for row in rows(run, "train")] == list(range(1, 13))
    assert [row["step"] for row in rows(run, "eval")] == [0, 12]
    assert (run / "report.html").stat().st_size > 10_000
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["name"], config["train"]["steps"]) == ("small-sft", 12)
    kept = list(read_jsonl(run / "sft.jsonl"))
    assert [session.completion_ids for session in kept] == [session.completion_ids for session in recorded]
    shown = read_run(run)
    assert dict(facts(shown))["sessions per step"] == "4"
    assert "imitation" in [chart.id for chart in charts(shown)]
    losses = [row["loss"] for row in rows(run, "train")]
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])


@pytest.mark.more
def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(folder: Path) -> None:
    process = begin(folder, *COMMAND, "--runs", "interrupted")
    assert process.stdout is not None
    for printed in process.stdout:
        if printed.startswith("step    2"):
            process.send_signal(signal.SIGINT)
            break
    assert "repl-rl sft --resume interrupted/small-sft" in finish(process, 130)
    assert "held-out problems" in finish(begin(folder, "sft", "--resume", "interrupted/small-sft"))
    runs = [folder / name / "small-sft" for name in ("interrupted", "runs")]
    losses = [[row["loss"] for row in rows(run, "train")] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_training_goes_on_from_its_model(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(["train", "small.yaml", "--set", "model.path=runs/small-sft/model", "--dry-run"]) == 0
    assert "runs/small-sft/model" in capsys.readouterr().out
    assert (NANO_PATH / "tokenizer.json").read_bytes() == (folder / "runs/small-sft/model/tokenizer.json").read_bytes()


@pytest.mark.more
def test_an_adapter_is_merged_into_the_model(folder: Path) -> None:
    lora = ("--set", "train.lora={r: 4}", "--set", "sft.epochs=1", "--set", "name=adapted")
    finish(begin(folder, *COMMAND, *lora))
    run = folder / "runs" / "adapted-sft"
    assert (run / "model" / "config.json").is_file()
    assert not (run / "model" / "adapter_config.json").exists()
    assert [row["step"] for row in rows(run, "eval")] == [0, 4]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["ddp", "fsdp 2", "fsdp 2, lora", "zero-3"])
def test_two_processes_train_as_one_does(folder: Path, name: str) -> None:
    """The same losses, and the same model: it is whole, whatever each process held of it."""
    kind = KINDS[name]
    if kind.shards == ZERO_3 and NO_DEEPSPEED:
        pytest.skip(NO_DEEPSPEED)
    options = ["--set", "sft.epochs=1"]
    if kind.lora:
        options += ["--set", "train.lora={r: 4}"]
    runs = []
    for processes in (1, 2):
        run_name = f"{name.replace(' ', '').replace(',', '-')}-{processes}"
        settings = [*options, "--set", f"train.processes={processes}", "--set", f"name={run_name}"]
        command = kind.start(processes)
        done = subprocess.run(
            [*command, *COMMAND, *settings],
            cwd=folder,
            env=os.environ | environment(" ".join(command)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        runs.append(folder / "runs" / f"{run_name}-sft")
    two = runs[1]
    losses = [[row["loss"] for row in rows(run, "train")] for run in runs]
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert [row["step"] for row in rows(two, "eval")] == [0, 4]
    models = [load_file(run / "model" / "model.safetensors") for run in runs]
    assert models[0].keys() == models[1].keys()
    for key, weight in models[0].items():
        torch.testing.assert_close(models[1][key], weight, rtol=1e-2, atol=2e-4)
    assert not (two / "model" / "adapter_config.json").exists()


def test_which_sessions_are_taken(recorded: list[Trajectory], tasks: list[Task]) -> None:
    right = recorded[0]
    held_out = replace(right, question=load_tasks(parse_config(CONFIG).tasks, "heldout", 0, 4)[0].question)
    failing = replace(right.lines[0], kind=LineKind.EXCEPTION, text=" y\n")
    given = [
        right,
        right,
        replace(right, outcome_reward=0.0),
        replace(right, outcome_reward=None),
        replace(right, dialect="ipython"),
        replace(held_out, task_id="h"),
        replace(right, lines=(failing, *right.lines[1:])),
        replace(right, task_id="nobody's", question=None),
    ]
    config = parse_config(CONFIG | {"sft": {"without": ["exception"]}})
    left_out = LeftOut()
    assert choose(config, given, left_out) == [(tasks[0], right)]
    assert left_out.counts == {
        "typed like another one": 1,
        "not right": 1,
        "never graded (sft.sessions: all takes them)": 1,
        "in the dialect ipython, while dialect.name is python": 1,
        "of held-out problems, which eval measures with": 1,
        "with a line of the kind exception (sft.without)": 1,
        "with no question": 1,
    }
    everything = parse_config(CONFIG | {"sft": {"sessions": "all"}})
    assert len(choose(everything, given, LeftOut())) == 2  # `right` in its two wordings


def test_a_branch_is_trained_on_with_its_parents_lines(tmp_path: Path, recorded: list[Trajectory]) -> None:
    root = recorded[0]
    branch = root.as_branch(1, 0, 0.5)
    assert branch.branch == Branch(0, 1, 0.5, "replay")
    write_jsonl(tmp_path / "rollouts" / "step_00001.jsonl", [root, branch])
    [file] = session_files([tmp_path])
    whole = list(read_sessions([file]))
    assert [session.completion_ids for session in whole] == [root.completion_ids] * 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["small.yaml"], "give recorded sessions to train on"),
        (["--from", "sessions.jsonl"], "give a config to train"),
        (["small.yaml", "--from", "nowhere.jsonl"], "--from nowhere.jsonl: there is no such file"),
        (["small.yaml", "--resume", "runs/small-sft"], "has its config and its sessions"),
        (["small.yaml", "--from", "sessions.jsonl", "--set", "dialect.name=ipython"], "no session is left to train on"),
        (["small.yaml", "--from", "sessions.jsonl", "--set", "train.processes=2"], "sft ...`, or set train.proc"),
        (
            ["small.yaml", "--from", "sessions.jsonl", "--set", "engine={servers: ['http://a:1']}"],
            "engine.servers: held-",
        ),
    ],
)
def test_what_is_refused_before_anything_is_loaded(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(folder)
    before = sorted((folder / "runs").iterdir())
    assert main(["sft", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert sorted((folder / "runs").iterdir()) == before


def test_what_is_interrupted_before_it_has_sessions_leaves_no_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(folder)
    monkeypatch.setattr(training, "type_again", interrupted)
    assert main([*COMMAND, "--runs", "early"]) == 130
    assert "nothing has been trained yet, so early/small-sft is removed again" in capsys.readouterr().out
    assert not (folder / "early" / "small-sft").exists()


def test_a_run_without_sessions_is_not_resumed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    shutil.copy("runs/small-sft/config.yaml", tmp_path)
    assert main(["sft", "--resume", str(tmp_path)]) == 2
    assert "or was ended before its sessions were typed again" in capsys.readouterr().err
    assert main(["sft", "--resume", str(tmp_path), "--dry-run"]) == 2
    assert "it is a run of `repl-rl train`" in capsys.readouterr().err


def test_training_does_not_go_on_in_the_folder_of_fine_tuning(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(["train", "--resume", "runs/small-sft", "--dry-run"]) == 2
    told = capsys.readouterr().err
    assert "`repl-rl sft --resume runs/small-sft`" in told
    assert "--set model.path=runs/small-sft/model" in told


def test_the_command_that_goes_on_has_what_was_overridden() -> None:
    settings = ["dialect.name=tool_call", "sft.shortest=2", "tasks={families: [gcd, product]}", "model.path=elsewhere"]
    options = argparse.Namespace(config="small.yaml", set=settings)
    assert shlex.split(_training_command(options, RunFolder(Path("runs/a b-sft")))) == [
        *("repl-rl", "train", "small.yaml", "--set", "dialect.name=tool_call"),
        *("--set", "tasks={families: [gcd, product]}", "--set", "model.path=runs/a b-sft/model"),
    ]


async def test_a_session_without_a_whole_line_is_left_out(recorded: list[Trajectory], tasks: list[Task]) -> None:
    cut = replace(recorded[0].lines[0], kind=LineKind.OVERLONG)
    ids = slice(0, cut.end)
    session = replace(
        recorded[0],
        lines=(cut,),
        completion_ids=recorded[0].completion_ids[ids],
        sampled_mask=recorded[0].sampled_mask[ids],
        logprobs=recorded[0].logprobs[ids],
        stop_reason=StopReason.LINE_TOKENS,
        answer=None,
        answer_forms=None,
    )
    config = parse_config(CONFIG)
    left_out = LeftOut()
    path = str(NANO_PATH)
    assert await type_again(config, path, check_rollouts(config), [(tasks[0], session)], left_out) == []
    assert left_out.counts == {"with no line that was typed to its end": 1}


def test_a_dry_run_says_which_sessions_it_would_take(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(["sft", "small.yaml", "--from", "sessions.jsonl", "sessions.jsonl", "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "16 sessions would be typed again in the tokens of nano, and trained on" in output
    assert "but for those that come out otherwise than recorded" in output
    assert "left out: 16 typed like another one" in output
    assert "shortest" not in output
    assert main([*COMMAND, "--dry-run", "--set", "sft.shortest=1"]) == 0
    assert "and for all but the shortest of each problem (sft.shortest: 1)" in capsys.readouterr().out
    assert main(["sft", "--resume", "runs/small-sft", "--dry-run"]) == 0
    assert "16 sessions, typed again in the tokens of nano before, would be trained on" in capsys.readouterr().out


async def test_which_sessions_are_left_once_they_are_typed_again(recorded: list[Trajectory], tasks: list[Task]) -> None:
    """Of another model, whose vocabulary is another: the shortest of a problem, and none that showed something else."""
    problem = tasks[:1]
    [short], [long], [timed] = [
        await typed(problem, text) for text in ("", " y = 1 + 1\n", " import time\n time.time_ns()\n")
    ]
    vocabulary = qwen()
    of_qwen = [await retyped_by(vocabulary, problem[0], session) for session in (long, short)]
    assert not is_of_vocabulary(of_qwen[1], nano())
    chosen = [(problem[0], session) for session in (*of_qwen, timed)]
    chosen += [(tasks[1], recorded[1])]
    config = parse_config(CONFIG | {"sft": {"shortest": 1}})
    left_out = LeftOut()
    again = await type_again(config, str(NANO_PATH), check_rollouts(config), chosen, left_out)
    assert [session.completion_ids for session in again] == [short.completion_ids, recorded[1].completion_ids]
    assert left_out.counts == {
        "came out otherwise than recorded": 1,
        "not among the shortest of their problem (sft.shortest: 1)": 1,
    }
    assert "'time.time_ns()' showed" in left_out.examples["came out otherwise than recorded"]


async def retyped_by(vocabulary: Vocabulary, task: Task, session: Trajectory) -> Trajectory:
    """The session as another model would have typed it."""
    async with KernelPool(1) as pool:
        return await retyped(pool, RolloutSetup(vocabulary, context_tokens=2048), task, session)


def test_folders_without_rollouts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there are no rollouts in it"):
        session_files([tmp_path])


def test_a_branch_without_its_root_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "alone.jsonl"
    write_jsonl(file, [replace(made([line("x"), line("y")]), branch=Branch(3, 1, 0.5))])
    with pytest.raises(ConfigError, match=r"alone.jsonl: session 0 of task .* is a branch of another one"):
        list(read_sessions([file]))
