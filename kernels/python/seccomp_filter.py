"""A seccomp filter for a session: the system calls that Python sessions need are allowed, and no others.

    Filter(may_fork=True).install()    # for the calling thread, and all threads and processes that it starts afterwards

A refused call answers EPERM, so Python raises PermissionError: data, not a dead session. Calls that programs try first
and fall back from (`clone3`, whose flags a filter can't read, and all newer than this file) answer ENOSYS. Sockets are
AF_UNIX only, and routing sockets where a kernel that is not ours lists its network interfaces; others answer
EAFNOSUPPORT. Of `clone`, `fcntl`, `ioctl`, `madvise`, `mmap`, `prctl` and `setsockopt`,
what is asked for decides. A call made through another architecture's table ends the process.

A `clone` with which a session forks itself into namespaces of its own (repl_fork.py) waits for the host's word.
The host says yes only while it forks a session, through the descriptor that `install` returns.

Memory that is shared without a file is for sessions in control groups, which are charged for it. It stays for as long
as one page of it is mapped, and /proc shows no more than that page.

A session that may not fork is one without namespaces: it shares the host's process ids and paths. There, calls that
start programs, change other processes or change the metadata of files are refused as well, and sockets reach no path.

For x86_64 and aarch64. It adds to the sandbox's walls and replaces none of them.

Not covered: threads that run already; what the allowed calls do (files, signals, memory, /proc); AF_UNIX sockets of
others that the session can reach; calls made by other means, on descriptors that the session was given (an io_uring).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    Calls = dict[str, dict[str, tuple[int | None, int | None]]]
    Line = tuple[str | None, int, int | None, *tuple[str, ...]]
    """Label, operation, operand, and labels to go to: see `_assemble`."""

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER = 2
_SECCOMP_SET_MODE_FILTER, _FLAG_NEW_LISTENER = 1, 8
_SECCOMP_NUMBERS = {"x86_64": 317, "aarch64": 277}

_AUDIT_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMNS = {machine: column for column, machine in enumerate(_AUDIT_ARCHES)}

# fmt: off
ALLOWED: Calls = {
    "files": {
        "read": (0, 63), "write": (1, 64), "open": (2, None), "close": (3, 57), "stat": (4, None), "fstat": (5, 80),
        "lstat": (6, None), "lseek": (8, 62), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65),
        "writev": (20, 66), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
        "access": (21, None), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "sendfile": (40, 71),
        "fsync": (74, 82), "fdatasync": (75, 83), "truncate": (76, 45), "ftruncate": (77, 46), "getdents": (78, None),
        "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "rename": (82, None),
        "mkdir": (83, None), "rmdir": (84, None), "creat": (85, None), "link": (86, None), "unlink": (87, None),
        "symlink": (88, None), "readlink": (89, None), "umask": (95, 166), "mknod": (133, None), "statfs": (137, 43),
        "fstatfs": (138, 44), "openat": (257, 56), "openat2": (437, 437), "mkdirat": (258, 34), "mknodat": (259, 33),
        "newfstatat": (262, None), "fstatat": (None, 79), "unlinkat": (263, 35), "renameat": (264, 38),
        "renameat2": (316, 276), "linkat": (265, 37), "symlinkat": (266, 36), "readlinkat": (267, 78),
        "faccessat": (269, 48), "faccessat2": (439, 439), "statx": (332, 291), "fallocate": (285, 47),
        "fadvise64": (221, 223), "copy_file_range": (326, 285), "flock": (73, 32), "close_range": (436, 436),
        "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10), "listxattr": (194, 11),
        "llistxattr": (195, 12), "flistxattr": (196, 13),
    },
    "memory": {
        "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216), "msync": (26, 227),
 "membarrier": (324, 283),
    },
    "pipes and waiting": {
        "pipe": (22, None), "pipe2": (293, 59), "splice": (275, 76), "poll": (7, None), "ppoll": (271, 73),
        "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None), "epoll_create1": (291, 20),
        "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
        "eventfd": (284, None), "eventfd2": (290, 19), "signalfd": (282, None), "signalfd4": (289, 74),
        "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87),
    },
    "local sockets": {
        "accept": (43, 202), "accept4": (288, 242), "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211),
        "recvmsg": (47, 212), "shutdown": (48, 210), "listen": (50, 201), "getsockname": (51, 204),
        "getpeername": (52, 205), "getsockopt": (55, 209),
    },
    "signals": {
        "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
        "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
        "sigaltstack": (131, 132), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
        "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pause": (34, None), "restart_syscall": (219, 128),
    },
    "time": {
        "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "gettimeofday": (96, 169), "time": (201, None),
        "clock_gettime": (228, 113), "clock_getres": (229, 114), "getitimer": (36, 102), "setitimer": (38, 103),
        "alarm": (37, None), "times": (100, 153),
    },
    "threads": {
        "futex": (202, 98), "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293),
        "gettid": (186, 178), "arch_prctl": (158, None), "sched_yield": (24, 124), "getcpu": (309, 168),
    },
    "this process": {
        "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95), "getpid": (39, 172),
        "getppid": (110, 173), "getpgrp": (111, None), "getpgid": (121, 155), "setpgid": (109, 154),
        "getsid": (124, 156), "setsid": (112, 157), "getrlimit": (97, 163), "setrlimit": (160, 164),
        "getrusage": (98, 165), "getpriority": (140, 141), "uname": (63, 160), "sysinfo": (99, 179),
        "getrandom": (318, 278), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
        "sched_getscheduler": (145, 120), "sched_getattr": (315, 275), "sched_get_priority_max": (146, 125),
        "sched_get_priority_min": (147, 126), "sched_rr_get_interval": (148, 127),
    },
    "identity": {
        "getuid": (102, 174), "geteuid": (107, 175), "getresuid": (118, 148), "getgid": (104, 176),
        "getegid": (108, 177), "getresgid": (120, 150), "getgroups": (115, 158), "capget": (125, 90),
        "setuid": (105, 146), "setreuid": (113, 145), "setresuid": (117, 147), "setgid": (106, 144),
        "setregid": (114, 143), "setresgid": (119, 149),
    },
}
"""Group -> call -> its numbers on x86_64 and aarch64; None where the architecture lacks it."""

ALLOWED_APART: Calls = {
    "programs": {
        "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    },
    "files, their owners and modes": {
        "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
        "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
        "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
        "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    },
    "names of sockets": {
        "connect": (42, 203), "bind": (49, 200),
    },
    "capabilities": {
        "capset": (126, 91),
    },
    "scheduling": {
        "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
        "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    },
}
"""Allowed as well to a session that has namespaces of its own."""
# fmt: on

EXAMINED = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "madvise": (28, 233),
    "mmap": (9, 222),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "setsockopt": (54, 208),
    "socket": (41, 198),
    "socketpair": (53, 199),
}
"""Calls whose arguments decide."""
_FIRST_UNKNOWN = 451  # the calls below it have been looked at; x32's on x86_64 lie far above it

_CLONE_THREAD = 0x00010000
_CLONE_FLAGS = 0x017D5FFF
"""A signal's number and VM, FS, FILES, SIGHAND, PIDFD, VFORK, THREAD, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID,
DETACHED, CHILD_SETTID: no new namespaces, no tracing, and no child that is somebody else's."""
_CLONE_NEWNET = 0x40000000
FORK_FLAGS = 0x20000 | 0x08000000 | 0x10000000 | 0x20000000 | _CLONE_NEWNET | signal.SIGCHLD
"""A session's fork of itself: NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
SUCCESSOR_FLAGS = FORK_FLAGS & ~_CLONE_NEWNET
"""The fork that goes on as the session. It keeps the session's network, which takes Linux longest to make."""
_NETLINK_ROUTE = 0
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000

