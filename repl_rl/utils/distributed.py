"""One run in several processes, as `accelerate launch` or torchrun start them: the main one writes, all work.

Rank and count are read from the environment (RANK, WORLD_SIZE), so a run in one process loads nothing for this. All
processes have to call `from_main`, `share_of_main`, `gather`, `any_of_all` and, at the end, `leave` in step.

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
    """Of the values that `make` returns in the main process, one for each process, this one's. What it raises there is
    raised in all of them. In each team of so many processes, the first one is what the main one is to all."""
    team = team or process_count()
    if team == 1:
        return make()[0]
    import torch.distributed

    group, place = _team(team), process_rank() % team
    shares: list[Value | Exception] = []
    if place == 0:
        try:
            shares.extend(make())
        except Exception as error:  # noqa: BLE001 - the others wait for what comes
            shares = [error] * team
    received: list[Any] = [None]
    torch.distributed.scatter_object_list(received, shares or None, group=group, group_src=0)
    if isinstance(received[0], Exception):
        raise received[0]
    return received[0]  # type: ignore[no-any-return]


def gather(values: Sequence[Value], team: int | None = None) -> list[Value]:
    """The values of all processes, or of this one's team of so many, by rank."""
    team = team or process_count()
    if team == 1:
        return list(values)
    import torch.distributed

    received: list[Any] = [None] * team
    torch.distributed.all_gather_object(received, list(values), group=_team(team))
    return [value for each in received for value in each]


@cache
def _team(size: int) -> Any:
    """The process group of this process's team of so many; the first call is one that all processes make."""
    import torch.distributed

    join()
    if size == process_count():
        return torch.distributed.group.WORLD
    return torch.distributed.new_subgroups(size, backend="gloo")[0]


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
