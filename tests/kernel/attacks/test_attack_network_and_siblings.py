"""Attacks on siblings and on the network: what others have laid down, and every door that could stand open."""

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
import yaml
from kernel.attacks.arena import BOTH, MARK, OK, SECRET, TOOLS, Attack, cases, filled_in, some, values
from kernel.attacks.conftest import Arenas, TryOut

from repl_rl.kernel.sandbox import SandboxKind

DATA = filled_in(yaml.safe_load(Path(__file__).with_name("doors.yaml").read_text()), values())
SIBLINGS, DOORS, OBJECTS = DATA["siblings"], DATA["doors"], DATA["objects"]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", some(SIBLINGS))
def test_a_siblings_things_are_its_own(kind: str, name: str, arenas: Arenas) -> None:
    arena, sibling = arenas(kind), SIBLINGS[name]
    folder = arena.loop.run(arena.sibling.execute("import os; os.getcwd()")).output.strip()
    for cell in (TOOLS, sibling["lays"]):
        assert arena.loop.run(arena.sibling.execute(cell)).status is OK
    *_, result = arena.attack(f"folder = {folder}", sibling["looks"])
    assert re.fullmatch(sibling["sees"], result.output.strip()), result.output


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


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", some(DOORS))
def test_no_door_of_the_host_can_be_reached(kind: str, name: str, arenas: Arenas, tmp_path: Path) -> None:
    with listening(tmp_path) as doors:
        _, called = arenas(kind).attack(f"address = {doors[name].getsockname()!r}", DOORS[name])
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
FREE = 3


class HostObjects:
    """What lies in the host's IPC namespace, open to everybody: a message, a semaphore, a POSIX message queue."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.queue = self._called("msgget", 0, IPC_CREATE | 0o666)
        self.semaphore = self._called("semget", 0, 1, IPC_CREATE | 0o666)
        self.name = f"/{MARK}"
        os.close(self._called("mq_open", self.name.encode(), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666, None))
        self._called("msgsnd", self.queue, struct.pack("l", 1) + SECRET.encode(), len(SECRET), IPC_NO_WAIT)
        self._called("semctl", self.semaphore, 0, SET_VALUE, FREE)

    def assert_untouched(self) -> None:
        assert self._called("semctl", self.semaphore, 0, GET_VALUE) == FREE
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


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("name", some(OBJECTS))
def test_what_lies_in_the_hosts_ipc_namespace_stays_there(
    kind: str, name: str, arenas: Arenas, host_objects: HostObjects
) -> None:
    cells = "text = ctypes.create_string_buffer(999)", OBJECTS[name], "text.raw.strip(bytes(1))"
    *_, called, text = arenas(kind).attack(
        f"queue, semaphore, name = {host_objects.queue, host_objects.semaphore, host_objects.name}", *cells
    )
    host_objects.assert_untouched()
    refused = "'EACCES'" if name == "posix-queue-removed" else "'EPERM'"  # the C library renames this one
    assert called.output.strip() == refused
    assert text.output == "b''\n"
