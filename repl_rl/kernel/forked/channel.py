"""The host's end of a session's private channel: one request out, one reply in, each a length and a JSON text.

The other end is in the hands of code that a model typed. Whatever comes from there that is not the reply to the request
just made ends the channel, and with it the session: a reply carries a number that was drawn for its request, so that
none can be laid up for later ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import struct
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct("!I")
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 4 << 20
_NUMBER_BYTES = 8
_READY = "ready"


class PrivateChannel:
    """Belongs to one event loop. `has_ended` stays True once nothing more can come."""

    def __init__(self, end: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = end
        self._socket.setblocking(False)
        self._received = bytearray()
        self._random = b""
        self._expected: str | None = _READY
        self._reply: dict[str, Any] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.has_ended = False
        self._loop.add_reader(end.fileno(), self._on_readable)

    async def ready(self, timeout_s: float) -> bool:
        """Whether the session came up in time."""
        return await self.reply(timeout_s) is not None

    async def ask(
        self, request: dict[str, Any], timeout_s: float, descriptors: Sequence[int] = ()
    ) -> dict[str, Any] | None:
        """Send a request and return its reply; None if that takes too long or the channel has ended."""
        self._reply = None
        self._expected = self._draw_number()
        text = json.dumps({"id": self._expected, **request}).encode()
        message = _HEADER.pack(len(text)) + text
        deadline = self._loop.time() + timeout_s
        try:
            sent = socket.send_fds(self._socket, [message], descriptors) if descriptors else self._socket.send(message)
            if sent < len(message):
                async with asyncio.timeout_at(deadline):
                    await self._loop.sock_sendall(self._socket, message[sent:])
        except TimeoutError:
            return None
        except OSError:
            self._end()
            return None
        return await self.reply(deadline - self._loop.time())

    async def reply(self, timeout_s: float) -> dict[str, Any] | None:
        """Go on waiting for the reply to the last request."""
        if self._reply is None and not self.has_ended:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout_s, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._reply

    def look(self) -> bool:
        """Whether the channel has ended, seen at once."""
        if not self.has_ended:
            self._on_readable()
        return self.has_ended

    def close(self) -> None:
        self._end()
        self._socket.close()

    def _draw_number(self) -> str:
        """From random bytes that are got many at a time: each system call gives way to the other threads."""
        if not self._random:
            self._random = secrets.token_bytes(_NUMBER_BYTES * 64)
        number, self._random = self._random[:_NUMBER_BYTES], self._random[_NUMBER_BYTES:]
        return number.hex()

    def _on_readable(self) -> None:
        try:
            chunk = self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._received += chunk
        if not chunk or not self._take_messages():
            self._end()

    def _take_messages(self) -> bool:
        """False on anything that is not what was asked for."""
        while len(self._received) >= _HEADER.size:
            size = _HEADER.size + _HEADER.unpack_from(self._received)[0]
            if size > _MOST_BYTES:
                return False
            if len(self._received) < size:
                break
            message = _parsed(self._received[_HEADER.size : size])
            del self._received[:size]
            if message is None or self._expected is None or message.get("id") != self._expected:
                return False
            self._expected, self._reply = None, message
            self._wake()
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_reader(self._socket.fileno())
        self._wake()


def _parsed(text: bytearray) -> dict[str, Any] | None:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
