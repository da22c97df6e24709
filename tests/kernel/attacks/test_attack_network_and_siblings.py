"""Attacks on siblings and on the network: what others have laid down, and every door that could stand open."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import selectors
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel.attacks.arena import BOTH, GONE, MARK, OK, SECRET, TOOLS, Attack, cases, some
from kernel.attacks.conftest import Arenas, TryOut

from repl_rl.kernel.sandbox import SandboxKind

SIBLINGS = {
    "tmp": ("open('secret', 'w').write('mine')", "tried(open, {folder!r} + '/secret')", GONE),
    "shm": ("tried(open, '/dev/shm/secret', 'w') and 1", "tried(open, '/dev/shm/secret')", GONE),
    "posix-memory": (
        "from multiprocessing.shared_memory import SharedMemory; kept = tried(SharedMemory, 'secret', True, 100)",
        "from multiprocessing.shared_memory import SharedMemory; tried(SharedMemory, 'secret')", GONE,
    ),
    "path-socket": (
        "s = socket.socket(socket.AF_UNIX); _ = tried(s.bind, os.getcwd() + '/door'); _ = tried(s.listen)",
        "tried(socket.socket(socket.AF_UNIX).connect, {folder!r} + '/door')", GONE,
    ),
    "abstract-socket": (
        "s = socket.socket(socket.AF_UNIX); _ = tried(s.bind, '\\0door'); _ = tried(s.listen)",
        "tried(socket.socket(socket.AF_UNIX).connect, '\\0door')", "'(ECONNREFUSED|EPERM)'",
    ),
    "standard-input": (
        "_ = fcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)",
        "fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_APPEND)", "0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", some(SIBLINGS))
def test_a_siblings_things_are_its_own(kind: str, name: str, arenas: Arenas) -> None:
    laid, look, evidence = SIBLINGS[name]
    arena = arenas(kind)
    folder = arena.loop.run(arena.sibling.execute("import os; os.getcwd()")).output.strip("'\n")
    for cell in (TOOLS, laid):
        assert arena.loop.run(arena.sibling.execute(cell)).status is OK
    *_, result = arena.attack(look.format(folder=folder))
    assert re.fullmatch(evidence, result.output.strip()), result.output


@contextlib.contextmanager
def listening(tmp_path: Path) -> Iterator[dict[str, socket.socket]]:
    """Doors of the host that stand open, one of each kind."""
    doors = {
        "tcp": socket.create_server(("127.0.0.1", 0)),
        "any": socket.create_server(("0.0.0.0", 0)),
        "udp": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "path": socket.socket(socket.AF_UNIX),
        "datagram": socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        "abstract": socket.socket(socket.AF_UNIX),
    }
    doors["udp"].bind(("127.0.0.1", 0))
    doors["path"].bind(str(tmp_path / "door"))
    doors["datagram"].bind(str(tmp_path / "letters"))
    doors["abstract"].bind(f"\0{MARK}")
    for name in ("path", "abstract"):
        doors[name].listen()
    try:
        yield doors
    finally:
        for door in doors.values():
            door.close()


CALLS = {
    "tcp": "tried(socket.create_connection, {address!r}, 0.2)",
    "any": "tried(socket.create_connection, ('127.0.0.1', {address[1]}), 0.2)",
    "udp": "tried(lambda: socket.socket(2, 2).sendto(b'x', {address!r}))",
    "path": "tried(lambda: socket.socket(1).connect({address!r}))",
    "datagram": "tried(lambda: socket.socket(1, 2).sendto(b'x', {address!r})), "
    "tried(lambda: socket.socketpair(1, 2)[0].sendto(b'x', {address!r}))",
    "abstract": "tried(lambda: socket.socket(1).connect({address!r}))",
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", some(CALLS))
def test_no_door_of_the_host_can_be_reached(kind: str, name: str, arenas: Arenas, tmp_path: Path) -> None:
    with listening(tmp_path) as doors:
        [called] = arenas(kind).attack(CALLS[name].format(address=doors[name].getsockname()))
        with selectors.DefaultSelector() as selector:
            for door in doors.values():
                selector.register(door, selectors.EVENT_READ)
            assert selector.select(0.01) == []
    failed = "'(EAFNOSUPPORT|ENOENT|ECONNREFUSED|EPERM|EACCES)'"
    assert re.fullmatch(rf"{failed}|\({failed}, {failed}\)", called.output.strip()), called.output


@pytest.mark.parametrize(("kind", "attack"), cases("network"))
def test_no_other_family_of_sockets_is_there(kind: SandboxKind, attack: Attack, try_out: TryOut) -> None:
    try_out(kind, attack)


IPC_CREATE, IPC_NO_WAIT, IPC_REMOVE, GET_VALUE, SET_VALUE = 0o1000, 0o4000, 0, 12, 16
FREE_SEATS = 3


class HostObjects:
    """What lies in the host's IPC namespace, open to everybody: a message, a semaphore, a POSIX message queue."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.queue = self._called("msgget", 0, IPC_CREATE | 0o666)
        self.semaphore = self._called("semget", 0, 1, IPC_CREATE | 0o666)
        self.name = f"/{MARK}"
        os.close(self._called("mq_open", self.name.encode(), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666, None))
        self._called("msgsnd", self.queue, struct.pack("l", 1) + SECRET.encode(), len(SECRET), IPC_NO_WAIT)
        self._called("semctl", self.semaphore, 0, SET_VALUE, FREE_SEATS)

    def assert_untouched(self) -> None:
        assert self._called("semctl", self.semaphore, 0, GET_VALUE) == FREE_SEATS
        os.close(self._called("mq_open", self.name.encode(), os.O_RDWR))
        text = ctypes.create_string_buffer(100)
        assert self._called("msgrcv", self.queue, text, 64, 0, IPC_NO_WAIT) == len(SECRET)
        assert text.raw[8:].rstrip(b"\0").decode() == SECRET
        with pytest.raises(OSError, match=os.strerror(errno.ENOMSG)):
            self._called("msgrcv", self.queue, text, 64, 0, IPC_NO_WAIT)

    def remove(self) -> None:
        for name, *arguments in (
            ("msgctl", self.queue, IPC_REMOVE, None),
            ("semctl", self.semaphore, 0, IPC_REMOVE),
            ("mq_unlink", self.name.encode()),
        ):
            with contextlib.suppress(OSError):
                self._called(name, *arguments)

    def _called(self, name: str, *arguments: object) -> int:
        result: int = getattr(self._libc, name)(*arguments)
        if result == -1:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
        return result


