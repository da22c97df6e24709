"""Timelines of real steps on nano: what Chrome's format asks is there, and so is each line of each session."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from recorded import first_is_right, make_tasks_named, recorded_trainer
from small import small_args, small_trainer
from timelines import Event, check_session, children_of, end_of, phases_in, read_timeline, sessions_in

from repl_rl.errors import ConfigError
from repl_rl.tasks import make_tasks
from repl_rl.trainer.timeline import Timeline, process_events
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory, Waited, read_jsonl

BATCH = ["draw", "roll out", "rest engine", "reward", "credit", "lay out", "look back", "weigh", "write rollouts"]
PASSES = ["loss", "backward"]


def train(folder: Path, **settings: Any) -> None:
    with small_trainer(folder, **settings) as trainer:
        trainer.train()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "trace").glob("*"))


def check_step(folder: Path, step: int) -> list[Event]:
    """The events of a step, whose sessions are those of its rollouts."""
    events = read_timeline(folder / "trace" / f"step_{step:05d}.json.gz")
    trajectories = list(read_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl"))
    assert trajectories
    for slices, trajectory in zip(sessions_in(events), trajectories, strict=True):
        check_session(slices, trajectory)
    return events


def test_a_step_that_is_named_has_a_timeline_and_others_have_none(tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "save_strategy": "steps"}
    train(tmp_path, trace=[2], save_steps=1, **settings)
    assert files(tmp_path) == ["step_00002.json.gz"]
    events = check_step(tmp_path, 2)
    phases = phases_in(events)
    step, *inside = phases
    assert (step["name"], step["pid"], step["tid"]) == ("step 2", 0, 1)
    after = ["clip gradients", "optimizer", "log", "save checkpoint", "log"]  # the last is the log of all steps
    assert children_of(step, phases) == ["sync weights", *BATCH, *PASSES, *PASSES, *after]
    [rolled_out] = [event for event in inside if event["name"] == "roll out"]
    assert children_of(rolled_out, phases) == ["sessions", "grade"]
    sessions = [slices[0] for slices in sessions_in(events)]
    assert len(sessions) == 8
    assert all(rolled_out["ts"] <= session["ts"] and end_of(session) <= end_of(rolled_out) for session in sessions)
    losses = [event for event in inside if event["name"] == "loss"]
    assert [children_of(loss, phases) for loss in losses] == [["forward"]] * 2
    assert [loss["args"]["rows"] for loss in losses] == [4, 4]
    waits = [trajectory.waits for trajectory in read_jsonl(tmp_path / "rollouts" / "step_00001.jsonl")]
    assert waits == [()] * 8, "and its sessions keep none"


@pytest.mark.more
def test_off_by_default_nothing_is_written(tmp_path: Path) -> None:
    train(tmp_path, max_steps=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rollouts"]
    assert '"waits"' not in (tmp_path / "rollouts" / "step_00001.jsonl").read_text()
    assert isinstance(Timeline().phase("any"), nullcontext)


@pytest.mark.more
def test_passes_of_a_batch_by_tokens_are_told_apart(tmp_path: Path) -> None:
    train(tmp_path, trace=True, max_steps=1, micro_batch_tokens=150)
    phases = phases_in(check_step(tmp_path, 1))
    [loss] = [event for event in phases if event["name"] == "loss"]
    passes = children_of(loss, phases)
    assert len(passes) > 2
    assert passes == ["forward", "backward"] * (len(passes) // 2) + ["forward"]
    assert all(event["args"]["tokens"] > 0 for event in phases if event["name"] == "forward")
    names = children_of(phases[0], phases)
    assert names[names.index("loss") + 1] == "backward", "that of the last pass"


@pytest.mark.more
def test_a_step_shows_the_sessions_that_it_trains_on_though_they_began_before_it(tmp_path: Path) -> None:
    settings = {"per_device_train_batch_size": 4, "num_generations": 2, "asynchronous": {"max_staleness": 2}}
    train(tmp_path, trace=[2, 3], max_steps=4, **settings)
    assert files(tmp_path) == ["step_00002.json.gz", "step_00003.json.gz"]
    for step in (2, 3):
        events = check_step(tmp_path, step)
        phases = phases_in(events)
        [rolled_out] = [event for event in phases if event["name"] == "roll out"]
        assert children_of(rolled_out, phases) == ["wait for groups", "grade"]
        assert all(end_of(slices[0]) <= end_of(rolled_out) for slices in sessions_in(events))


@pytest.mark.more
def test_trees_and_what_is_rolled_out_anew_are_there(tmp_path: Path) -> None:
    branch = {"roots": 2, "forks": 1, "branches": 2}
    train(tmp_path, trace=True, max_steps=1, branch=branch, credit={"estimator": "branch"}, redraws=1)
    events = read_timeline(tmp_path / "trace" / "step_00001.json.gz")
    stored = list(read_jsonl(tmp_path / "rollouts" / "step_00001.jsonl"))
    assert len(stored) == 8
    assert len(sessions_in(events)) >= 8, "those that were replaced, too"
    titles = [slices[0]["name"] for slices in sessions_in(events)]
    assert len(set(titles)) == len(titles)
    assert any(event["name"] == "queue: root" for event in events)


@pytest.mark.more
def test_an_evaluation_in_training_is_a_part_of_its_step(tmp_path: Path) -> None:
    heldout = make_tasks(["product"], 4, seed=1, split="heldout")
    evaluated = {"num_generations_eval": 1, "per_device_eval_batch_size": 4, "eval_strategy": "steps", "eval_steps": 1}
    train(tmp_path, trainer={"eval_dataset": heldout}, trace=True, max_steps=1, **evaluated)
    events = read_timeline(tmp_path / "trace" / "step_00001.json.gz")
    phases = phases_in(events)
    assert "evaluate" in children_of(phases[0], phases)
    assert len(sessions_in(events)) == 8 + 4


@pytest.mark.more
def test_a_trainer_made_in_python_writes_beside_the_rollouts_and_a_resumed_one_writes_again(tmp_path: Path) -> None:
    kept = {"rollout_dir": None, "save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    train(tmp_path, trace=True, **kept)
    run = tmp_path / "run_001"
    assert files(run) == ["step_00001.json.gz", "step_00002.json.gz"]
    first, second = ((run / "trace" / name).read_bytes() for name in files(run))
    with small_trainer(tmp_path, trace=[2], **kept) as trainer:
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert files(run) == ["step_00001.json.gz", "step_00002.json.gz"]
    assert (run / "trace" / "step_00001.json.gz").read_bytes() == first
    assert (run / "trace" / "step_00002.json.gz").read_bytes() != second
    check_step(run, 2)


def test_a_trainer_that_keeps_no_run_has_no_place_for_timelines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trace=\(3,\) with keep_run=False: .*set rollout_dir"):
        small_args(tmp_path, trace=3, rollout_dir=None, keep_run=False)


def test_sessions_that_say_nothing_of_their_waits_have_no_track(tmp_path: Path) -> None:
    """As those of a user's own loop: the step has its phases all the same."""
    tasks = make_tasks_named("a", "b")
    recorded_trainer(tmp_path, first_is_right, tasks, trace=True, keep_run=True, max_steps=1).train()
    [path] = tmp_path.rglob("*.json.gz")
    events = read_timeline(path)
    assert sessions_in(events) == []
    assert "loss" in [event["name"] for event in phases_in(events)]