_ALLOWED_OPTIONS = {
    # DUPFD, GETFD, SETFD, GETFL, SETFL; GETLK, SETLK, SETLKW; SETOWN, GETOWN, GETSIG, SETOWN_EX, GETOWN_EX; OFD_GETLK,
    # OFD_SETLK, OFD_SETLKW; DUPFD_QUERY, DUPFD_CLOEXEC, GETPIPE_SZ; not SETSIG, with which a session that was stopped
    # for good (repl_fork.py) would wake itself, as it would with a timer_create's signal
    "fcntl": (1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 16, 36, 37, 38, 1027, 1030, 1032]),
    "ioctl": (
        1,
        [
            *(0x5401, 0x5402, 0x5403, 0x5404),  # TCGETS, TCSETS, TCSETSW, TCSETSF
            *(0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D),  # the same with speeds of any size
            *(0x5409, 0x5425, 0x540A, 0x540B),  # TCSBRK, TCSBRKP, TCXONC, TCFLSH
            *(0x540E, 0x5422, 0x540F, 0x5410, 0x5429),  # TIOCSCTTY, TIOCNOTTY, TIOCGPGRP, TIOCSPGRP, TIOCGSID
            *(0x80045430, 0x40045431, 0x80045439, 0x5441),  # TIOCGPTN, TIOCSPTLCK, TIOCGPTLCK, TIOCGPTPEER
            *(0x5413, 0x5414, 0x5411, 0x541B),  # TIOCGWINSZ, TIOCSWINSZ, TIOCOUTQ, FIONREAD
            *(0x5421, 0x5452, 0x5450, 0x5451),  # FIONBIO, FIOASYNC, FIONCLEX, FIOCLEX
            *(0x40049409, 0x4020940D),  # FICLONE, FICLONERANGE
        ],
    ),
    # NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, FREE, REMOVE, DONTFORK, DOFORK, HUGEPAGE, NOHUGEPAGE, DONTDUMP,
    # DODUMP, WIPEONFORK, KEEPONFORK, POPULATE_READ, POPULATE_WRITE, GUARD_INSTALL, GUARD_REMOVE: what concerns the
    # process alone, not the merging and the age of pages that others have too
    "madvise": (2, [0, 1, 2, 3, 4, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 22, 23, 102, 103]),
    # REUSEADDR, BROADCAST, SNDBUF, RCVBUF, KEEPALIVE, OOBINLINE, LINGER, REUSEPORT, PASSCRED, RCVLOWAT, RCVTIMEO,
    # SNDTIMEO, TIMESTAMP, PEEK_OFF, RCVTIMEO_NEW, SNDTIMEO_NEW
    "setsockopt": (2, [2, 6, 7, 8, 9, 10, 13, 15, 16, 18, 20, 21, 29, 42, 66, 67]),
    # GET_PDEATHSIG, GET_DUMPABLE, SET_NAME, GET_NAME, GET_SECCOMP, CAPBSET_READ, SET_TIMERSLACK, GET_TIMERSLACK,
    # SET_CHILD_SUBREAPER, GET_CHILD_SUBREAPER, SET_NO_NEW_PRIVS, GET_NO_NEW_PRIVS, GET_TID_ADDRESS, GET_THP_DISABLE,
    # aarch64's SVE_SET_VL, SVE_GET_VL, PAC_RESET_KEYS, SET_TAGGED_ADDR_CTRL, GET_TAGGED_ADDR_CTRL; SET_VMA
    "prctl": (0, [2, 3, 15, 16, 21, 23, 29, 30, 36, 37, 38, 39, 40, 42, 50, 51, 54, 55, 56, 0x53564D41]),
}
"""Call -> the argument that decides, and its allowed values."""
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP = 1, 24
_WITHOUT_CONNECTION = 2  # the bit that SOCK_DGRAM and SOCK_RAW have, and SOCK_STREAM and SOCK_SEQPACKET lack

