"""A seccomp filter for a session: system calls that no Python session needs fail, the rest stay as they are.

    Filter(may_fork=True).install()    # for the calling thread, and all threads and processes that it starts afterwards

A refused call answers EPERM, so Python raises PermissionError: data, not a dead session. Calls that programs try first
and fall back from (`clone3`, whose flags a filter can't read, and all newer than this file) answer ENOSYS. Sockets are
AF_UNIX only; others answer EAFNOSUPPORT. A call made through another architecture's table ends the process.

A session that may not fork is one without namespaces: it shares the host's process ids and paths. There, calls that
change other processes or the metadata of files that can only be read are refused as well, and sockets reach no path.

For x86_64 and aarch64. It adds to the sandbox's walls and replaces none of them.

Not covered: threads that run already; what the allowed calls do (files, signals, memory, /proc); AF_UNIX sockets of
others that the session can reach; calls made by other means, on descriptors that the session was given (an io_uring).
"""

import ctypes
import errno
import os
import platform
import socket
import struct

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER = 2

_AUDIT_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMNS = {machine: column for column, machine in enumerate(_AUDIT_ARCHES)}

DENIED = {
    # The walls are made of mounts.
    "mounts": {
        "mount": (165, 40),
        "umount2": (166, 39),
        "pivot_root": (155, 41),
        "chroot": (161, 51),
        "open_tree": (428, 428),
        "move_mount": (429, 429),
        "fsopen": (430, 430),
        "fsconfig": (431, 431),
        "fsmount": (432, 432),
        "fspick": (433, 433),
        "mount_setattr": (442, 442),
    },
    # In a user namespace of its own a session would be root, and reach the parts of the kernel that only root reaches.
    "namespaces": {"unshare": (272, 97), "setns": (308, 268)},
    # Sessions may share a user id, which is all that these check.
    "other processes": {
        "ptrace": (101, 117),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "process_madvise": (440, 440),
        "pidfd_getfd": (438, 438),
        "kcmp": (312, 272),
    },
    # Large or old, seldom used, and where kernel bugs were found before. Keyrings belong to no namespace,
    # and the contexts of the old asynchronous I/O are numbered for the machine as a whole.
    "kernel attack surface": {
        "bpf": (321, 280),
        "perf_event_open": (298, 241),
        "userfaultfd": (323, 282),
        "io_uring_setup": (425, 425),
        "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427),
        "io_setup": (206, 0),
        "add_key": (248, 217),
        "request_key": (249, 218),
        "keyctl": (250, 219),
        "open_by_handle_at": (304, 265),
        "name_to_handle_at": (303, 264),
        "fanotify_init": (300, 262),
        "lookup_dcookie": (212, 18),
        "nfsservctl": (180, 42),
        "modify_ldt": (154, None),
        "personality": (135, 92),
        "memfd_secret": (447, 447),
        "move_pages": (279, 239),
        "migrate_pages": (256, 238),
        "mbind": (237, 235),
        "set_mempolicy": (238, 237),
        "set_mempolicy_home_node": (450, 450),
    },
    # What is spliced into a pipe stays in memory, however large the page, when its process has unmapped it.
    "memory beyond the limits": {"memfd_create": (319, 279), "vmsplice": (278, 75)},
    # Programs that filter are compiled, into memory of which the machine as a whole has little.
    "filters": {"seccomp": (317, 277)},
    # More memory beyond the limits. In the host's IPC namespace, they also reach what others have made, by its number.
    "System V and POSIX objects": {
        "shmget": (29, 194),
        "shmctl": (31, 195),
        "shmat": (30, 196),
        "shmdt": (67, 197),
        "semget": (64, 190),
        "semctl": (66, 191),
        "semop": (65, 193),
        "semtimedop": (220, 192),
        "msgget": (68, 186),
        "msgctl": (71, 187),
        "msgsnd": (69, 189),
        "msgrcv": (70, 188),
        "mq_open": (240, 180),
        "mq_unlink": (241, 181),
    },
    # All sessions share the system's files: watching them tells what others import and run. Two of fcntl's commands
    # tell it as well, and one of them, a lease, holds up whoever opens the file for 45 seconds.
    "what others do": {"inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27)},
    # The machine as a whole: reserved to root, whatever capabilities a kernel is started with.
    "administration": {
        "kexec_load": (246, 104),
        "kexec_file_load": (320, 294),
        "create_module": (174, None),
        "query_module": (178, None),
        "init_module": (175, 105),
        "finit_module": (313, 273),
        "delete_module": (176, 106),
        "quotactl": (179, 60),
        "quotactl_fd": (443, 443),
        "acct": (163, 89),
        "swapon": (167, 224),
        "swapoff": (168, 225),
        "reboot": (169, 142),
        "syslog": (103, 116),
        "iopl": (172, None),
        "ioperm": (173, None),
        "vhangup": (153, 58),
    },
    # The clock and the names are the host's too.
    "clocks and names": {
        "settimeofday": (164, 170),
        "clock_settime": (227, 112),
        "clock_adjtime": (305, 266),
        "adjtimex": (159, 171),
        "sethostname": (170, 161),
        "setdomainname": (171, 162),
    },
}
"""Group -> call -> its numbers on x86_64 and aarch64; None where the architecture lacks it."""

PROCESSES = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    # Without a PID namespace, these reach other processes of the same user, by their number.
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    # Without a mount namespace, these reach what Landlock's rules leave out.
    "connect": (42, 203),
    "bind": (49, 200),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
"""Refused as well where a session may not fork."""

EXAMINED = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "setsockopt": (54, 208),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
}
"""Calls whose arguments decide."""

