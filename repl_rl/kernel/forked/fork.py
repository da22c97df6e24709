"""Forks of a live session: the host's side.

Linux forks a process into its own PID namespace or one inside of it, so a session can see all its forks, and can
signal and trace them. Therefore it is stopped for good once it has been forked, and the last of the forks goes on in
its name. Forks don't see each other.

    session, stopped for good
    ├── a fork, with copies of its files: a session of its own
    └── the fork that goes on as the session, with its files

A session may make the namespaces of a fork only when the host says so, each time (`Listener`). Its own code makes the
fork and moves it in (kernels/python/repl_fork.py), and a model may have changed that code. So `still_shared` checks,
from outside and while the session and the fork are stopped, that the fork is as separate as any other session.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import re
import signal
import socket
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from repl_rl.errors import ForkRefusedError, KernelDiedError, KernelError
from repl_rl.kernel.cgroups import SessionGroup
from repl_rl.kernel.forked.channel import PrivateChannel
from repl_rl.kernel.forked.server import ForkServer
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.output import HeadAndTail, OutputPipe
from repl_rl.kernel.processes import children_of, pid_of, read_proc, send_signal, status_of

_NOTIF_RECV = 0xC0502100
_NOTIF_SEND = 0xC0182101
_NOTIF_BYTES = 80
_GO_ON = 1
_REASON_CHARS = 500
_KCMP_NUMBERS = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE = 0
DEEPEST = 28
"""Levels of PID namespaces; Linux ends at 32."""
MOST_AT_ONCE = 100
"""Each needs two descriptors in one message, and Linux takes 253."""
_NICENESS = "10"
_STOP_S = 30.0
"""A stopped process has to run once more before it stands, and gets little of a busy machine."""
_SOON_S = 0.002
_BRIEFLY_S = 0.00005
_POLL_S = 0.001
_MAPPED = re.compile(r"^\S+ (\S{4}) \S+ (?!00:00)(\S+) \d+ *(.*)$", re.MULTILINE)
"""Mappings of files: access, device, name. Private ones too, which show what is written to the file until they are
written to themselves."""
_NO_FILE = "00:01"
"""The device of shared memory that has no file."""
_APART = ("user", "pid", "mnt", "ipc")
"""Namespaces that each fork has to have of its own; one that does not go on as the session a network as well."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.argtypes = [ctypes.c_long] * 6
_libc.syscall.restype = ctypes.c_long


class Listener:
    """Linux asks here whether a session may be cloned into new namespaces. Shared by a session and all its forks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._users = 1
        self.turn = asyncio.Lock()
        """To be held for a fork."""

    @contextlib.contextmanager
    def allowing(self, pid: int, count: int) -> Iterator[None]:
        """Inside, this process may be cloned so, `count` times. Other calls that come in or wait are refused."""
        loop = asyncio.get_running_loop()
        left = count

        def answer() -> None:
            nonlocal left
            request = bytearray(_NOTIF_BYTES)
            try:
                fcntl.ioctl(self._descriptor, _NOTIF_RECV, request)
                number, caller = struct.unpack_from("=QI", request)
                if caller == pid and left > 0:
                    left -= 1
                    reply = struct.pack("=QqiI", number, 0, 0, _GO_ON)
                else:
                    reply = struct.pack("=QqiI", number, 0, -errno.EPERM, 0)
                fcntl.ioctl(self._descriptor, _NOTIF_SEND, reply)
            except OSError:  # whoever asked is gone
                pass

        loop.add_reader(self._descriptor, answer)
        try:
            yield
        finally:
            loop.remove_reader(self._descriptor)

    def share(self) -> Listener:
        self._users += 1
        return self

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            os.close(self._descriptor)


@dataclass(eq=False)
class Ancestor:
    """A session that was forked: stopped, and alive as long as one of its forks is, because they die with it."""

    pidfd: int
    held_mb: float
    """Its memory when it was stopped; its forks share this, and each counts a part of it as its own."""
    group: SessionGroup | None = None
    """The group that this memory is charged to, and that of the fork that goes on as the session."""
    descendants: set[object] = field(default_factory=set)

    def part_mb(self) -> float:
        return self.held_mb / max(1, len(self.descendants))

    def leave(self, descendant: object) -> None:
        self.descendants.discard(descendant)
        if not self.descendants and self.pidfd >= 0:
            send_signal(self.pidfd, signal.SIGKILL)
            os.close(self.pidfd)
            self.pidfd = -1


class Child:
    """A session's process, also before it has started; whoever takes it takes its channel, output and pidfd."""

    def __init__(self, limits: Limits) -> None:
        self.output = OutputPipe(HeadAndTail(limits.output_bytes), limits.read_mb * (1 << 20))
        our_end, self._end = socket.socketpair()
        self.channel = PrivateChannel(our_end)
        self.pid = -1
        self.pidfd = -1
        self.inodes = tuple(os.fstat(descriptor).st_ino for descriptor in self.descriptors())

    def descriptors(self) -> tuple[int, int]:
        """Its ends of its channel and of its output, until it has started."""
        return self._end.fileno(), self.output.write_fd

    def started(self, pidfd: int) -> None:
        self.pidfd = pidfd
        self.pid = pid_of(pidfd)
        self.close_ends()

    def abandon(self) -> None:
        self.close_ends()
        self.channel.close()
        self.output.close()
        if self.pidfd >= 0:
            send_signal(self.pidfd, signal.SIGKILL)
            os.close(self.pidfd)

    def close_ends(self) -> None:
        self._end.close()
        self.output.close_write_end()

    def printed(self) -> str:
        text, _omitted_bytes = self.output.take()
        return text.strip()[-_REASON_CHARS:] or "nothing"