_LOAD, _GO, _JUMP_EQUAL, _JUMP_NOT_BELOW, _JUMP_ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_RET_ERRNO = 0x00050000
_RESULTS = {
    "allow": 0x7FFF0000,
    "kill": 0x80000000,
    "ask": 0x7FC00000,
    "EPERM": _RET_ERRNO | errno.EPERM,
    "ENOSYS": _RET_ERRNO | errno.ENOSYS,
    "EAFNOSUPPORT": _RET_ERRNO | errno.EAFNOSUPPORT,
}


class Filter:
    """The filter, made before it is needed. Raises NotImplementedError on a machine that it is not written for."""

    def __init__(self, *, may_fork: bool = True, may_share: bool = False, lists_interfaces: bool = False) -> None:
        """`may_share`: memory that is shared without a file. `lists_interfaces`: routing sockets (AF_NETLINK), with
        which libraries list network interfaces; without capabilities, nothing can be changed through them."""
        self._asks = may_fork
        program = build(platform.machine(), may_fork, may_share, lists_interfaces)
        self._code = ctypes.create_string_buffer(program, len(program))
        self._header = _Program(len(program) // 8, ctypes.addressof(self._code))

    def install(self) -> int | None:
        """Put it on the calling thread, for good; this also gives up new privileges (setuid programs) for good.

        Returns the descriptor through which calls that wait are answered; None for a session that may not fork, and
        where this Linux has none, and they are refused. Raises OSError where the kernel refuses.
        """
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        address = ctypes.addressof(self._header)
        if self._asks:
            number = _SECCOMP_NUMBERS[platform.machine()]
            listener: int = _libc.syscall(number, _SECCOMP_SET_MODE_FILTER, _FLAG_NEW_LISTENER, address)
            if listener >= 0:
                return listener
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address)
        return None


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.argtypes = [ctypes.c_long] * 4
_libc.syscall.restype = ctypes.c_long
_prctl_call = _libc.prctl
_prctl_call.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def _prctl(option: int, *arguments: int) -> None:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    if _prctl_call(option, *padded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}) for the seccomp filter: {os.strerror(number)}")


