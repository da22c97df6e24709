"""Attacks on time, memory, processes, threads and descriptors: they cost their own line, at most their own session."""

from __future__ import annotations

import re

import pytest
from kernel.attacks.arena import (
    BOTH,
    BWRAP,
    ERROR,
    GENTLE,
    KILLED,
    LIMITS,
    OK,
    SANDLOCK,
    SHORT,
    SOON_S,
    TIMEOUT,
    Attack,
    cases,
    number,
)
from kernel.attacks.conftest import Arenas

BEGUN = "print('begun')\n"
FILL = """hoard = []
while True:
    hoard.append({})
"""
FILL_AND_COUNT = """def fill():
    hoard = []
    try:
        while True: hoard.append(bytes(10 ** 7))
    except MemoryError:
        os._exit(len(hoard))
"""
WAIT = "[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) * 10 <= {} for child in children]"

ENDLESS = [
    Attack("loop", ("while True: pass\n",), statuses=(TIMEOUT,)),
    Attack("power", ("10 ** 10 ** 8",), statuses=(TIMEOUT, KILLED), kinds=BWRAP),
    Attack("regex", ("import re; re.match('(a+)+$', 'a' * 60 + 'b')",), statuses=(TIMEOUT, KILLED), kinds=BWRAP),
    Attack("sum-in-c", ("sum(range(10 ** 12))",), statuses=(KILLED,)),
    Attack("lock", ("lock = threading.Lock(); lock.acquire(); lock.acquire()",), ".*", (TIMEOUT,), BWRAP),
    Attack(
        "swallowing",
        ("while True:\n  try: time.sleep(60)\n  except BaseException: pass\n",),
        statuses=(KILLED,),
        kinds=BWRAP,
    ),
    Attack("ignoring", ("_ = signal.signal(2, signal.SIG_IGN)\nwhile True: pass\n",), statuses=(KILLED,), kinds=BWRAP),
    Attack("masking", ("_ = signal.pthread_sigmask(0, range(1, 65))\nwhile True: pass\n",), statuses=(KILLED,)),
    Attack("finally", ("try:\n  time.sleep(60)\nfinally:\n  while True: pass\n",), statuses=(KILLED,), kinds=BWRAP),
    Attack("waiting-for-itself", ("threading.current_thread().join()",), ".*RuntimeError.*", (ERROR,)),
    Attack(
        "finalizer",
        ("class A:\n  __del__ = lambda self: time.sleep(60)\n", "a = A(); del a"),
        statuses=(TIMEOUT,),
        kinds=BWRAP,
    ),
    Attack(
        "collector",
        ("gc.callbacks.append(lambda *_: time.sleep(60)); _ = gc.collect()",),
        statuses=(TIMEOUT, KILLED),
        kinds=BWRAP,
    ),
    Attack("other-program", ("os.execv('/bin/sleep', ['sleep', '60'])",), statuses=(KILLED,), kinds=BWRAP),
    Attack(
        "other-program-with-the-channel",
        ("os.set_inheritable(3, True); os.execv('/bin/sleep', ['sleep', '60'])",),
        statuses=(KILLED, TIMEOUT),
        kinds=BWRAP,
    ),
    Attack("sleeping-child", ("subprocess.run(['sleep', '60'])",), statuses=(TIMEOUT, KILLED), kinds=BWRAP),
    Attack("stopping-itself", ("os.kill(os.getpid(), signal.SIGSTOP)",), statuses=(KILLED,), kinds=SANDLOCK),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*ENDLESS))
def test_time_is_limited(kind: str, attack: Attack, arenas: Arenas) -> None:
    limits = SHORT if KILLED in attack.statuses else GENTLE
    *_, last = arenas(kind, limits).attack(*attack.cells[:-1], BEGUN + attack.cells[-1])
    assert last.status in attack.statuses
    assert last.output.startswith("begun\n")
    assert last.duration_s < SOON_S


