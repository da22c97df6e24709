"""The private channel of a session: one request in, one result out, each a length and a JSON text on a stream socket.

A request may carry descriptors (SCM_RIGHTS). The other end is `repl_rl.kernel.forked.channel`.
"""

import array
import json
import socket
import struct

_HEADER = struct.Struct("!I")
_CHUNK_BYTES = 1 << 16
_ANCILLARY_BYTES = socket.CMSG_SPACE(8 * array.array("i").itemsize)


class Channel:
    """The session's end. Blocking; one request at a time."""

    def __init__(self, descriptor):
        self._socket = socket.socket(fileno=descriptor)
        self._received = bytearray()
        self._descriptors = []

    def fileno(self):
        return self._socket.fileno()

    def receive(self):
        """(request, its descriptors), or None once the other end is closed."""
        size = None
        while size is None or len(self._received) < size:
            chunk, ancillary, _, _ = self._socket.recvmsg(_CHUNK_BYTES, _ANCILLARY_BYTES)
            if not chunk:
                return None
            self._received += chunk
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self._descriptors += array.array("i", payload)
            if len(self._received) >= _HEADER.size:
                size = _HEADER.size + _HEADER.unpack_from(self._received)[0]
        request = json.loads(self._received[_HEADER.size : size])
        del self._received[:size]
        descriptors, self._descriptors = self._descriptors, []
        return request, descriptors

    def send(self, message):
        self._socket.sendall(frame(message))


def frame(message):
    """A message as it goes over the socket."""
    text = json.dumps(message).encode()
    return _HEADER.pack(len(text)) + text