def clone_number() -> int:
    """The number of `clone` on this machine."""
    return EXAMINED["clone"][_COLUMNS[platform.machine()]]


def build(machine: str, may_fork: bool, may_share: bool = False, lists_interfaces: bool = False) -> bytes:
    """The filter as the kernel takes it: 8 bytes an instruction. Raises NotImplementedError for other machines."""
    if machine not in _COLUMNS or struct.calcsize("P") != 8:
        raise NotImplementedError(f"no seccomp filter for {machine!r}, {struct.calcsize('P') * 8} bit")
    entry, search = _search(_ranges(_verdicts(machine, may_fork)))
    return _assemble(
        [
            ("start", _LOAD, _ARCH_OFFSET),
            (None, _JUMP_EQUAL, _AUDIT_ARCHES[machine], "number", "foreign"),
            ("foreign", _RETURN, _RESULTS["kill"]),
            ("number", _LOAD, _NUMBER_OFFSET),
            (None, _JUMP_NOT_BELOW, _FIRST_UNKNOWN, "unknown", entry),
            ("unknown", _RETURN, _RESULTS["ENOSYS"]),
            *search,
            *_examinations(may_fork, may_share, lists_interfaces),
            *((name, _RETURN, result) for name, result in _RESULTS.items()),
        ]
    )


def _verdicts(machine: str, may_fork: bool) -> dict[int, str]:
    """Call number -> "allow", "EPERM", or the label of the instructions that examine its arguments."""
    column = _COLUMNS[machine]
    verdicts = dict.fromkeys(range(_FIRST_UNKNOWN), "EPERM")
    groups = list(ALLOWED.values())
    if may_fork:
        groups += ALLOWED_APART.values()
    for group in groups:
        for row in group.values():
            number = row[column]
            if number is not None:  # this machine has the call
                verdicts[number] = "allow"
    for name, row in EXAMINED.items():
        verdicts[row[column]] = name
    verdicts[EXAMINED["clone3"][column]] = "ENOSYS"
    return verdicts


def _ranges(verdicts: dict[int, str]) -> list[tuple[int, str]]:
    """(first number, verdict) of each run of numbers with one verdict, ascending; they cover every number."""
    ranges = [(0, verdicts[0])]
    for number in range(1, _FIRST_UNKNOWN):
        if verdicts[number] != ranges[-1][1]:
            ranges.append((number, verdicts[number]))
    return ranges


def _search(ranges: list[tuple[int, str]]) -> tuple[str, list[Line]]:
    """Binary search for the range that holds the loaded number: the label to start at, and the instructions."""
    first, verdict = ranges[0]
    label = f"{first}/{len(ranges)}"
    if len(ranges) == 1:
        if verdict in _RESULTS:
            return label, [(label, _RETURN, _RESULTS[verdict])]
        return label, [(label, _GO, None, verdict)]
    middle = len(ranges) // 2
    below, below_code = _search(ranges[:middle])
    above, above_code = _search(ranges[middle:])
    return label, [(label, _JUMP_NOT_BELOW, ranges[middle][0], above, below), *below_code, *above_code]


