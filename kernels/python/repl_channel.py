"""The private channel of a session: one request in, one result out, each a length and a JSON text on a stream socket.

A request may carry descriptors (SCM_RIGHTS). The other end is `repl_rl.kernel.channel`.
"""

import json
import socket
import struct

_HEADER = struct.Struct("!I")
_CHUNK_BYTES = 1 << 16
_MOST_DESCRIPTORS = 8


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
            if size is None and len(self._received) >= _HEADER.size:
                size = _HEADER.size + _HEADER.unpack_from(self._received)[0]
                continue
            chunk, descriptors, _, _ = socket.recv_fds(self._socket, _CHUNK_BYTES, _MOST_DESCRIPTORS)
            if not chunk:
                return None
            self._received += chunk
            self._descriptors += descriptors
        request = json.loads(self._received[_HEADER.size : size])
        del self._received[:size]
        descriptors, self._descriptors = self._descriptors, []
        return request, descriptors

    def send(self, message):
        text = json.dumps(message).encode()
        self._socket.sendall(_HEADER.pack(len(text)) + text)