def test_what_a_model_typed_is_shown_in_one_line_without_what_steers_a_viewer() -> None:
    typed = " x = '\x1b[2J\u202e\ud800'\n" + "9" * 1000 + "\n"
    trajectory = Trajectory(
        task_id="a\nb" * 100,
        prompt="",
        prompt_ids=(),
        completion_ids=(1, 2),
        sampled_mask=(True, True),
        logprobs=(0.0, 0.0),
        stop_reason=StopReason.ABORTED,
        lines=(Line(0, 1, typed, LineKind.STATEMENT), Line(1, 2, "\n", LineKind.BLANK)),
        error="KernelDiedError: \x00",
        duration_s=1e-6,
        waits=(Waited("queue", 10, 20, "turn"), Waited("engine", 20, 30), Waited("engine", 40, 50)),
    )
    events = process_events(3, [], [trajectory, trajectory])
    [first, second] = sessions_in(events)
    assert [event["pid"] for event in events] == [3] * len(events)
    assert first[0]["name"] != second[0]["name"]
    assert (first[0]["ts"], end_of(first[0])) == (10, 50), "it ends no earlier than its last wait"
    lines = [event for event in first if event["cat"] == "line"]
    assert lines[0]["name"].startswith(r"x = '\x1b[2J\u202e\ud800' 999")
    assert lines[1]["name"] == "(blank)"
    assert [(event["ts"], end_of(event)) for event in lines] == [(20, 40), (40, 50)]
    assert all(len(str(value)) < 500 for event in first for value in event.get("args", {}).values())
