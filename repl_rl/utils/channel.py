"""Pickled messages over a socket pair, between a process and one that it has started.

Messages sent in one turn of the event loop go out together. Unpickling can run code, so both ends have to trust each
other. What a sandboxed kernel prints gets here only as the text of a trajectory.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

_HEADER = struct.Struct("!Q")


class Frames:
    """Turns bytes, as they come, into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """The messages that `chunk` completes."""
        self._buffer += chunk
        while len(self._buffer) >= _HEADER.size:
            (body_bytes,) = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + body_bytes
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield from pickle.loads(body)


def frame(messages: list[Any]) -> bytes:
    """Messages as they go over the socket."""
    body = pickle.dumps(messages, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(body)) + body


class Channel(asyncio.Protocol):
    """One end. Belongs to one event loop; `on_end` is called once nothing more can come."""

    def __init__(self, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._frames = Frames()
        self._outbox: list[Any] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, end: socket.socket, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> Channel:
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(lambda: cls(on_message, on_end), sock=end)
        return channel

    def send(self, message: Any) -> None:
        """Send a message, together with the others of this turn of the event loop."""
        self._outbox.append(message)
        if len(self._outbox) == 1:
            self._loop.call_soon(self.flush)

    def close(self) -> None:
        """Send what is waiting, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self._on_message(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_end()

    def flush(self) -> None:
        """Send what is waiting now."""
        messages = self._outbox
        self._outbox = []
        if messages and self._transport is not None:
            self._transport.write(frame(messages))