_FIRST_UNKNOWN = 451  # the calls below it have been looked at; x32's on x86_64 lie far above it

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. For clone, the bit of NEWTIME is part of the signal.
_CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_CLONE_THREAD = 0x00010000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # both type into a terminal that others read
_FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR, _FS_IOC_ENABLE_VERITY = 0x40086602, 0x401C5820, 0x40806685
_REFUSED_IOCTLS = (_TIOCSTI, _TIOCLINUX, _FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR, _FS_IOC_ENABLE_VERITY)
_REFUSED_FCNTLS = (_F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ) = 1024, 1026, 1031
_SO_ATTACH_FILTER, _SO_ATTACH_BPF, _SO_ATTACH_REUSEPORT_CBPF, _SO_ATTACH_REUSEPORT_EBPF = 26, 50, 51, 52
_REFUSED_OPTIONS = (_SO_ATTACH_FILTER, _SO_ATTACH_BPF, _SO_ATTACH_REUSEPORT_CBPF, _SO_ATTACH_REUSEPORT_EBPF)
_PR_SET_PDEATHSIG = 1
_WITHOUT_CONNECTION = 2  # the bit that SOCK_DGRAM and SOCK_RAW have, and SOCK_STREAM and SOCK_SEQPACKET lack

_LOAD, _JUMP_EQUAL, _JUMP_NOT_BELOW, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_RET_ERRNO = 0x00050000
_RESULTS = {
    "allow": 0x7FFF0000,
    "kill": 0x80000000,
    "EPERM": _RET_ERRNO | errno.EPERM,
    "ENOSYS": _RET_ERRNO | errno.ENOSYS,
    "EAFNOSUPPORT": _RET_ERRNO | errno.EAFNOSUPPORT,
}


class Filter:
    """The filter, made before it is needed. Raises NotImplementedError on a machine that it is not written for."""

    def __init__(self, *, may_fork=True):
        program = build(platform.machine(), may_fork)
        self._code = ctypes.create_string_buffer(program, len(program))
        self._header = _Program(len(program) // 8, ctypes.addressof(self._code))

    def install(self):
        """Put it on the calling thread, for good; this also gives up new privileges (setuid programs) for good.

        Raises OSError where the kernel refuses.
        """
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(self._header))


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


_prctl_call = ctypes.CDLL(None, use_errno=True).prctl
_prctl_call.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def _prctl(option, *arguments):
    padded = (*arguments, 0, 0, 0, 0)[:4]
    if _prctl_call(option, *padded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}) for the seccomp filter: {os.strerror(number)}")


def build(machine, may_fork):
    """The filter as the kernel takes it: 8 bytes an instruction. Raises NotImplementedError for other machines."""
    if machine not in _COLUMNS or struct.calcsize("P") != 8:
        raise NotImplementedError(f"no seccomp filter for {machine!r}, {struct.calcsize('P') * 8} bit")
    entry, search = _search(_ranges(_verdicts(machine, may_fork)))
    return _assemble(
        [
            ("start", _LOAD, _ARCH_OFFSET),
            (None, _JUMP_EQUAL, _AUDIT_ARCHES[machine], "number", "kill"),
            ("number", _LOAD, _NUMBER_OFFSET),
            (None, _JUMP_NOT_BELOW, _FIRST_UNKNOWN, "ENOSYS", entry),
            *search,
            *_examinations(may_fork),
            *((name, _RETURN, result) for name, result in _RESULTS.items()),
        ]
    )


