"""Attacks on siblings and on the network: what others have laid down, and every door that could stand open."""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel.attacks.arena import BOTH, GONE, MARK, OK, TOOLS
from kernel.attacks.conftest import Arenas

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
@pytest.mark.parametrize("name", SIBLINGS)
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
@pytest.mark.parametrize("name", CALLS)
def test_no_door_of_the_host_can_be_reached(kind: str, name: str, arenas: Arenas, tmp_path: Path) -> None:
    with listening(tmp_path) as doors:
        [called] = arenas(kind).attack(CALLS[name].format(address=doors[name].getsockname()))
        with selectors.DefaultSelector() as selector:
            for door in doors.values():
                selector.register(door, selectors.EVENT_READ)
            assert selector.select(0.01) == []
    failed = "'(EAFNOSUPPORT|ENOENT|ECONNREFUSED|EPERM|EACCES)'"
    assert re.fullmatch(rf"{failed}|\({failed}, {failed}\)", called.output.strip()), called.output


OTHER_SOCKETS = {
    "inet6": "10, 1", "raw": "2, 3", "packet": "17, 3", "netlink": "16, 3", "vsock": "40, 1", "crypto": "38, 5",
    "bluetooth": "31, 3", "can": "29, 3", "tipc": "30, 1", "xdp": "44, 3",
}  # fmt: skip


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("family", OTHER_SOCKETS)
def test_no_other_family_of_sockets_is_there(kind: str, family: str, arenas: Arenas) -> None:
    [made] = arenas(kind).attack(f"tried(socket.socket, {OTHER_SOCKETS[family]})")
    assert made.output == "'EAFNOSUPPORT'\n"
