"""Forks of a live session: the session's side.

The session clones itself between two lines, into new namespaces, which the fork server then sets up (confinement.py).
The last clone goes on as the session, with its files. Each other one copies the files of /tmp and /dev/shm and opens
again what the session had open. All take a channel and an output of their own, and give up what the new
namespaces gave them. The host lets Linux make the namespaces, once for each, and then looks whether one kept
anything of the session's (repl_rl/kernel/forked/fork.py): this code runs in the same process as what a model typed, and
is not relied upon.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import re
import shutil
import signal
import stat
import sys

import seccomp_filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType
    from typing import Any, NoReturn

    Handler = Callable[[int, FrameType | None], Any] | int | None
    """As `signal.signal` takes it and returns it."""

_CAPABILITY_VERSION_3, _MOST_CAPABILITIES, _PR_CAPBSET_DROP = 0x20080522, 64, 24
_MIB = 1 << 20
_MOST_BYTES, _MOST_ENTRIES = 16 * _MIB, 2_000
"""Of the files in /tmp and in /dev/shm, each."""
_FOLDERS = ("/tmp", "/dev/shm")
_REASON_CHARS = 500
_OWN_DESCRIPTORS = 4
"""Standard input, two outputs, and the channel."""
_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | os.O_SYNC | os.O_NOATIME
_MAPPED = re.compile(r"^\S+ (\S{4}) \S+ (?!00:00)(\S+) \d+ *(.*)$", re.MULTILINE)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_python = ctypes.PyDLL(None, use_errno=True)  # calls keep the interpreter's lock
_python.syscall.argtypes = [ctypes.c_long] * 6
_python.syscall.restype = ctypes.c_long
_chance = random._inst
_forks: set[int] = set()
"""Process ids of this session's own forks."""
_at_childs_end: list[Handler] = []
"""What the session does with SIGCHLD otherwise, while Linux reaps its children."""


def objection(for_fork: Collection[int] = ()) -> str | None:
    """Why this session can't be forked exactly, or None. `for_fork` are descriptors that the fork gets."""
    return objection_at_fork(for_fork, _memory)


def objection_at_fork(for_fork: Collection[int], *further: Callable[[], str | None]) -> str | None:
    """`objection` without a look at the memory, where the host looks after the fork."""
    looks = (_threads, _processes, _timers, lambda: _descriptors(for_fork), _files, *further)
    try:
        return next((reason for look in looks if (reason := look()) is not None), None)
    except BaseException as error:  # noqa: BLE001 - what it holds, or has changed, may keep this from looking
        return told(error)


def told(error: BaseException) -> str:
    """Why this session can't be forked: what was raised when that was tried."""
    return f"what it holds can't be looked through or copied ({type(error).__name__}: {error})"[:_REASON_CHARS]


def clone(is_last: bool = False) -> int:
    """As `os.fork`, into new namespaces; the random state of Python's own generator stays. Raises OSError.

    The last fork, which goes on as the session, keeps the session's network.
    """
    chance = random.Random.getstate(_chance)
    if not _at_childs_end:
        _at_childs_end.append(signal.signal(signal.SIGCHLD, signal.SIG_IGN) or signal.SIG_DFL)
    _python.PyOS_BeforeFork()
    # As this process, the new one is the first of a PID namespace, so what libc remembers of its number holds there.
    flags = seccomp_filter.SUCCESSOR_FLAGS if is_last else seccomp_filter.FORK_FLAGS
    pid: int = _python.syscall(seccomp_filter.clone_number(), flags, 0, 0, 0, 0)
    number = ctypes.get_errno()
    (_python.PyOS_AfterFork_Child if pid == 0 else _python.PyOS_AfterFork_Parent)()
    if pid < 0:
        raise OSError(number, os.strerror(number))
    if pid == 0:
        random.Random.setstate(_chance, chance)
        _forks.clear()
        go_on()
    else:
        _forks.add(pid)
    return pid


def go_on() -> None:
    """As before the last forks: in one of them, or in the session if nothing came of them, and they were killed."""
    while _forks:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(_forks.pop(), 0)  # until Linux has reaped it
    while _at_childs_end:
        signal.signal(signal.SIGCHLD, _at_childs_end.pop())