@pytest.fixture
def host_objects() -> Iterator[HostObjects]:
    objects = HostObjects()
    try:
        yield objects
    finally:
        objects.remove()


TAKE_ONE = struct.pack("Hhh", 0, -1, IPC_NO_WAIT)
ON_HOST_OBJECTS = {
    "message-read": "c('msgrcv', {0.queue}, text, 64, 0, 0o4000)",
    "message-copied": "c('msgrcv', {0.queue}, text, 64, 0, 0o44000)",
    "message-added": "c('msgsnd', {0.queue}, struct.pack('ll', 1, 1), 8, 0o4000)",
    "queue-seen": "c('msgctl', {0.queue}, 2, text)",
    "queue-removed": "c('msgctl', {0.queue}, 0, None)",
    "semaphore-read": "c('semctl', {0.semaphore}, 0, 12)",
    "semaphore-set": "c('semctl', {0.semaphore}, 0, 16, 0)",
    "semaphore-removed": "c('semctl', {0.semaphore}, 0, 0)",
    "semaphore-taken": f"c('semop', {{0.semaphore}}, {TAKE_ONE!r}, 1)",
    "semaphore-waited-for": f"c('semtimedop', {{0.semaphore}}, {TAKE_ONE!r}, 1, None)",
    "posix-queue-opened": "c('mq_open', {0.name!r}.encode(), 2)",
    "posix-queue-removed": "c('mq_unlink', {0.name!r}.encode())",
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", some(ON_HOST_OBJECTS))
def test_what_lies_in_the_hosts_ipc_namespace_stays_there(
    kind: str, name: str, arenas: Arenas, host_objects: HostObjects
) -> None:
    call = ON_HOST_OBJECTS[name].format(host_objects)
    _, called, text = arenas(kind).attack("text = ctypes.create_string_buffer(999)", call, "text.raw.strip(bytes(1))")
    host_objects.assert_untouched()
    refused = "'EACCES'" if name == "posix-queue-removed" else "'EPERM'"  # the C library renames this one
    assert called.output.strip() == refused
    assert text.output == "b''\n"