MEMORY = [
    *(
        Attack(name, (cell, "hoard = None; 'alive'"), "'alive'")
        for name, cell in {
            "list": FILL.format("'x' * 10 ** 6 + str(len(hoard))"),
            "small-objects": FILL.format("[None] * 1000"),
            "one-array": "bytearray(10 ** 9)",
            "text": "'x' * 10 ** 10",
            "numpy": "import numpy; numpy.ones(10 ** 9)",
            "mapped": "mmap.mmap(-1, 10 ** 9, mmap.MAP_PRIVATE)",
            "unpacked": "import zlib; zlib.decompress(zlib.compress(bytes(10 ** 8)) * 9, bufsize=10 ** 9)",
            "shift": "1 << 10 ** 10",
        }.items()
    ),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*MEMORY))
def test_memory_is_limited_and_the_session_goes_on(kind: str, attack: Attack, arenas: Arenas) -> None:
    filling, after = arenas(kind).attack(*attack.cells)
    assert filling.error_name in ("MemoryError", "_ArrayMemoryError", "OSError")
    assert (after.status, after.output) == (OK, "'alive'\n")


BEYOND = [
    Attack(
        "memory-in-children",
        (FILL_AND_COUNT, "children = [os.fork() or fill() for _ in range(4)]", WAIT.format(LIMITS.memory_mb + 64)),
        r"\[(True, ){3}True\]",
        kinds=BWRAP,
    ),
    Attack("memfd", ("tried(os.memfd_create, mark)",), "'EPERM'"),
    Attack("sysv-memory", ("c('shmget', 0x5eed, 1 << 26, 0o1666)",), "'EPERM'"),
    Attack("sysv-semaphores", ("c('semget', 0x5eed, 100, 0o1666)",), "'EPERM'"),
    Attack("sysv-messages", ("c('msgget', 0x5eed, 0o1666)",), "'EPERM'"),
    Attack("posix-messages", (f"call({number('mq_open')}, id(mark), os.O_CREAT | os.O_RDWR, 0o666, 0)",), "'EPERM'"),
    Attack("others-die-first", ("tried(open, '/proc/self/oom_score_adj', 'w')",), "'(EROFS|EACCES)'"),
    Attack("old-limits", ("tried(resource.setrlimit, resource.RLIMIT_AS, (-1, -1))",), "'ValueError'"),
    Attack(
        "more-processes", ("tried(resource.setrlimit, resource.RLIMIT_NPROC, (99, 99))",), "'ValueError'", kinds=BWRAP
    ),
    Attack("more-time", ("tried(resource.setrlimit, resource.RLIMIT_CPU, (99, 99))",), "'ValueError'"),
    Attack("more-files", ("tried(resource.setrlimit, resource.RLIMIT_NOFILE, (99, 99))",), "'ValueError'"),
    Attack("larger-files", ("tried(resource.setrlimit, resource.RLIMIT_FSIZE, (-1, -1))",), "'ValueError'"),
    Attack("core-dumps", ("tried(resource.setrlimit, resource.RLIMIT_CORE, (-1, -1))",), "'ValueError'"),
    Attack("priority", ("tried(os.setpriority, os.PRIO_PROCESS, 0, -20)",), "'(EACCES|EPERM)'"),
    Attack("nice", ("tried(os.nice, -20)",), "'EPERM'"),
    Attack("real-time", ("tried(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(9))",), "'EPERM'"),
    Attack("reserved-huge-pages", ("tried(mmap.mmap, -1, 1 << 21, 0x40022)",), "'EPERM'"),
    Attack("merged-pages", ("tried(mmap.mmap(-1, 8192, mmap.MAP_PRIVATE).madvise, 12)",), "'EPERM'"),
    Attack(
        "shared-zeros",
        ("tried(lambda: mmap.mmap(os.open('/dev/zero', os.O_RDWR), 8192))",),
        "'(ENODEV|EACCES|EPERM)'",
    ),
    Attack(
        "shared-zeros-to-read",
        ("tried(lambda: mmap.mmap(os.open('/dev/zero', os.O_RDONLY), 8192, prot=mmap.PROT_READ))",),
        "'(ENODEV|EACCES|EPERM)'",
    ),
    Attack("everybodys-disks", (f"call({number('sync')}), c('syncfs', 1)",), r"\('EPERM', 'EPERM'\)"),
    Attack("locked-memory", ("c('mlockall', 3)",), "'EPERM'"),
    Attack("first-at-the-disk", (f"call({number('ioprio_set')}, 1, 0, 1 << 13)",), "'EPERM'"),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*BEYOND))
