"""`train.trace` in runs by command: which files there are, that they hold the run's sessions, and what a resumed run
makes of them."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import CONFIGS, begin, finish, rollouts
from run.test_two_processes import KINDS, SMALL, train
from timelines import Event, check_session, children_of, end_of, phases_in, read_timeline, sessions_in

from repl_rl.config import load_config
from repl_rl.run.folder import RunFolder, new_run


def write_config(folder: Path, **train: Any) -> None:
    config = CONFIGS["small"] | {"train": CONFIGS["small"]["train"] | train}
    (folder / "small.yaml").write_text(yaml.safe_dump(config))


def check_sessions(run: Path, step: int, split: str, process: int | None = None) -> list[Event]:
    """The events of a file, with all sessions of the run's rollouts, in their order."""
    events = read_timeline(run / "trace" / f"{split}_{step:05d}.json.gz")
    trajectories = rollouts(run, step, {"step": "rollouts", "eval": "eval"}[split])
    for slices, trajectory in zip(sessions_in(events, process), trajectories, strict=True):
        check_session(slices, trajectory)
    return events


def names(run: Path) -> list[str]:
    return sorted(path.name.removesuffix(".json.gz") for path in (run / "trace").iterdir())


@pytest.mark.more
def test_a_run_and_its_evaluations_have_timelines_and_a_resumed_run_has_those_of_its_own_steps(tmp_path: Path) -> None:
    write_config(tmp_path, steps=2, trace=True)
    finish(begin(tmp_path, "train", "small.yaml"))
    run = tmp_path / "runs" / "small"
    assert names(run) == ["eval_00000", "eval_00002", "step_00001", "step_00002"]
    ends = []
    for split, step in (("eval", 0), ("step", 1), ("step", 2), ("eval", 2)):
        events = check_sessions(run, step, split)
        phases = phases_in(events)
        assert all(end <= phases[0]["ts"] for end in ends), "one after the other, on one clock"
        ends.append(end_of(phases[0]))
        rolled_out = ["sessions", "grade"] if split == "eval" else ["draw", "roll out"]
        beginning = [] if (split, step) == ("step", 1) else ["sync weights"]  # the evaluation before it sent them
        assert children_of(phases[0], phases)[: len(beginning) + 2] == [*beginning, *rolled_out]
    before = {name: (run / "trace" / f"{name}.json.gz").read_bytes() for name in names(run)}

    finish(begin(tmp_path, "train", "--resume", "runs/small", "--set", "train.steps=4", "--set", "train.trace=[4]"))
    assert names(run) == sorted([*before, "step_00004", "eval_00004"])
    assert all((run / "trace" / f"{name}.json.gz").read_bytes() == content for name, content in before.items())
    for split in ("step", "eval"):
        check_sessions(run, 4, split)


def test_what_comes_again_after_a_checkpoint_is_forgotten(tmp_path: Path) -> None:
    folder: RunFolder = new_run(load_config("quickstart"), tmp_path)
    folder.trace.mkdir()
    for name in (
        "step_00002.json.gz",
        "step_00003.json.gz",
        "step_00040.json.gz",
        "eval_00000.json.gz",
        "step_x.json.gz",
    ):
        (folder.trace / name).write_bytes(b"")
    folder.forget_after(2)
    kept = ["eval_00000.json.gz", "step_00002.json.gz", "step_x.json.gz"]
    assert sorted(path.name for path in folder.trace.iterdir()) == kept


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_processes_are_two_processes_of_one_file(tmp_path: Path) -> None:
    engine = SMALL["engine"] | KINDS["ddp"].sections.get("engine", {})
    config = SMALL | {"engine": engine, "train": SMALL["train"] | {"steps": 1, "redraws": 0, "trace": True}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    train(KINDS["ddp"], tmp_path, "c.yaml")
    run = tmp_path / "runs" / "through"
    assert names(run) == ["eval_00000", "eval_00001", "step_00001"]
    events = read_timeline(run / "trace" / "step_00001.json.gz")
    trajectories = rollouts(run, 1)
    assert {event["pid"] for event in events} == {0, 1}
    process_names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert process_names == {"rank 0", "rank 1"}
    for process in (0, 1):
        sessions = sessions_in(events, process)
        for slices, trajectory in zip(sessions, trajectories[8 * process : 8 * process + 8], strict=True):
            check_session(slices, trajectory)
        phases = phases_in(events, process)
        [rolled_out] = [event for event in phases if event["name"] == "roll out"]
        assert all(
            rolled_out["ts"] <= slices[0]["ts"] and end_of(slices[0]) <= end_of(rolled_out) for slices in sessions
        )
    first, second = (phases_in(events, process) for process in (0, 1))
    assert children_of(first[0], first) == children_of(second[0], second)
    # one clock: neither begins to take the step before the other has begun with it, and both wait for the gradient
    assert first[0]["ts"] < end_of(second[0])
    assert second[0]["ts"] < end_of(first[0])
    for step in (0, 1):
        check_sessions(run, step, "eval")
