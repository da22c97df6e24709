"""What is logged of recorded rollouts, in as many processes as it is started in. A session that is pickled, as whatever
one process sends to another is, ends it.

    python logged_steps.py FOLDER '{"name": {"oversample": 2}}'

Each process writes RANK.json: what the log of a step made of sessions of all kinds; and for each of the settings, the
metrics of a step and the table of completions.
"""

import json
import pickle
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from made_trajectories import EXCEPTIONS, line, made, made_at_random
from recorded import make_tasks_named, recorded, recorded_trainer

from repl_rl.trainer.step_log import StepLog
from repl_rl.trajectory import Line, RecordedCell, StopReason, Task, Trajectory
from repl_rl.utils.distributed import leave, process_count, process_rank

GROUPS, GROUP_SIZE = 4, 2
ENDS = tuple(StopReason)


def refuse(session: Any) -> Any:
    raise AssertionError(f"{session!r} is pickled")


def refuse_to_pickle() -> None:
    for kind in (Trajectory, Line):
        setattr(kind, "__getstate__", refuse)  # noqa: B010 - what dataclasses with slots are pickled by
    try:
        pickle.dumps(made([line()]))
    except AssertionError:
        return
    raise SystemExit("a session can be pickled all the same")


def share(sessions: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """This process's."""
    size = len(sessions) // process_count()
    return sessions[process_rank() * size : (process_rank() + 1) * size]


def logged() -> dict[str, list[float]]:
    """Of three batches, which end for different reasons; the sessions of the last one are void."""
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        engine=None,
        state=SimpleNamespace(num_input_tokens_seen=0),
        _metrics={"train": defaultdict(list)},
    )
    service = cast(Any, SimpleNamespace(loop_share=0.25, kernel_numbers=lambda: {"started": 1.0}))
    log = StepLog(trainer)
    random = Random(1)
    for reasons in (ENDS[:6], ENDS[4:], [StopReason.ABORTED]):
        sessions = share([made_at_random(random, random.choice(reasons)) for _ in range(64)])
        log.batch(sessions, 7.0, service, ["multiply"])
        log.kept(sessions[::2], len(sessions))
        log.sessions(sessions)
    return trainer._metrics["train"]


def recording(task: Task, index: int) -> Trajectory:
    """Two to five lines with errors, times and pictures, by task and index."""
    random = Random(f"{task.id}/{index}")
    trajectory = recorded(task, index, is_right=random.random() < 0.5, lines=random.randrange(2, 6))
    lines = []
    for typed in trajectory.lines:
        cell = RecordedCell("x", "", images=random.choice([(), (f"picture of {task.id}".encode(),)]))
        error = random.choice([None, *EXCEPTIONS])
        lines.append(replace(typed, duration_s=random.random(), error_name=error, cells=(cell,)))
    return replace(trajectory, lines=tuple(lines), engine_s=random.random(), duration_s=1 + random.random())


def length(completions: list[str], log_extra: Any, log_metric: Any, **_: Any) -> list[float]:
    """A reward function that logs, one of its columns in the main process alone."""
    letters = [len(completion) for completion in completions]
    log_extra("letters", letters)
    if process_rank() == 0:
        log_extra("main", ["yes"] * len(completions))
    for count in letters:
        log_metric("letters", count)
    return [0.0] * len(completions)


def step(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    batch_size = GROUPS * GROUP_SIZE // process_count()
    defaults = {"per_device_train_batch_size": batch_size, "num_generations": GROUP_SIZE, "seed": 1}
    tasks = make_tasks_named(*(f"t{index}" for index in range(3 * GROUPS)))
    functions = {"reward_funcs": length}
    trainer = recorded_trainer(folder, recording, tasks, trainer=functions, **defaults | settings)
    trainer.train()
    extra = {name: list(column) for name, column in trainer._logs["extra"].items()}
    return {"row": trainer.state.log_history[0], "table": trainer.table | {"extra": extra}}


if __name__ == "__main__":
    refuse_to_pickle()
    folder = Path(sys.argv[1])
    steps = {name: step(folder / name, settings) for name, settings in json.loads(sys.argv[2]).items()}
    (folder / f"{process_rank()}.json").write_text(json.dumps({"logged": logged(), "steps": steps}))
    leave()
