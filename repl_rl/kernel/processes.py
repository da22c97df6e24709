"""Processes: waiting for one to end without polling or threads, finding its descendants, and killing them all.

A kernel that is started on this machine without a sandbox carries a mark in its environment, which its children
inherit even if they start a session of their own. Killing all processes with the mark ends them too. When the owner of
the kernels dies, SIGKILL included, the shell that removes its folder does so (`paths.Home`). Not covered: a process
that was given another environment and whose parent has ended.
"""

import asyncio
import contextlib
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

MARK = "REPL_RL_KERNEL"
"""The environment variable that holds the mark."""

INSIST = signal.SIGRTMAX
"""For our kernels, an interrupt that waits until a call in C returns that ignores SIGINT, such as `os.system`."""
_LONGEST_DEATH_S = 5.0
_READ_BYTES = 1 << 16
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TIMES = slice(11, 15)
"""In /proc/PID/stat after the name of the program: the times of the process and of children waited for."""
_IGNORED = 30
"""In the same: the signals that it ignores, one bit each."""
_FIELD = re.compile(r"^(\w+):[ \t]*(.*)$", re.MULTILINE)


async def readable(descriptor: int) -> None:
    """Wait until a descriptor can be read: a pidfd once its process has ended."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(descriptor, is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(descriptor)


async def exited(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child of this process; returns its exit status."""
    if process.poll() is None:
        pidfd = os.pidfd_open(process.pid)
        try:
            await readable(pidfd)
        finally:
            os.close(pidfd)
    return process.wait()


def pid_of(pidfd: int) -> int:
    """The process id of a pidfd's process, as this process sees it; -1 if it is gone."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines())
    return int(fields["Pid"])


def send_signal(pidfd: int, signum: int) -> None:
    """Send a signal to a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signum)


def tree(pid: int) -> Iterator[int]:
    """The ids of a process and of its descendants that still exist."""
    pending = [pid]
    while pending:
        member = pending.pop()
        yield member
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{member}/task"):
                children = Path(f"/proc/{member}/task/{task}/children").read_text()
                pending += map(int, children.split())


def processor_s(pid: int) -> float:
    """The processor time that a process and all its descendants have taken, those that have ended included.

    Infinite if it is gone, or if one of them ignores SIGCHLD: Linux then forgets what its children took.
    """
    ticks = 0
    is_known = False
    for member in tree(pid):
        with contextlib.suppress(OSError):
            _, _, after_name = read_proc(f"/proc/{member}/stat").rpartition(")")  # a name may have spaces and brackets
            fields = after_name.split()
            ticks += sum(map(int, fields[_TIMES]))
            is_known = True
            if int(fields[_IGNORED]) >> (signal.SIGCHLD - 1) & 1:
                return math.inf
    return ticks / _TICKS_PER_S if is_known else math.inf


def interrupt(pid: int) -> None:
    """SIGINT to a process and to its descendants in its process group, as from Ctrl-C at a terminal."""
    with contextlib.suppress(OSError):
        group = os.getpgid(pid)
        for member in tree(pid):
            with contextlib.suppress(OSError):
                if os.getpgid(member) == group:
                    os.kill(member, signal.SIGINT)


def kill_descendants(pid: int) -> None:
    """Kill all that a process has started, but not the process."""
    _, *descendants = tree(pid)
    _kill(descendants)


def read_proc(path: str) -> str:
    """The text of a file of /proc."""
    # `Path.read_text` takes two to three times as long for a short file, and a fork reads thirty.
    text = bytearray()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            text += chunk
    return text.decode(errors="replace")


def status_of(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status (`man 5 proc_pid_status`)."""
    return dict(_FIELD.findall(read_proc(f"/proc/{pid}/status")))


def children_of(pid: int) -> list[int]:
    """The children of a process that has one thread, the oldest first."""
    return list(map(int, read_proc(f"/proc/{pid}/task/{pid}/children").split()))


def kill_family(pids: Sequence[int]) -> None:
    """Kill processes that may be gone already, and the process group of the first."""
    _kill(pids)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pids[0], signal.SIGKILL)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_marked(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a child of ours, its descendants and all that carry `mark`; wait until the latter are gone."""
    deadline = time.monotonic() + _LONGEST_DEATH_S
    pending = _marked(mark)
    if process.poll() is None:
        pending.update(tree(process.pid))
    while pending and time.monotonic() < deadline:
        _kill(pending)
        time.sleep(0.005)
        pending = _marked(mark)


def _marked(mark: str) -> set[int]:
    entry = f"{MARK}={mark}\0".encode()
    pids = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # a process that is dead has no environment any more
            if entry in path.read_bytes():
                pids.add(int(path.parent.name))
    return pids
