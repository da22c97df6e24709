"""A Jupyter kernel of any language behind a session's walls: its program is a guest that knows nothing of them.

This process puts up the walls (confinement.py), starts the guest and stands between it and the host. The guest binds
its sockets in its own /tmp. The host's were bound on the other side and inherited, so that the guest sees no folder of
the host. Bytes are carried from one to the other and never read. Nothing here is trusted by the host: what the guest's
code does to this process, it does to its own session.

The boot record is that of a fork server's walls (confinement.py), and

    argv         the guest's command; {connection_file} is replaced
    environment  all of its environment
    connection   the contents of the Jupyter connection file
    sockets      listening descriptors by channel
    uid          the ordinary user to become, or null
    lifeline     a descriptor that hangs up when the owner of the kernel is gone

SIGINT is passed on to the guest and to what it has started in its process group.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time

from confinement import Walls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_FOLDER = "/tmp/.jupyter-kernel"
_CHUNK_BYTES = 1 << 16
_MOST_WAITING_BYTES = 4 << 20
"""What one direction of a connection may hold; then it is not read from, and the guest's queues fill."""
_LOOK_S = 0.02
_LAST_WORDS_S = 1.0


def be_a_guest(boot: dict[str, Any]) -> NoReturn:
    """Put up the walls, run the guest, and end with its exit status. Never returns."""
    walls = Walls(boot)
    _, listener = walls.enter({"uid": boot["uid"], "tmp": None}, os.getppid())
    if listener is not None:
        os.close(listener)  # nobody answers: a guest is not forked
    os.mkdir(_FOLDER, 0o700)
    connection_file = f"{_FOLDER}/connection.json"
    connection = boot["connection"] | {"transport": "ipc", "ip": f"{_FOLDER}/kernel"}
    with open(connection_file, "w", encoding="utf-8") as file:
        json.dump(connection, file)
    relay = _Relay(boot["sockets"], connection)
    try:
        argv = [word.replace("{connection_file}", connection_file) for word in boot["argv"]]
        guest = subprocess.Popen(argv, env=boot["environment"], cwd="/tmp", start_new_session=True)
    except OSError as error:
        print(f"{boot['argv'][0]}: {error.strerror}", flush=True)
        os._exit(127)
    signal.signal(signal.SIGINT, lambda *_: _interrupt(guest.pid))
    relay.run(guest.pid, boot["lifeline"])
    status = guest.wait()
    os._exit(status if status >= 0 else 128 - status)


def _interrupt(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGINT)


class _Relay:
    """Carries bytes between the host's connections and the guest's sockets."""

    def __init__(self, sockets: dict[str, int], connection: dict[str, Any]) -> None:
        self._selector = selectors.DefaultSelector()
        self._waiting: list[tuple[socket.socket, tuple[str, ...]]] = []
        """Connections of the host whose guest's socket is not there yet: (connection, its path but for one sign)."""
        self._ends: dict[socket.socket, tuple[socket.socket, bytearray]] = {}
        """Each end of a connection: its other end and the bytes that wait to be sent to it."""
        for channel, descriptor in sockets.items():
            server = socket.socket(fileno=descriptor)
            server.setblocking(False)
            names = tuple(f"{connection['ip']}{sign}{connection[f'{channel}_port']}" for sign in "-:")
            self._selector.register(server, selectors.EVENT_READ, names)

    def run(self, pid: int, lifeline: int | None) -> None:
        """Until the guest ends, or the owner of the kernel."""
        end = os.pidfd_open(pid)
        self._selector.register(end, selectors.EVENT_READ, "end")
        if lifeline is not None:
            self._selector.register(lifeline, selectors.EVENT_READ, "lifeline")
        deadline: float | None = None
        while deadline is None or (time.monotonic() < deadline and self._ends):
            timeout_s = _LOOK_S if self._waiting or deadline is not None else None
            for key, events in self._selector.select(timeout_s):
                if key.data == "lifeline":
                    os._exit(1)
                elif key.data == "end":
                    self._selector.unregister(end)
                    deadline = time.monotonic() + _LAST_WORDS_S
                elif key.data is not None:
                    self._accept(key.fileobj, key.data)  # type: ignore[arg-type]  # a socket
                elif key.fileobj in self._ends:
                    self._carry(key.fileobj, events)
            self._waiting = [each for each in self._waiting if not self._joined(*each)]

    def _accept(self, server: socket.socket, names: tuple[str, ...]) -> None:
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            connection.setblocking(False)
            self._waiting.append((connection, names))

    def _joined(self, connection: socket.socket, names: tuple[str, ...]) -> bool:
        """Whether a connection of the host has been joined to one of the guest's."""
        for name in names:
            guest = socket.socket(socket.AF_UNIX)
            try:
                guest.connect(name)
            except OSError:
                guest.close()
                continue
            guest.setblocking(False)
            for one, other in ((connection, guest), (guest, connection)):
                self._ends[one] = (other, bytearray())
                self._selector.register(one, selectors.EVENT_READ)
            return True
        return False

    def _carry(self, end: socket.socket, events: int) -> None:
        other, to_send = self._ends[end]
        try:
            if events & selectors.EVENT_WRITE and to_send:
                del to_send[: end.send(to_send)]
            waiting = self._ends[other][1]
            if events & selectors.EVENT_READ and len(waiting) < _MOST_WAITING_BYTES:
                data = end.recv(_CHUNK_BYTES)
                if not data:
                    raise ConnectionResetError
                waiting += data
                with contextlib.suppress(BlockingIOError):
                    del waiting[: other.send(waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._close(end, other)
            return
        self._watch(end)
        self._watch(other)

    def _watch(self, end: socket.socket) -> None:
        other, to_send = self._ends[end]
        reads = len(self._ends[other][1]) < _MOST_WAITING_BYTES
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if to_send else 0)
        known = self._selector.get_map().get(end)
        if events and known is None:
            self._selector.register(end, events)
        elif events and known.events != events:  # type: ignore[union-attr]  # it is known here
            self._selector.modify(end, events)
        elif not events and known is not None:
            self._selector.unregister(end)

    def _close(self, end: socket.socket, other: socket.socket) -> None:
        """Both ends go together, once the one that is left has what was meant for it."""
        waiting = self._ends[other][1]
        with contextlib.suppress(OSError):
            other.setblocking(True)
            other.settimeout(_LAST_WORDS_S)
            other.sendall(waiting)
        for each in (end, other):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each)
            self._ends.pop(each, None)
            each.close()
