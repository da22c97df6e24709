"""Whole runs of two trainer processes on CPUs (gloo): each evaluates, trains, saves and resumes."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import CONFIGS, rollouts, rows
from engine.serving import servers
from exactness import largest_logprob_difference
from sharded import NO_DEEPSPEED, environment, started
from transformers import AutoModelForCausalLM

from repl_rl.models.nano import NANO_PATH
from repl_rl.run.launch import SHARDED, WHOLE, ZERO_3
from repl_rl.trajectory import read_jsonl

WHOLE_RUNS = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # the fixture has three runs of two processes each, on cores that other tests use too
    pytest.mark.covers("two processes, the whole model in each (DDP)", "runs: evaluated, saved, resumed"),
    pytest.mark.covers(
        "two processes that share the model (FSDP 2, DeepSpeed ZeRO-3), all weights or LoRA",
        "runs: evaluated, saved, resumed",
    ),
    pytest.mark.covers("two processes with LoRA, and a vLLM server", "runs: evaluated, saved, resumed"),
    pytest.mark.covers(
        "two processes that share vLLM's model (tensor parallelism), all weights or LoRA",
        "runs: evaluated, saved, resumed; the first rolls out for both",
    ),
    pytest.mark.covers(
        "two processes with a Ray cluster, or with a vLLM server and `asynchronous`",
        "runs: evaluated, saved, resumed; the main process rolls out for both",
    ),
]

SMALL = CONFIGS["two processes"]
SHARDS = {"tensor_parallel_size": 2}


@dataclass(frozen=True)
class Kind:
    """How two processes train."""

    shards: str
    """The flags of accelerate that say what each process holds of the model."""
    lora: bool = False
    server: bool = False
    sections: dict[str, Any] = field(default_factory=dict)
    """What the config has besides."""
    dtype: str = "float32"
    """Of the sampler, the passes and, with adapters, of the frozen weights."""

    @property
    def drift(self) -> float:
        """Of log-probabilities, in nats: rounding, and no more."""
        return 1e-3 if self.dtype == "float32" else 0.3

    def start(self, processes: int) -> list[str]:
        """The beginning of the command."""
        if processes == 1:
            return [sys.executable, "-m", "repl_rl.cli"]
        return started(processes, self.dtype, self.shards)


KINDS = {
    "ddp": Kind(WHOLE),
    "ddp, vLLM in each": Kind(WHOLE, sections={"engine": {"backend": "vllm"}}),
    "ddp, lora, vLLM in shards": Kind(
        WHOLE, lora=True, sections={"engine": {"backend": "vllm", "vllm": SHARDS | {"enable_lora": True}}}
    ),
    "fsdp 2, vLLM in shards": Kind(SHARDED, sections={"engine": {"backend": "vllm", "vllm": SHARDS}}),
    "fsdp 2": Kind(SHARDED),
    "fsdp 2, bfloat16": Kind(SHARDED, dtype="bfloat16"),
    "fsdp 2, lora": Kind(SHARDED, lora=True),
    "fsdp 2, lora on bfloat16": Kind(SHARDED, lora=True, dtype="bfloat16"),
    "zero-3": Kind(ZERO_3),
    "zero-3, lora": Kind(ZERO_3, lora=True),
    "ddp, lora, a server": Kind(WHOLE, lora=True, server=True),
    "ddp, asynchronous, a server": Kind(
        WHOLE, server=True, sections={"train": {"asynchronous": {"max_staleness": 0}, "redraws": 0}}
    ),
    "ddp, a cluster": Kind(
        WHOLE, server=True, sections={"cluster": {"address": "local", "replicas": 1, "replica_resources": {}}}
    ),
}


def train(kind: Kind, folder: Path, *arguments: str, processes: int = 2) -> None:
    printed = command(kind, folder, "train", *arguments, processes=processes)
    assert printed.count("\nstep    1 ") <= 1, "one process tells of the run"


def command(kind: Kind, folder: Path, *arguments: str, processes: int = 2) -> str:
    """What the command printed."""
    done = subprocess.run(
        [*kind.start(processes), *arguments],
        cwd=folder,
        env=os.environ | environment(kind.shards),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=WHOLE_RUNS, id=name) for name, kind in KINDS.items()])
def kind(request: pytest.FixtureRequest) -> Kind:
    own: Kind = request.param
    if own.shards == ZERO_3 and NO_DEEPSPEED:
        pytest.skip(NO_DEEPSPEED)
    return own


@pytest.fixture(scope="module")
def runs(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run of two steps, and one that was resumed after the first."""
    folder = tmp_path_factory.mktemp("two")
    is_own_server = kind.server and "cluster" not in kind.sections
    with servers(folder, 1) if is_own_server else nullcontext() as running:
        engine: dict[str, Any] = SMALL["engine"]
        if kind.server:
            urls = [server.url for server in running or ()]
            engine = {"servers": urls, "context_tokens": 384, "weights_folder": str(folder / "weights")}
        lora = {"lora": {"r": 4}, "dtype": kind.dtype, "learning_rate": 2e-2} if kind.lora else {}
        config = {**SMALL, "engine": engine, "train": SMALL["train"] | lora, "model": {"dtype": kind.dtype}}
        for name, more in kind.sections.items():
            config[name] = config.get(name, {}) | more
        (folder / "c.yaml").write_text(yaml.safe_dump(config))
        train(kind, folder, "c.yaml")
        train(kind, folder, "c.yaml", "--set", "name=again", "--set", "train.steps=1")
        train(kind, folder, "--resume", "runs/again", "--set", "train.steps=2")
    return [folder / "runs" / name for name in ("through", "again")]


