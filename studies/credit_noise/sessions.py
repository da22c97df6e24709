"""The groups of sessions that gradients are taken of: two of each problem, as training samples them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from repl_rl.config import Config
from repl_rl.models import resolve_model
from repl_rl.rollout import open_service, reward_table, score
from repl_rl.tasks import grade, load_tasks
from repl_rl.trajectory import Task, Trajectory, read_jsonl, write_jsonl
from studies.credit_noise.settings import GROUPS, NoiseSettings

_OTHER_SEED = 1000
"""Problems are those that training would take if its seed were so much more."""


def sessions_of(settings: NoiseSettings, say: Callable[[str], None]) -> list[list[list[Trajectory]]]:
    """By problem, then by group, with the rewards of the settings. Those that the folder lacks are rolled out and
    appended to its file, all of a few problems at a time. Raises what loading a model and its kernels raises."""
    config, tasks = settings.loaded, tasks_of(settings)
    size = GROUPS * config.train.group_size
    kept = list(read_jsonl(settings.sessions)) if settings.sessions.is_file() else []
    kept = kept[: len(kept) - len(kept) % size]
    if len(kept) < size * len(tasks):
        write_jsonl(settings.sessions, kept)
        _roll_out(settings, tasks, len(kept) // size, say)
        kept = list(read_jsonl(settings.sessions))
    repeated = [task for task in tasks for _ in range(size)]
    scored = score(repeated, kept[: len(repeated)], grade, reward_table(config.rewards, config.credit))
    of_problems = _by(size, [each.trajectory for each in scored])
    return [list(_by(config.train.group_size, sessions)) for sessions in of_problems]


def tasks_of(settings: NoiseSettings) -> list[Task]:
    """The problems, in their order."""
    config, wanted = settings.loaded, settings.first + settings.problems
    return load_tasks(config.tasks, "train", config.seed + _OTHER_SEED, wanted)[settings.first :]


def _roll_out(settings: NoiseSettings, tasks: Sequence[Task], done: int, say: Callable[[str], None]) -> None:
    config = policy_of(settings)
    size = GROUPS * config.train.group_size
    at_once = max(1, config.kernel.size // size)
    with open_service(config) as service:
        while done < len(tasks):
            some = [task for task in tasks[done : done + at_once] for _ in range(size)]
            sampling = config.sampling.seeded(f"{config.seed}/noise/{settings.first + done}")
            write_jsonl(settings.sessions, service.generate(some, sampling), append=True)
            done += len(some) // size
            say(f"sessions of {done} of {len(tasks)} problems")


def policy_of(settings: NoiseSettings) -> Config:
    """The config with the policy as its model: whole weights, with the adapter merged into them, for the engine."""
    config = settings.loaded
    if settings.adapter is None:
        return config
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = settings.folder / "policy"
    if not (folder / "config.json").is_file():
        base, new = resolve_model(config.model.path), folder.with_suffix(".new")
        whole: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(settings.adapter))
        whole.merge_and_unload().save_pretrained(new)
        AutoTokenizer.from_pretrained(base).save_pretrained(new)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    model = config.model.model_copy(update={"path": str(folder.resolve())})
    return config.model_copy(update={"model": model})


def _by(size: int, items: Sequence[Trajectory]) -> Iterator[list[Trajectory]]:
    return (list(items[start : start + size]) for start in range(0, len(items), size))
