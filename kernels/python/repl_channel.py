"""The private channel of a session: one request in, one result out, each a length and a JSON text on a stream socket.

While a request runs there may be calls of the host's tools and their answers (repl_host.py). A request may carry
descriptors (SCM_RIGHTS). The other end is `repl_rl.kernel.forked.channel`.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from _thread import allocate_lock
from select import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_HEADER = struct.Struct("!I")
_CHUNK_BYTES = 1 << 16
# What json.dumps and json.loads do beside these costs more than these, in a process that runs one line now and then.
_encoded, _decoded = json.JSONEncoder(default=lambda value: _plain(value)).encode, json.JSONDecoder().raw_decode
_MOST_DESCRIPTORS = 253
"""In one message, by Linux's own limit."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)


class SessionChannel:
    """The session's end. Blocking. `turn` is to be held by whoever reads, `sending` by whoever sends."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._descriptors: list[int] = []
        self._readable = [descriptor]
        self.turn, self.sending = allocate_lock(), allocate_lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether something is there to be read, or the other end is closed. Any thread may wait at any time."""
        return bool(select(self._readable, (), (), timeout_s)[0])

    def read(self, waits: bool = True) -> dict[str, Any] | None:
        """The next message, None once the other end is closed. Reads no byte beyond it.

        Raises BlockingIOError if there is none and it does not wait for one.
        """
        header = self._read(_HEADER.size, 0 if waits else socket.MSG_DONTWAIT)
        text = None if header is None else self._read(_HEADER.unpack(header)[0])
        return None if text is None else _decoded(text.decode())[0]

    def descriptors(self) -> list[int]:
        """The descriptors that came since the last call."""
        descriptors, self._descriptors = self._descriptors, []
        return descriptors

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if descriptors:
            socket.send_fds(self._socket, [frame(message)], descriptors)
        else:
            self.send_frame(frame(message))

    def move_to(self, descriptor: int) -> None:
        """Go on with another socket instead of this one."""
        os.dup2(descriptor, self._socket.fileno(), inheritable=False)

    def send_frame(self, text: bytes) -> None:
        self._socket.sendall(text)

    def _read(self, size: int, flags: int = 0) -> bytearray | None:
        received = bytearray()
        while len(received) < size:
            missing = min(size - len(received), _CHUNK_BYTES)
            chunk, ancillary, _, _ = self._socket.recvmsg(missing, _ANCILLARY_BYTES, flags)
            if not chunk:
                return None
            received += chunk
            flags = 0
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self._descriptors += array.array("i", payload)
        return received


def _plain(value: Any) -> object:
    """What JSON has for an argument of a host tool. The host makes it into what the tool's annotations ask for."""
    import dataclasses
    import enum

    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, (set, frozenset)):
        return list(value)
    for name in ("isoformat", "model_dump", "tolist"):  # dates, pydantic's models, arrays and numbers of numpy
        if callable(method := getattr(value, name, None)) and not isinstance(value, type):
            return method()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def frame(message: dict[str, Any]) -> bytes:
    """A message as it goes over the socket."""
    text = _encoded(message).encode()
    return _HEADER.pack(len(text)) + text