async def fork_session(
    children: Sequence[Child],
    server: ForkServer,
    pid: int,
    pidfd: int,
    channel: PrivateChannel,
    listener: Listener,
    *,
    reseed: bool,
    patience_s: float,
) -> None:
    """Have a session fork itself, move its children in, and stop it and them, each as soon as it has done its part.

    With `reseed`, all children but the last get new random states. Raises ForkRefusedError with the reason,
    KernelDiedError if the session dies of it or does not do as it is told, and KernelError if one doesn't stop. The
    caller then abandons the children.
    """
    before = children_of(pid)

    def forks() -> list[int]:
        return [child for child in children_of(pid) if child not in before]

    async def fork() -> None:
        ends: list[int] = []
        for child in children:
            ends += child.descriptors()
        with listener.allowing(pid, len(children)):
            reply = await channel.ask({"fork": len(children)}, patience_s, ends)
        for child in children:
            child.close_ends()
        if reply is None:
            raise KernelDiedError("the session ended, or did not answer in time, as it was to be forked")
        if reply.get("refused") is not None:
            raise ForkRefusedError(f"the session can't be forked: {str(reply['refused'])[:_REASON_CHARS]}")
        for child in children[len(forks()) :]:
            child.channel.close()  # the session is done, so nobody will ever speak there: waiting for it is in vain
        send_signal(pidfd, signal.SIGSTOP)

    async def move_in(number: int, child: Child) -> None:
        """Give a fork its folders, and tell it to stop. All but the last get copies of the session's files."""
        if await child.channel.reply(patience_s) is None:
            raise ForkRefusedError(f"a fork of the session ended as it began; it printed: {child.printed()}")
        pids = forks()
        if len(pids) <= number:
            raise KernelDiedError("a fork of the session that does not exist said that it was ready")
        child.pid = pids[number]
        child.pidfd = os.pidfd_open(child.pid)
        copies = child is not children[-1]
        await server.set_up_fork(child.pidfd, folders=copies)
        request = {"settle": {"copies": copies, "reseed": reseed and copies}}
        if await child.channel.ask(request, patience_s) is None:
            raise ForkRefusedError(f"a fork of the session ended as it moved in; it printed: {child.printed()}")
        send_signal(child.pidfd, signal.SIGSTOP)
        with contextlib.suppress(OSError):  # as every session does for itself (kernels/python/confinement.py)
            Path(f"/proc/{child.pid}/autogroup").write_text(_NICENESS)

    # Children move in while the session makes the next ones. The last of them has the least to do.
    moves = [move_in(number, child) for number, child in enumerate(children)]
    outcomes = await asyncio.gather(fork(), *moves, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    count = len(forks())
    if count != len(children):
        raise KernelDiedError(f"the session was to fork itself {len(children)} times, and did so {count} times")
    pids = [pid]
    pids += [child.pid for child in children]
    await _stopped(pids)


def kill_children(pid: int, keep: Sequence[int]) -> None:
    """Kill the children of a process, which may make more of them, but for `keep`."""
    for child in set(children_of(pid)) - set(keep):
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(child)
            if child in children_of(pid):  # and not another process that has its number now
                send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


async def _stopped(pids: Sequence[int]) -> None:
    """Wait until processes that were told to stop have stopped. Raises KernelError if one doesn't."""
    began = time.monotonic()
    for pid in pids:
        while _state(pid) != "T":
            waited_s = time.monotonic() - began
            if waited_s > _STOP_S:
                raise KernelError(f"a session that was to be forked could not be stopped within {_STOP_S:g} s")
            if waited_s < _SOON_S:  # it takes a tenth of a millisecond, and the loop would take one
                time.sleep(_BRIEFLY_S)
            else:
                await asyncio.sleep(_POLL_S)


def still_shared(children: Sequence[Child], pid: int) -> str | None:
    """What a session's forks have in common, or may do, beyond what strangers have and may; or None.

    All of them and the session are stopped. The last one may share files with the session, which does not go on.
    """
    if sorted(children_of(pid)) != sorted(child.pid for child in children) or _threads(pid) != 1:
        return "further processes"
    stored = {os.stat(f"/proc/{pid}/root/{folder}").st_dev for folder in ("tmp", "dev/shm")}
    open_to_all = {os.stat(f"/proc/{pid}/{folder}").st_dev for folder in ("root/proc", "root/dev/pts", "ns/net")}
    namespaces = {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in _APART}
    network = {"net": os.readlink(f"/proc/{pid}/ns/net")}
    for number, child in enumerate(children):
        is_last = child is children[-1]
        if is_last:
            devices = open_to_all
            difference = _may_more(child.pid, namespaces) or _shared_descriptor(child, devices, [])
        else:
            devices = open_to_all | stored
            others = [pid]
            others += [other.pid for other in children[number + 1 :]]  # those before have been compared with this one
            difference = _may_more(child.pid, namespaces | network) or _shared_descriptor(child, devices, others)
        if difference is None and os.stat(f"/proc/{child.pid}/cwd").st_dev in devices:
            difference = "a working folder"
        if difference is None and not is_last:
            difference = _shared_memory(child.pid, devices)
        if difference is not None:
            return difference
    return None


def _may_more(pid: int, namespaces: Mapping[str, str]) -> str | None:
    """What a fork may do that a fresh session may not. `namespaces` are the forked session's that it may not be in."""
    status = status_of(pid)
    for name, namespace in namespaces.items():
        if os.readlink(f"/proc/{pid}/ns/{name}") == namespace:
            return "a namespace"
    if children_of(pid) or _threads(pid) != 1:
        return "further processes"
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if int(status[name], 16) != 0:
            return "capabilities"
    if (status["NoNewPrivs"], status["Seccomp"]) != ("1", "2"):
        return "system calls that are refused to others"
    _, _, group, session, *_ = _stat(pid)
    if int(group) != pid or int(session) != pid:
        return "a process group"
    return None


def _shared_descriptor(child: Child, devices: set[int], others: Sequence[int]) -> str | None:
    """A descriptor that isn't its own: of another kind, on one of `devices`, or also open in `others`."""
    folder = f"/proc/{child.pid}/fd"
    channel_inode, pipe_inode = child.inodes
    pipe = f"pipe:[{pipe_inode}]"
    expected = {1: pipe, 2: pipe, 3: f"socket:[{channel_inode}]"}
    held_by_others: list[tuple[int, int]] = []
    for other in others:
        for name in os.listdir(f"/proc/{other}/fd"):
            held_by_others.append((other, int(name)))
    for descriptor in map(int, os.listdir(folder)):
        status = os.stat(f"{folder}/{descriptor}")
        if descriptor in expected:
            is_own = os.readlink(f"{folder}/{descriptor}") == expected[descriptor]
        else:
            is_own = (
                stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR)
                and status.st_dev not in devices
                and not any(_is_same_file(child.pid, other, descriptor, held) for other, held in held_by_others)
            )
        if not is_own:
            return f"descriptor {descriptor}"
    return None


def _is_same_file(pid: int, other: int, descriptor: int, others_descriptor: int) -> bool:
    """Whether descriptors of two processes are one open file, with one offset."""
    ctypes.set_errno(0)
    number = _KCMP_NUMBERS[platform.machine()]
    order: int = _libc.syscall(number, pid, other, _KCMP_FILE, descriptor, others_descriptor)
    return order == 0 or (order < 0 and ctypes.get_errno() != errno.EBADF)


def _shared_memory(pid: int, devices: set[int]) -> str | None:
    numbers = {f"{os.major(device):02x}:{os.minor(device):02x}" for device in devices}
    numbers.add(_NO_FILE)
    for access, device, name in _MAPPED.findall(read_proc(f"/proc/{pid}/maps")):
        if device in numbers or (access.endswith("s") and "w" in access):
            return f"memory ({name or 'without a file'})"
    return None


def _threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def _state(pid: int) -> str:
    """The state of a process as one letter: T for one that is stopped."""
    state, *_ = _stat(pid)
    return state


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name of the program: state, parent, group, session, ..."""
    _, _, after_name = read_proc(f"/proc/{pid}/stat").rpartition(")")
    return after_name.split()