def test_two_processes_make_one_run_and_each_step_is_sampled_with_its_own_weights(kind: Kind, runs: list[Path]) -> None:
    assert sorted(path.name for path in runs[0].parent.iterdir()) == ["again", "through"]
    for run in runs:
        assert [row["step"] for row in rows(run, "train")] == [1, 2]
        for row in rows(run, "train"):
            assert row["drift/logprob_max"] < kind.drift
            assert row.get("credit/redrawn_groups", 0) in range(5)
            assert 0.0 <= row["credit/masked_share"] <= 1.0
            assert sum(value for key, value in row.items() if key.startswith("stops/")) == pytest.approx(1.0)
        assert (run / "report.html").exists()


def test_the_processes_share_a_step_by_whole_groups_and_the_held_out_problems(runs: list[Path]) -> None:
    for step in (1, 2):
        trajectories = rollouts(runs[0], step)
        groups = [trajectories[start : start + 4] for start in range(0, 16, 4)]
        assert [len({trajectory.task_id for trajectory in group}) for group in groups] == [1, 1, 1, 1]
        assert (len(trajectories), len({trajectory.task_id for trajectory in trajectories})) == (16, 4)
        for group in groups:
            returns = [sum(line.reward or 0.0 for line in trajectory.lines) for trajectory in group]
            expected = [own - (sum(returns) - own) / 3 for own in returns]
            assert [trajectory.lines[0].advantage for trajectory in group] == pytest.approx(expected)
    for step in (0, 2):
        trajectories = rollouts(runs[0], step, "eval")
        assert len({trajectory.task_id for trajectory in trajectories}) == len(trajectories) == 5


def test_what_is_saved_is_the_whole_model_that_was_evaluated_last(kind: Kind, runs: list[Path]) -> None:
    for run in runs:
        model = AutoModelForCausalLM.from_pretrained(run / "model", dtype=torch.float32).eval()
        nano = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32).eval()
        assert not (run / "model" / "adapter_config.json").exists()
        last, first = (rollouts(run, step, "eval") for step in (2, 0))
        of_model, of_nano = (max(largest_logprob_difference(one, each) for one in last) for each in (model, nano))
        assert of_model < min(kind.drift, of_nano / 2)
        assert max(largest_logprob_difference(one, nano) for one in first) < kind.drift


def test_a_resumed_run_ends_as_one_that_ran_through(kind: Kind, runs: list[Path]) -> None:
    if kind.server:
        pytest.skip("a server batches lines as they come: the same steps, with other samples")
    through, again = (AutoModelForCausalLM.from_pretrained(run / "model").state_dict() for run in runs)
    assert through.keys() == again.keys()
    for name, weight in through.items():
        assert torch.allclose(weight, again[name], atol=1e-6), name
    first, second = (rollouts(run, 2) for run in runs)
    assert [t.completion_ids for t in first] == [t.completion_ids for t in second]


@pytest.mark.more
@pytest.mark.timeout(1800)
@pytest.mark.covers("two processes, vLLM in each", "the sessions and the step of one process with the whole batch")
def test_two_processes_with_an_engine_each_do_what_one_does(tmp_path: Path) -> None:
    kind = KINDS["ddp, vLLM in each"]
    engine = SMALL["engine"] | kind.sections["engine"]
    config = SMALL | {"engine": engine, "train": SMALL["train"] | {"redraws": 0, "steps": 1}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    for count in (2, 1):
        train(
            kind, tmp_path, "c.yaml", "--set", f"name=of-{count}", "--set", f"train.processes={count}", processes=count
        )
    of_two, of_one = (tmp_path / "runs" / f"of-{count}" for count in (2, 1))
    for when in ((1, "rollouts"), (0, "eval"), (1, "eval")):
        two, one = (
            [
                (each.task_id, each.completion_ids, each.outcome_reward, [line.advantage for line in each.lines])
                for each in rollouts(run, *when)
            ]
            for run in (of_two, of_one)
        )
        assert two == one
    weights = [AutoModelForCausalLM.from_pretrained(run / "model").state_dict() for run in (of_two, of_one)]
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-4) for name in weights[0])


@pytest.mark.more
@pytest.mark.timeout(1800)
def test_two_processes_evaluate_as_one_does_and_the_main_one_tells_of_it(tmp_path: Path) -> None:
    """Two rows, of which the second is compared to the first; no process but the main one has the sessions for that."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(SMALL))
    reports = []
    files = []
    for count in (1, 2):
        arguments = f"c.yaml --set train.processes={count} --dialect python ipython -n 2"
        files_of_main = f"--json {count}.json --out {count}.jsonl"
        printed = command(KINDS["ddp"], tmp_path, "eval", *f"{arguments} {files_of_main}".split(), processes=count)
        assert printed.count("held-out problems") == 1
        report = json.loads((tmp_path / f"{count}.json").read_text())
        for row in report["rows"]:
            for depends_on_time in ("wall_s", "seconds", "config"):
                del row[depends_on_time]
            for summary in row["families"].values():
                del summary["seconds"]
        reports.append(report["rows"])
        files.append([session.completion_ids for session in read_jsonl(tmp_path / f"{count}.jsonl")])
    assert len(files[0]) == 2 * 5 * 2
    assert files[1] == files[0]
    assert reports[1] == reports[0]
