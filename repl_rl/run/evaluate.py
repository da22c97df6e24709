"""Held-out problems, one rollout each: how often the policy solves them."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from repl_rl.config import Config, SeededSampling
from repl_rl.errors import ConfigError
from repl_rl.rewards import RewardTable
from repl_rl.rollout import OnEnd, RolloutBatch, RolloutService, is_solved, prompts, rates_of, score
from repl_rl.tasks import grade
from repl_rl.trainer.timeline import Timeline
from repl_rl.trajectory import Task, Trajectory
from repl_rl.utils.distributed import gather, gather_to_main, process_count, process_rank


def longest_prompt(config: Config, tasks: Sequence[Task], whose: str = "") -> int:
    """Tokens of the longest prompt. Raises ConfigError, with `whose` in front, if it leaves no room in the context."""
    longest = max(len(prompt.ids) for prompt in prompts(config, tasks))
    context = config.engine.context_tokens
    if longest >= context:
        raise ConfigError(
            f"{whose}the longest prompt has {longest} tokens and engine.context_tokens is {context}; raise it, or "
            "shorten the prompt (dialect.examples, dialect.system)"
        )
    return longest


def evaluate(
    service: RolloutService,
    tasks: Sequence[Task],
    table: RewardTable,
    sampling: SeededSampling,
    step: int = 0,
    on_end: OnEnd = lambda index, trajectory: None,
    timeline: Timeline | None = None,
) -> tuple[dict[str, Any], list[Trajectory]]:
    """Roll out every task once and grade it. `step` is for schedules. `timeline` is told what is done.

    Returns `solve_rate`, `problems`, `seconds`, and both of the first by family, as in a row of `metrics.jsonl`; and
    the trajectories. Problems whose session was lost are neither solved nor not solved: they are in none of these
    figures, and `aborted` counts them. Raises KernelError if all were.

    With several processes, each rolls out a share of the tasks, exactly as a single process would, and gets the
    numbers of all. The main process gets the trajectories of all, and the others none. `on_end` is told of each
    trajectory of this process as it ends, with the index of its task.
    """
    started = time.perf_counter()
    rank = process_rank()
    first = len(tasks) * rank // process_count()
    end = len(tasks) * (rank + 1) // process_count()
    share = tasks[first:end]
    # Counted from `first` on, so that a task's random numbers don't depend on the number of processes.
    share_sampling = sampling.model_copy(update={"first": first})

    def on_end_in_share(index: int, trajectory: Trajectory) -> None:
        on_end(first + index, trajectory)

    timeline = timeline or Timeline()
    with timeline.phase("sessions", sessions=len(share)):
        batch = RolloutBatch(tuple(share), share_sampling, keeps_waits=timeline.is_on)
        trajectories = service.roll_out(batch, on_end_in_share)
    with timeline.phase("grade", sessions=len(share)):
        scored = [item.trajectory for item in score(share, trajectories, grade, table, step)]
    timeline.sessions(scored)
    solved = gather([is_solved(trajectory) for trajectory in scored])
    overall, families = rates_of(tasks, solved)
    graded = [task for task, is_right in zip(tasks, solved, strict=True) if is_right is not None]
    numbers = {
        "seconds": time.perf_counter() - started,
        "solve_rate": overall,
        "problems": len(graded),
        "aborted": len(tasks) - len(graded),
        "families": families,
        "family_problems": dict(Counter(task.family for task in graded)),
    }
    return numbers, gather_to_main(scored)