def _examinations(may_fork: bool, may_share: bool, lists_interfaces: bool) -> list[Line]:
    """Instructions that check arguments: only their lower halves, because Linux reads no more of these."""
    return [
        ("clone", _LOAD, _argument_offset(0)),
        *([(None, _JUMP_EQUAL, FORK_FLAGS, "ask", "successor")] if may_fork else []),
        *([("successor", _JUMP_EQUAL, SUCCESSOR_FLAGS, "ask", "flags")] if may_fork else []),
        ("flags", _JUMP_ANY_BIT, ~_CLONE_FLAGS & 0xFFFFFFFF, "EPERM", "allow" if may_fork else "thread"),
        ("thread", _JUMP_ANY_BIT, _CLONE_THREAD, "allow", "EPERM"),
        *(line for call in _ALLOWED_OPTIONS for line in _choice(call, may_fork)),
        *_socket_examination("socket", may_fork, "routes" if lists_interfaces else "EAFNOSUPPORT"),
        ("routes", _JUMP_EQUAL, int(socket.AF_NETLINK), "routes protocol", "EAFNOSUPPORT"),
        ("routes protocol", _LOAD, _argument_offset(2)),
        (None, _JUMP_EQUAL, _NETLINK_ROUTE, "allow", "EAFNOSUPPORT"),
        *_socket_examination("socketpair", may_fork),
        ("mmap", _LOAD, _argument_offset(3)),
        (None, _JUMP_ANY_BIT, _MAP_HUGETLB, "EPERM", "allow" if may_share else "shared"),
        ("shared", _JUMP_ANY_BIT, _MAP_SHARED, "without a file", "allow"),
        ("without a file", _JUMP_ANY_BIT, _MAP_ANONYMOUS, "EPERM", "allow"),
        ("prlimit64", _LOAD, _argument_offset(0)),
        (None, _JUMP_EQUAL, 0, "allow", "allow" if may_fork else "EPERM"),
    ]


def _choice(call: str, may_fork: bool) -> list[Line]:
    """The call is allowed if the argument that decides is one of its allowed values."""
    index, values = _ALLOWED_OPTIONS[call]
    if call == "prctl" and may_fork:
        values = [_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, *values]
    labels = [f"{call} {value}" for value in values[1:]]
    return [
        (call, _LOAD, _argument_offset(index)),
        *(
            (label, _JUMP_EQUAL, value, "allow", after)
            for label, value, after in zip([None, *labels], values, [*labels, "EPERM"], strict=True)
        ),
    ]


def _socket_examination(call: str, may_fork: bool, otherwise: str = "EAFNOSUPPORT") -> list[Line]:
    """Where paths are the host's, a socket that takes an address with every message is refused: it would reach them."""
    return [
        (call, _LOAD, _argument_offset(0)),
        (None, _JUMP_EQUAL, int(socket.AF_UNIX), f"{call} type", otherwise),
        (f"{call} type", _LOAD, _argument_offset(1)),
        (None, _JUMP_ANY_BIT, _WITHOUT_CONNECTION, "allow" if may_fork else "EAFNOSUPPORT", "allow"),
    ]


def _argument_offset(index: int) -> int:
    return _ARGUMENTS_OFFSET + 8 * index  # of the lower half: both architectures are little-endian


def _assemble(lines: list[Line]) -> bytes:
    """Encode (label, operation, operand, *labels): where to go, or where if true and if false, at most 255 ahead."""
    indices = {line[0]: index for index, line in enumerate(lines)}
    encoded = []
    for index, (_, operation, operand, *targets) in enumerate(lines):
        jumps = [indices[target] - index - 1 for target in targets]
        if operation == _GO:
            operand, jumps = jumps[0], []
        encoded.append(struct.pack("<HBBI", operation, *(jumps or (0, 0)), operand))
    return b"".join(encoded)