def _verdicts(machine, may_fork):
    """Call number -> the label to jump to, for every call that is not simply allowed."""
    groups = list(DENIED.values()) if may_fork else [*DENIED.values(), PROCESSES]
    verdicts = {name: "EPERM" for group in groups for name in group}
    verdicts.update({name: name for name in EXAMINED}, clone3="ENOSYS")
    numbers = {name: row for group in (*groups, EXAMINED) for name, row in group.items()}
    column = _COLUMNS[machine]
    return {numbers[name][column]: label for name, label in verdicts.items() if numbers[name][column] is not None}


def _ranges(verdicts):
    """(first number, label) of each run of numbers with one label, ascending; they cover every number."""
    ranges = [(0, verdicts.get(0, "allow"))]
    for number in range(1, _FIRST_UNKNOWN):
        label = verdicts.get(number, "allow")
        if label != ranges[-1][1]:
            ranges.append((number, label))
    return ranges


def _search(ranges):
    """Binary search for the range that holds the loaded number: the label to start at, and the instructions."""
    first, label = ranges[0]
    if len(ranges) == 1:
        return label, []
    middle = len(ranges) // 2
    below, below_code = _search(ranges[:middle])
    above, above_code = _search(ranges[middle:])
    label = f"{first}/{len(ranges)}"
    return label, [(label, _JUMP_NOT_BELOW, ranges[middle][0], above, below), *below_code, *above_code]


def _examinations(may_fork):
    """Instructions that check arguments: only their lower halves, because Linux reads no more of these."""
    return [
        ("clone", _LOAD, _argument_offset(0)),
        (None, _JUMP_ANY_BIT, _CLONE_NEW, "EPERM", "allow" if may_fork else "thread"),
        ("thread", _JUMP_ANY_BIT, _CLONE_THREAD, "allow", "EPERM"),
        *_refusals("fcntl", 1, _REFUSED_FCNTLS),
        *_refusals("ioctl", 1, _REFUSED_IOCTLS),
        *_refusals("setsockopt", 2, _REFUSED_OPTIONS),
        *_socket_examination("socket", may_fork),
        *_socket_examination("socketpair", may_fork),
        ("prctl", _LOAD, _argument_offset(0)),
        (None, _JUMP_EQUAL, _PR_SET_SECCOMP, "EPERM", "prctl again"),
        ("prctl again", _JUMP_EQUAL, _PR_SET_PDEATHSIG, "allow" if may_fork else "EPERM", "allow"),
        ("prlimit64", _LOAD, _argument_offset(0)),
        (None, _JUMP_EQUAL, 0, "allow", "allow" if may_fork else "EPERM"),
    ]


def _refusals(call, index, values):
    """A call is refused if the argument at `index` is one of `values`."""
    labels = [f"{call} {value}" for value in values[1:]]
    return [
        (call, _LOAD, _argument_offset(index)),
        *(
            (label, _JUMP_EQUAL, value, "EPERM", after)
            for label, value, after in zip([None, *labels], values, [*labels, "allow"], strict=True)
        ),
    ]


def _socket_examination(call, may_fork):
    """Where paths are the host's, a socket that takes an address with every message is refused: it would reach them."""
    return [
        (call, _LOAD, _argument_offset(0)),
        (None, _JUMP_EQUAL, int(socket.AF_UNIX), f"{call} type", "EAFNOSUPPORT"),
        (f"{call} type", _LOAD, _argument_offset(1)),
        (None, _JUMP_ANY_BIT, _WITHOUT_CONNECTION, "allow" if may_fork else "EAFNOSUPPORT", "allow"),
    ]


def _argument_offset(index):
    return _ARGUMENTS_OFFSET + 8 * index  # of the lower half: both architectures are little-endian


def _assemble(lines):
    """Encode (label, operation, operand[, label if true, label if false]); jumps go forward, by at most 255."""
    places = {line[0]: place for place, line in enumerate(lines)}
    encoded = []
    for place, (_, operation, operand, *targets) in enumerate(lines):
        if_true, if_false = [places[target] - place - 1 for target in targets] or (0, 0)
        encoded.append(struct.pack("<HBBI", operation, if_true, if_false, operand))
    return b"".join(encoded)
