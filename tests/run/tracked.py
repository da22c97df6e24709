"""Runs that trackers follow, in a process of its own: trackio takes its folder when it is first imported.

    python tracked.py

In the working directory: a run of two steps, killed as it were before its second checkpoint was complete, and resumed
to three (`runs/tiny`); rollouts full of hostile text (`hostile`); TRL's own `report_to` without a run folder (`plain`).
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

TRACKERS = ["wandb", "trackio", "tensorboard"]
HOSTILE = "\ud800\x00\x1b[31m\x85\u202e</pre><script>alert(1)</script>\r\n    | --- |\n\n# not a heading\n```\n"


def hostile(task: Any, index: int) -> Any:
    """One trajectory of hostile text and one of 1,000 lines."""
    import dataclasses

    from recorded import recorded

    made = recorded(task, index, lines=1000 if index else 3)
    lines = tuple(dataclasses.replace(line, text=HOSTILE, output=HOSTILE, error_name=HOSTILE) for line in made.lines)
    return dataclasses.replace(made, task_id=HOSTILE + task.id, prompt=HOSTILE, lines=lines)


def run_and_resume() -> None:
    from commands import CONFIGS

    from repl_rl.cli import main

    Path("tiny.yaml").write_text(json.dumps(CONFIGS["tracked"]))
    assert main(["train", "tiny.yaml"]) == 0
    Path("runs/tiny/checkpoints/checkpoint-2/trainer_state.json").write_text("{")
    assert main(["train", "tiny.yaml", "--set", "train.steps=3", "--resume", "runs/tiny"]) == 0


def follow_hostile_rollouts() -> None:
    from recorded import make_tasks_named, recorded_trainer

    from repl_rl.config import parse_config
    from repl_rl.run.folder import RunFolder
    from repl_rl.run.trackers import open_trackers

    folder = RunFolder(Path("hostile"))
    names = {"report_to": TRACKERS, "project": "hostile", "run_name": "hostile"}
    trainer = recorded_trainer(folder.path, hostile, make_tasks_named("a"), per_device_train_batch_size=2, **names)
    with open_trackers(trainer, parse_config({"name": "hostile"}), folder):
        trainer.train()


def as_with_trl() -> None:
    from recorded import make_tasks_named, recorded, recorded_trainer

    names = {"report_to": TRACKERS, "project": "plain", "run_name": "plain", "log_completions": True}
    trainer = recorded_trainer(Path("plain"), recorded, make_tasks_named("a"), per_device_train_batch_size=2, **names)
    trainer.train()


if __name__ == "__main__":
    run_and_resume()
    follow_hostile_rollouts()
    as_with_trl()
