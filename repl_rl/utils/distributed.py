"""One run in several processes, as `accelerate launch` or torchrun start them: the main one writes, all work.

Rank and count are read from the environment (RANK, WORLD_SIZE), so a run in one process loads nothing for this. All
processes have to call `from_main`, `share_of_main`, `gather`, `gather_to_main`, `any_of_all` and, at the end, `leave`
in step.

Not covered: processes that share no file system.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

Value = TypeVar("Value")

WAIT_S = 7200
"""How long a process waits for the others. One whose sessions are short waits for all that the others wait for: long
sessions, held-out problems, servers that come back. torch's own limits are 10 minutes on GPUs and 30 on CPUs."""


def process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_rank() -> int:
    return int(os.environ.get("RANK", "0"))


def is_main_process() -> bool:
    return process_rank() == 0


def from_main(make: Callable[[], Value]) -> Value:
    """What `make` returns, or raises, in the main process: in all of them."""
    return share_of_main(lambda: [make()] * process_count())


def share_of_main(make: Callable[[], Sequence[Value]], team: int | None = None) -> Value:
    """This process's value, of those that `make` returns in the main process, one for each process. What `make` raises
    there is raised in all of them. With `team`, processes form teams of that many, each with its first as the main one.
    """
    team = team or process_count()
    if team == 1:
        return make()[0]
    import torch.distributed

    group = _team(team)
    is_first = process_rank() % team == 0
    shares: list[Value | Exception] = []
    if is_first:
        try:
            shares.extend(make())
        except Exception as error:  # noqa: BLE001 - the others wait for a share, and would wait forever
            shares = [error] * team
    output: list[Any] = [None]  # scatter puts this process's share into it
    torch.distributed.scatter_object_list(output, shares or None, group=group, group_src=0)
    share = output[0]
    if isinstance(share, Exception):
        raise share
    return share  # type: ignore[no-any-return]


def gather(values: Sequence[Value], team: int | None = None) -> list[Value]:
    """The values of all processes, or of this one's team of so many, by rank.

    Each process gets all of them, so they should be numbers. What the main process alone needs is for `gather_to_main`.
    """
    team = team or process_count()
    if team == 1:
        return list(values)
    import torch.distributed

    values_by_rank: list[Any] = [None] * team
    torch.distributed.all_gather_object(values_by_rank, list(values), group=_team(team))
    return [value for values in values_by_rank for value in values]


def gather_to_main(values: Sequence[Value], team: int | None = None) -> list[Value]:
    """As `gather`, in the main process, or the first of the team, whose own values stay in it. The others get none."""
    team = team or process_count()
    if team == 1:
        return list(values)
    import torch.distributed

    group = _team(team)
    if process_rank() % team:
        torch.distributed.gather_object(list(values), group=group, group_dst=0)
        return []
    values_by_rank: list[Any] = [None] * team
    torch.distributed.gather_object([], values_by_rank, group=group, group_dst=0)
    return list(values) + [value for values_of_rank in values_by_rank[1:] for value in values_of_rank]


@cache
def _team(size: int) -> Any:
    """The process group of this process's team of `size`. All processes make the first call of each size together."""
    import torch.distributed

    join()
    if size == process_count():
        return torch.distributed.group.WORLD
    group, _ = torch.distributed.new_subgroups(size, backend="gloo")
    return group


def any_of_all(flag: bool) -> bool:
    """Whether `flag` is true in any process."""
    return any(gather([flag]))


def leave() -> None:
    """Leave the process group, all together: a process that just exits may break a connection that is still in use."""
    if process_count() == 1:
        return
    from accelerate import PartialState

    join()
    PartialState().wait_for_everyone()
    # A group that is still referred to would end with the interpreter, when its threads may be gone already.
    _team.cache_clear()
    PartialState().destroy_process_group()


def join(wait_s: float = WAIT_S) -> None:
    """Find the other processes; the first call decides how long this one waits for them, and further ones do nothing.

    By default, accelerate would not look for any on a CPU.
    """
    if process_count() == 1:
        return
    import torch
    from accelerate import PartialState

    PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(seconds=wait_s))