def test_no_limit_can_be_gone_round(kind: str, attack: Attack, arenas: Arenas) -> None:
    *_, result = arenas(kind).attack(*attack.cells)
    assert result.status is OK
    assert re.fullmatch(attack.evidence, result.output.strip())


BOMBS = [
    Attack("forks", ("while True: os.fork() or time.sleep(60)\n",), "BlockingIOError", kinds=BWRAP),
    Attack("no-forks", ("while True: os.fork() or time.sleep(60)\n",), "PermissionError", kinds=SANDLOCK),
    Attack("programs", ("while True: subprocess.Popen(['sleep', '60'])\n",), "BlockingIOError", kinds=BWRAP),
    Attack("no-programs", ("subprocess.Popen(['sleep', '60'])",), "PermissionError", kinds=SANDLOCK),
    Attack(
        "threads",
        ("while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",),
        "RuntimeError",
    ),
    Attack(
        "small-threads",
        ("_ = threading.stack_size(32768)\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()\n",),
        "RuntimeError",
        kinds=BWRAP,
    ),
    *(
        Attack(name, (f"kept = []\nwhile True: kept.append({cell})\n",), "OSError")
        for name, cell in {
            "descriptors": "os.open('/dev/null', 0)",
            "pipes": "os.pipe()",
            "sockets": "socket.socketpair()",
            "events": "os.eventfd(0)",
            "polls": "__import__('select').epoll()",
        }.items()
    ),
    Attack("terminals", ("kept = []\nwhile True: kept.append(os.openpty())\n",), "OSError", kinds=BWRAP),
]


@pytest.mark.parametrize(("kind", "attack"), cases(*BOMBS))
def test_bombs_go_off_inside(kind: str, attack: Attack, arenas: Arenas) -> None:
    [bomb] = arenas(kind).attack(*attack.cells)
    assert (bomb.status, bomb.error_name) == (ERROR, attack.evidence)


def test_threads_are_limited_where_linux_does_not_count_them(arenas: Arenas) -> None:
    """A small stack takes so little address space that thousands fit."""
    start = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start"
    cells = f"_ = threading.stack_size(32768)\nwhile tried({start}) is None: pass\n", "time.sleep(25)"
    bomb = next(result for result in arenas("sandlock").attack(*cells) if result.state_lost)
    assert (bomb.status, bomb.by_machinery) == (KILLED, False)


@pytest.mark.parametrize("cell", ["while True: os.fork()\n", "os.system(':() { :|:& }; :')"], ids=["python", "shell"])
def test_a_bomb_whose_every_part_goes_on_is_ended_with_its_session(cell: str, arenas: Arenas) -> None:
    [bomb] = arenas("bwrap", SHORT).attack(cell)
    assert bomb.duration_s < SOON_S
    assert len(bomb.output) < LIMITS.output_bytes + 100


@pytest.mark.parametrize("kind", BOTH)
def test_terminals_and_watches_of_others_are_out_of_reach(kind: str, arenas: Arenas) -> None:
    watched = "os.open(os.path.dirname(os.__file__), os.O_RDONLY)"
    ways = (
        "c('inotify_init1', 0)",
        "c('inotify_add_watch', 0, b'/usr', 0xfff)",
        f"tried(fcntl.fcntl, {watched}, 1026, 1)",
        "tried(fcntl.fcntl, os.open(os.__file__, os.O_RDONLY), 1024, 0)",
        "tried(fcntl.fcntl, os.open(os.path.dirname(os.__file__) + '/this.py', os.O_RDONLY), 1024, 1)",
    )
    [told] = arenas(kind).attack(", ".join(ways))
    assert told.output == f"{('EPERM',) * len(ways)}\n"