class OpenFiles:
    """A session's files, of which a fork needs its own. To be made before new folders cover the old ones."""

    def __init__(self) -> None:
        self._folders = {path: os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in _FOLDERS}
        self._cwd = os.getcwd()
        self._open = [
            (descriptor, os.readlink(f"/proc/self/fd/{descriptor}"), os.get_inheritable(descriptor))
            for descriptor in _open_descriptors()
            if descriptor >= _OWN_DESCRIPTORS and descriptor not in self._folders.values()
        ]

    def copy(self) -> None:
        """Copy the files, and open again what was open. Raises OSError."""
        for path, folder in self._folders.items():
            _copy(folder, path)
        for descriptor, path, inheritable in self._open:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & _FLAGS
            again = os.open(path, flags | os.O_CLOEXEC)
            if stat.S_ISREG(os.fstat(again).st_mode):
                os.lseek(again, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(again, descriptor, inheritable=inheritable)
            os.close(again)
        empty = os.open("/dev/null", os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        os.chdir(self._cwd)

    def close(self) -> None:
        """Close the folders that were held open for the copy."""
        for folder in self._folders.values():
            os.close(folder)


def separate() -> None:
    """Leave the session's process group, and give up the capabilities that new namespaces gave. Raises OSError."""
    os.setsid()
    for capability in range(_MOST_CAPABILITIES):
        _python.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if _python.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


def reseed() -> None:
    """Seed the random generators of Python and of packages anew."""
    random.seed()
    for name in ("numpy.random", "sympy.core.random"):
        if name in sys.modules:
            sys.modules[name].seed()


def _threads() -> str | None:
    count = len(os.listdir("/proc/self/task"))
    return None if count == 1 else f"it has {count} threads, and a fork would copy one of them"


def _processes() -> str | None:
    with open("/proc/self/task/1/children", encoding="ascii") as children:  # orphans become those of process 1
        there = set(map(int, children.read().split())) - _forks
    return None if not there else f"it has started processes, of which {len(there)} are there; wait for them first"


def _timers() -> str | None:
    if any(signal.getitimer(which)[0] for which in _TIMERS):
        return "a timer of its own runs (signal.alarm, signal.setitimer), which a fork would not copy"
    return None


def _open_descriptors() -> list[int]:
    names = os.listdir("/proc/self/fd")
    return [number for number in map(int, names) if _is_open(number)]  # that of the listing itself is closed by now


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _descriptors(for_fork: Collection[int]) -> str | None:
    for descriptor in _open_descriptors():
        if descriptor < _OWN_DESCRIPTORS or descriptor in for_fork:
            continue
        path, status = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
        what = f"it holds {path} open (descriptor {descriptor})"
        if stat.S_IFMT(status.st_mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR):
            return f"{what}; a fork takes files and folders only"
        try:
            there = os.stat(path)
        except OSError:
            return f"{what}, and the file was deleted"
        if not os.path.samestat(there, status):
            return f"{what}, and another file has that name now"
        if path.startswith(("/dev/pts", "/proc")):
            return f"{what}, which can't be copied"
    return None


def _memory() -> str | None:
    """A mapping of a file that can change would be shared with the fork, even a private one until it is written to."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        mapped = _MAPPED.findall(maps.read())
    for access, device, name in mapped:
        if (access.endswith("s") and "w" in access) or device == "00:01" or name.startswith(_FOLDERS):
            return f"it shares memory ({name or 'without a file'}), and its fork would share it too"
    return None


def _files() -> str | None:
    for folder in _FOLDERS:
        entries, size_bytes = 0, 0
        for parent, folders, files in os.walk(folder, onerror=_refuse):
            entries += len(folders) + len(files)
            if entries > _MOST_ENTRIES:
                return f"its {folder} has more than {_MOST_ENTRIES} entries, and a fork would copy them all"
            for name in (*folders, *files):
                path = os.path.join(parent, name)
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    size_bytes += status.st_size
                elif stat.S_IFMT(status.st_mode) not in (stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO):
                    return f"{path} is neither a file nor a folder, and can't be copied"
        if size_bytes > _MOST_BYTES:
            return f"its {folder} holds {size_bytes / _MIB:.0f} MiB, and a fork copies {_MOST_BYTES // _MIB} at most"
    return None


def _refuse(error: OSError) -> NoReturn:
    raise error


def _copy(source: int, target: str) -> None:
    """Copy what a folder holds into another: hard links, modes and times too. `source` is an open folder."""
    root = f"/proc/self/fd/{source}"
    copies: dict[tuple[int, int], str] = {}
    folders: list[tuple[str, str]] = []
    for parent, names, files in os.walk(root):
        copied_parent = os.path.join(target, os.path.relpath(parent, root))
        folders.append((parent, copied_parent))
        links = []
        for name in names:
            if os.path.islink(os.path.join(parent, name)):
                links.append(name)
            else:
                os.mkdir(os.path.join(copied_parent, name))
        for name in files + links:
            old = os.path.join(parent, name)
            new = os.path.join(copied_parent, name)
            status = os.lstat(old)
            first_copy = copies.setdefault((status.st_dev, status.st_ino), new)
            if first_copy != new:
                os.link(first_copy, new, follow_symlinks=False)
            elif stat.S_ISFIFO(status.st_mode):
                os.mkfifo(new)
                shutil.copystat(old, new)
            else:
                shutil.copy2(old, new, follow_symlinks=False)
    # Last, and from within outwards, because each entry that is made changes the time of its folder.
    for parent, copied_parent in reversed(folders):
        shutil.copystat(parent, copied_parent)
