"""Resuming a run with `--set`: what may change, what is refused, and what a change means for the rest of the run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments, get_scheduler

from repl_rl.config import load_config
from repl_rl.errors import RunError
from repl_rl.run.callbacks import FollowArguments
from repl_rl.run.folder import RunFolder, new_run
from repl_rl.run.resume import open_run, what_changes
from repl_rl.trajectory import read_jsonl

Said = Callable[..., str]
FREE = (
    "train.steps, train.max_minutes, train.save_steps, train.trace, train.report_to, train.report_rollouts, "
    "train.report_rollouts_every, eval.problems, eval.temperature, import_from, kernel.size, kernel.budget_mb, "
    "engine.servers, engine.weights_folder, engine.places, engine.kv_cache_gib, engine.gpu_memory_utilization"
)


def reach(folder: RunFolder, step: int) -> None:
    """Leave a checkpoint that looks complete."""
    checkpoint = folder.checkpoints / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(f'{{"global_step": {step}}}')


def test_a_dry_run_names_the_runs_own_folder_and_what_remains(tmp_path: Path, said: Said) -> None:
    folder = new_run(load_config("quickstart"), tmp_path)
    reach(folder, 40)
    shown = said("train", "--resume", str(folder.path), "--dry-run", "--set", "train.steps=100")
    assert f"files             {folder.path}/, resumed from step 40: 60 of 100 steps remain" in shown.splitlines()
    assert [line for line in shown.splitlines() if line.startswith("note: ")] == [
        "note: the learning rate follows train.steps (schedule linear), 100 instead of 60: at step 40 it goes from "
        "0.000179 to 0.000313, then to 0 at step 100"
    ]
    assert folder.config().train.steps == 60
    assert [path.name for path in tmp_path.iterdir()] == ["quickstart"]


def test_what_a_change_means_is_said_and_nothing_else(tmp_path: Path) -> None:
    folder = new_run(load_config("quickstart"), tmp_path)
    reach(folder, 40)
    folder.append({"kind": "eval", "step": 0})
    assert what_changes(folder, load_config("quickstart", ("train.max_minutes=1", "kernel.size=3"))) == []
    assert what_changes(folder, load_config("quickstart", ("eval.problems=10",))) == [
        "eval has changed: the model from before training is measured again, and the tables leave out what was "
        "measured with the earlier settings"
    ]
    constant = new_run(load_config("quickstart", ("train.schedule=constant",)), tmp_path)
    reach(constant, 40)
    assert what_changes(constant, load_config("quickstart", ("train.schedule=constant", "train.steps=90"))) == []
    of_trl = "train.trl={lr_scheduler_type: polynomial}"
    own = new_run(load_config("quickstart", (of_trl,)), tmp_path)
    reach(own, 40)
    assert what_changes(own, load_config("quickstart", (of_trl, "train.steps=90"))) == [
        "the learning rate follows train.steps (schedule polynomial), 90 instead of 60: from step 40 on it is what a "
        "run of 90 steps has there"
    ]


def test_the_first_step_of_an_extended_run_has_its_learning_rate_now(tmp_path: Path) -> None:
    def made(steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        return optimizer, get_scheduler("linear", optimizer, 0, steps)

    optimizer, scheduler = made(4)
    for _ in range(4):
        optimizer.step()
        scheduler.step()
    longer_optimizer, longer = made(8)
    longer_optimizer.load_state_dict(optimizer.state_dict())
    longer.load_state_dict(scheduler.state_dict())
    assert longer_optimizer.param_groups[0]["lr"] == 0.0, "what the checkpoint of the finished run stored"
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=8)
    state = TrainerState(global_step=4, max_steps=8)
    FollowArguments().on_train_begin(
        arguments, state, TrainerControl(), optimizer=longer_optimizer, lr_scheduler=longer
    )
    assert longer_optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.more
@pytest.mark.usefixtures("stored")
def test_a_finished_run_goes_on_as_it_would_have_and_is_measured_alike_before_and_after(said: Said) -> None:
    shown = said("train", "--resume", "run", "--set", "train.steps=3", "--set", "eval.temperature=0.5")
    assert shown.splitlines()[:2] == [
        "run folder: run",
        "note: eval has changed: the model from before training is measured again, and the tables leave out what was "
        "measured with the earlier settings",
    ]
    then, now = (list(read_jsonl(Path(path))) for path in ("step_00003.jsonl", "run/rollouts/step_00003.jsonl"))
    assert [one.completion_ids for one in now] == [one.completion_ids for one in then]
    for new, old in zip(now, then, strict=True):
        assert new.logprobs == pytest.approx(old.logprobs, abs=1e-4)
        assert [line.advantage for line in new.lines] == pytest.approx([line.advantage for line in old.lines], abs=1e-6)
    rows = [json.loads(row) for row in Path("run/metrics.jsonl").read_text().splitlines()]
    evaluated = [(row["step"], row["settings"]["temperature"]) for row in rows if row["kind"] == "eval"]
    assert evaluated == [(0, 1.0), (2, 1.0), (0, 0.5), (3, 0.5)]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2, 3]
    stored = RunFolder(Path("run")).config()
    assert (stored.train.steps, stored.eval.temperature) == (3, 0.5)
    notes = [line for line in said("view", "run", "--summary").splitlines() if line.startswith("note:")]
    assert notes == [f"note: the evaluation at step {n} had other settings (eval) and is left out" for n in (0, 2)]


@pytest.mark.parametrize("run", [["sample.yaml"], ["--resume", "run", "--set", "train.steps=3"]])
def test_where_the_model_does_not_load_a_new_run_leaves_no_folder_and_one_that_is_resumed_keeps_its_own(
    stored: Path, run: list[str], said: Said
) -> None:
    (stored / "model/model.safetensors").write_bytes(b"")
    shown = said("train", *run, code=2)
    assert "header too small" in shown
    assert ("go on with: repl-rl train --resume run" in shown) == ("--resume" in run)
    assert list(stored.glob("runs/*")) == []
    assert (stored / "run/metrics.jsonl").is_file()


def test_another_config_is_refused_with_the_keys_that_differ_and_both_values(tmp_path: Path) -> None:
    folder = new_run(load_config("quickstart"), tmp_path)
    assert open_run(folder.path, None)[1] == load_config("quickstart")
    other = load_config(
        "quickstart", ("train.steps=7", "train.save_steps=3", "seed=4", "rewards.kinds={timeout: -0.2, killed: -1}")
    )
    with pytest.raises(RunError) as caught:
        open_run(folder.path, other)
    assert str(caught.value).splitlines() == [
        f"{folder.path} was started from another config. These keys differ:",
        "  rewards.kinds.exception: -0.05 in the run, absent now",
        "  rewards.kinds.killed: -0.2 in the run, -1.0 now",
        "  rewards.kinds.overlong: -0.1 in the run, absent now",
        "  rewards.kinds.syntax_error: -0.1 in the run, absent now",
        "  seed: 0 in the run, 4 now",
        f"Resume without them to go on with the run's own, or start a new run. What may change: {FREE}",
    ]


def test_a_longer_run_with_other_means_is_still_the_run(tmp_path: Path) -> None:
    constant = "train.schedule=constant_with_warmup"
    folder = new_run(load_config("quickstart", (constant, "train.steps=8", "seed=3")), tmp_path)
    own = open_run(folder.path, None, ("train.steps=90", "train.report_to=tensorboard"))[1]
    assert (own.seed, own.train.steps, own.train.report_to) == (3, 90, ("tensorboard",))
    changed = load_config("quickstart", (constant, "seed=3", "train.steps=9", "train.save_steps=2", "kernel.size=3"))
    assert open_run(folder.path, changed) == (folder, changed)
    assert folder.config().train.steps == 8, "opening writes nothing"
    folder.keep_config(changed)
    assert folder.config() == changed
    assert sorted(path.name for path in folder.path.iterdir()) == ["config.yaml"]


def test_a_run_is_not_resumed_to_a_step_behind_it(tmp_path: Path) -> None:
    constant = "train.schedule=constant"
    folder = new_run(load_config("quickstart", (constant,)), tmp_path)
    reach(folder, 20)
    with pytest.raises(RunError, match=r"has reached step 20, and train\.steps is 19 now"):
        open_run(folder.path, load_config("quickstart", (constant, "train.steps=19")))
