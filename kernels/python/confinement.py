"""The walls of one forked session, which it puts up itself between its fork and its first cell.

In "bwrap" the fork server runs in a bubblewrap sandbox, with the capabilities to divide it further. A session gets
process, mount, IPC, network and user namespaces of its own; an empty /tmp, /dev/shm and /dev/pts; a /proc that shows
only its own processes; a user id that nothing else has (where the server is root); no capabilities, and no way to gain
any. In "sandlock" there are no namespaces: Landlock rules (by the package sandlock) let it read the system's files and
write one folder, and keep it from signalling and tracing other processes; it can't start processes. In both, a seccomp
filter refuses system calls that a session does not need (seccomp_filter.py). In "none" there are no walls.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal

import seccomp_filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Mount = tuple[bytes, bytes, bytes | None, int, bytes | None]
    """Source, target, kind, flags, options."""

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 0x4000, 1 << 18
_PROC = (b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | _MS_RDONLY, None)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 23, 24, 38
_NS_GET_PARENT = 0xB702
_CAPABILITY_VERSION_3, _MOST_CAPABILITIES = 0x20080522, 64
_UID_INSIDE = 1000
_NICENESS = 10
_OOM_SCORE = b"1000"
_MIB = 1 << 20
_FILES_PER_MIB = 256
_MOST_TERMINALS = 64

_libc = ctypes.CDLL(None, use_errno=True)


class Forks:
    """Forks in the server's process; in "bwrap" every child is the first process of a PID namespace of its own."""

    def __init__(self, walls: str) -> None:
        self._own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY) if walls == "bwrap" else None

    def fork(self) -> int:
        """As `os.fork`. Raises OSError."""
        if self._own_namespace is None:
            return os.fork()
        _check(_libc.unshare(_CLONE_NEWPID), "unshare")
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                _check(_libc.setns(self._own_namespace, _CLONE_NEWPID), "setns")
        return pid


class Walls:
    """What is the same for all sessions of a server, worked out before they are forked.

    `boot` is the server's record (fork_server.py).
    """

    def __init__(self, boot: dict[str, Any]) -> None:
        self._kind = boot["walls"]
        self._tmp_mb = boot["tmp_mb"]
        self._readable = boot["readable"]
        self._links = boot["links"]
        self._caches = boot.get("caches", {})
        self._rlimits = [(getattr(resource, name), limits) for name, limits in boot["rlimits"].items()]
        self._capabilities = _known_capabilities()
        self._filter: seccomp_filter.Filter | None = None
        if self._kind != "none":
            self._filter = seccomp_filter.Filter(
                may_fork=self._kind == "bwrap",
                may_share=boot["charged"],
                lists_interfaces=boot.get("lists_interfaces", False),
            )

    def enter(self, request: dict[str, Any], server_pid: int) -> tuple[list[int] | None, int | None]:
        """Confine this process for good.

        Returns the soft and the hard limit on its address space in bytes, or None; and what `Filter.install` returns,
        or None. `request` is the one for this session. Raises OSError where a wall can't be put up.
        """
        os.setsid()  # signals to a process group cross PID namespaces
        own_proc = os.open("/proc/self", os.O_RDONLY)  # the /proc that is mounted below is read-only
        _give_way(own_proc)
        _own_standard_input()
        if self._kind == "bwrap":
            _mount(self._tmp_mb)
        else:
            _settle_in(request["tmp"])
        for name, target in self._links.items():
            os.symlink(target, name)
        _go_first_when_memory_runs_out(own_proc)
        if request["uid"] is not None:
            os.setgroups([])
            os.setresgid(*[request["uid"]] * 3)
            os.setresuid(*[request["uid"]] * 3)
        for name, target in self._caches.items():
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            os.symlink(target, name)
        if self._kind == "bwrap":
            _own_user_namespace(own_proc)
        die_with_parent(server_pid)
        os.close(own_proc)
        if self._kind != "none":
            _drop_capabilities(self._capabilities)
        memory_bytes = _limit(self._rlimits)
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        if self._kind == "sandlock":
            _landlock(self._readable, [request["tmp"], "/dev/null"])
        listener = None if self._filter is None else self._filter.install()
        return memory_bytes, listener


def set_up_fork(pidfd: int, tmp_mb: int | None, report: int) -> None:
    """Give a session's fork of itself what its new namespaces lack: the user, a /proc, and folders of its own.

    It keeps the session's folders if `tmp_mb` is None. Writes "ok" to the descriptor `report` when all is there.
    Called in a process of the fork server's, which is of no use afterwards. Raises OSError.
    """
    folder = _folder_of(pidfd)
    os.setresuid(*[_user_of(folder)] * 3)  # to whom the session's user namespace belongs, with all that is in it
    user, processes, mounts = _namespaces(folder)
    above = fcntl.ioctl(user, _NS_GET_PARENT)  # from where Linux takes the maps
    _check(_libc.setns(above, _CLONE_NEWUSER), "setns")
    _write(folder, "uid_map", b"%d %d 1" % (_UID_INSIDE, _UID_INSIDE))
    _write(folder, "gid_map", b"%d %d 1" % (_UID_INSIDE, _UID_INSIDE))
    for namespace, kind in ((user, _CLONE_NEWUSER), (processes, _CLONE_NEWPID), (mounts, _CLONE_NEWNS)):
        _check(_libc.setns(namespace, kind), "setns")
    inside = os.fork()  # only a child is in the other's PID namespace, and /proc shows that of whoever mounts it
    if inside == 0:
        _mount_all(([] if tmp_mb is None else _folders(tmp_mb)) + [_PROC])
        os._exit(0)
    if os.waitpid(inside, 0)[1] != 0:
        raise OSError("its folders could not be mounted")
    os.write(report, b"ok")  # the fork goes on now, and must not meet that child, which has its user id


def rehearse() -> None:
    """Do what `set_up_fork` does first, with this process, so that the memory for it is there when it counts."""
    pidfd = os.pidfd_open(os.getpid())
    folder = _folder_of(pidfd)
    _user_of(folder)
    for descriptor in (*_namespaces(folder), folder, pidfd):
        os.close(descriptor)
    _folders(1)


def _folder_of(pidfd: int) -> int:
    """The folder in /proc of a process, open."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as info:
        pid = next(int(line.split()[1]) for line in info if line.startswith("Pid:"))
    return os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)


def _namespaces(folder: int) -> list[int]:
    """The user, PID and mount namespaces of a process, open."""
    return [os.open(f"ns/{name}", os.O_RDONLY, dir_fd=folder) for name in ("user", "pid", "mnt")]


def _user_of(folder: int) -> int:
    """The effective user id of a process, from its folder in /proc."""
    descriptor = os.open("status", os.O_RDONLY, dir_fd=folder)
    with open(descriptor, encoding="ascii", errors="replace") as status:
        return next(int(line.split()[2]) for line in status if line.startswith("Uid:"))


def die_with_parent(parent_pid: int) -> None:
    """Have Linux kill this process when the thread that started it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() not in (parent_pid, 0):  # 0 is a parent outside of the PID namespace
        os._exit(1)


def _landlock(readable: list[str], writable: list[str]) -> None:
    """Let this process use only these files, and signal and trace only itself."""
    import sandlock

    sandlock.confine(sandlock.Sandbox(fs_readable=readable, fs_writable=writable))


def _mount(tmp_mb: int) -> None:
    _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWNET), "unshare")
    _mount_all([(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), *_folders(tmp_mb), _PROC])
    os.chdir("/tmp")


def _folders(tmp_mb: int) -> list[Mount]:
    size = f"size={tmp_mb * _MIB},nr_inodes={tmp_mb * _FILES_PER_MIB},mode=1777".encode()
    terminals = f"newinstance,ptmxmode=0666,mode=620,max={_MOST_TERMINALS}".encode()
    return [
        (b"tmpfs", b"/tmp", b"tmpfs", _MS_NOSUID | _MS_NODEV, size),
        (b"tmpfs", b"/dev/shm", b"tmpfs", _MS_NOSUID | _MS_NODEV, size),
        (b"devpts", b"/dev/pts", b"devpts", _MS_NOSUID | _MS_NOEXEC, terminals),
    ]


def _mount_all(mounts: list[Mount]) -> None:
    for source, target, kind, flags, options in mounts:
        _check(_libc.mount(source, target, kind, ctypes.c_ulong(flags), options), f"mount {target.decode()}")


def _settle_in(tmp: str) -> None:
    os.environ.update(HOME=tmp, TMPDIR=tmp)
    os.chdir(tmp)


def _own_standard_input() -> None:
    """Replace the server's, because all processes that inherit an open file share its flags."""
    empty = os.open("/dev/null", os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)


def _go_first_when_memory_runs_out(own_proc: int) -> None:
    _write(own_proc, "oom_score_adj", _OOM_SCORE)


def _give_way(own_proc: int) -> None:
    """Lower the priority of what a model typed, so that a line that never ends does not hold up the others.

    Where the scheduler groups processes by session (autogroup), the group's own niceness counts, and this session's
    group is new. Root may always set it; for others Linux allows it ten times a second, so of many sessions some keep
    the default.
    """
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        _write(own_proc, "autogroup", str(_NICENESS).encode())


def _write(folder: int, name: str, text: bytes) -> None:
    descriptor = os.open(name, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)


def _own_user_namespace(own_proc: int) -> None:
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")  # or it could not write its own maps
    _check(_libc.unshare(_CLONE_NEWUSER), "unshare user")
    for name, text in (
        ("setgroups", b"deny"),
        ("uid_map", b"%d %d 1" % (_UID_INSIDE, uid)),
        ("gid_map", b"%d %d 1" % (_UID_INSIDE, gid)),
    ):
        _write(own_proc, name, text)


def _known_capabilities() -> list[int]:
    """The numbers of all capabilities that this Linux knows."""
    return [number for number in range(_MOST_CAPABILITIES) if _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0]


def _drop_capabilities(capabilities: list[int]) -> None:
    for capability in capabilities:
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # there is none to drop
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _limit(rlimits: list[tuple[int, list[int]]]) -> list[int] | None:
    """Set the limits; returns that on RLIMIT_AS, which counts from what this process has mapped already."""
    memory_bytes = None
    for which, limits in rlimits:
        if which == resource.RLIMIT_AS:
            mapped = _mapped_bytes()
            limits = memory_bytes = [mapped + limit for limit in limits]
        resource.setrlimit(which, tuple(limits))  # type: ignore[arg-type]  # there are two
    return memory_bytes


def _mapped_bytes() -> int:
    descriptor = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.read(descriptor, 100).split()[0]) * resource.getpagesize()
    finally:
        os.close(descriptor)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
