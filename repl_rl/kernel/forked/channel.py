"""The host's end of a session's private channel: one request out, one reply in, each a length and a JSON text.

While a request runs, its calls of the host's tools may come in and are answered (`LineCalls`); their messages are
documented in kernels/python/repl_host.py. The other end is controlled by code that a model typed. A message from there
that is neither such a call nor the reply to the current request ends the channel, and with it the session. Calls and
the reply carry a random number drawn for the request, so that none can be prepared for a later one.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Self

from repl_rl.kernel.border import MOST_BYTES, BorderError, parsed
from repl_rl.kernel.results import HostCall, HostCalls, HostReply
from repl_rl.utils.user_code import message_of

_HEADER = struct.Struct("!I")
_CHUNK_BYTES = 1 << 16
_NUMBER_BYTES = 8
_READY = "ready"
_STALL_S = 0.5
"""A loop that is so late is taken to have stood still."""

_MOST_CALLS = 1_000
_MOST_REFUSED = 10
_MOST_CALL_BYTES = (1 << 20) + 64
"""Of one call: a little more than the session itself lets through (repl_host.py)."""
_MOST_LINE_BYTES = 32 << 20
"""Of all calls of a line."""
_MOST_CALL_NUMBER = 1 << 53
_NAME_CHARS = 200
_NO_HOST = "nothing on the host answers calls in this line"
_GIVEN_UP = "the call was given up before the host was done"

_log = logging.getLogger(__name__)

OnCall = Callable[[object, int], None]


class Countdown:
    """Calls `at_end` when its seconds have passed, not counting those for which it stood still. Belongs to one loop.

    If this process stood still as they ran out (a paused machine, a suspended laptop), so did the session: then that
    time is given back, once and at most as much as there was.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, at_end: Callable[[], None]) -> None:
        self._loop = loop
        self._at_end = at_end
        self._timer: asyncio.TimerHandle | None = None
        self._stands_still = False
        self._left_s: float | None = None
        """Of one that was started and stands still."""
        self._most_given_back_s = 0.0

    def start(self, seconds: float) -> None:
        """It waits to begin if it has been told to stand still."""
        if self._stands_still:
            self._left_s = seconds
        else:
            self._most_given_back_s = seconds
            self._timer = self._loop.call_later(seconds, self._over)

    def stand_still(self) -> None:
        self._stands_still = True
        if self._timer is not None:
            self._left_s = max(0.0, self._timer.when() - self._loop.time())
            self._timer.cancel()
            self._timer = None

    def go_on(self) -> None:
        """Does nothing unless it stands still."""
        self._stands_still = False
        left_s = self._left_s
        if left_s is not None:
            self._left_s = None
            self.start(left_s)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._left_s = None

    def _over(self) -> None:
        assert self._timer is not None
        late_s = self._loop.time() - self._timer.when()
        if late_s > _STALL_S and self._most_given_back_s:
            self._timer = self._loop.call_later(min(late_s, self._most_given_back_s), self._over)
            self._most_given_back_s = 0.0
        else:
            self._at_end()


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
        self._on_call: OnCall | None = None
        self._unsent = bytearray()
        self._is_full = False
        self.countdown = Countdown(self._loop, self._wake)
        self.has_ended = False
        self.descriptors: list[int] = []
        """What came with the first message; whoever takes one closes it."""
        self._loop.add_reader(end.fileno(), self._on_readable)

    async def ask(
        self, request: dict[str, Any], timeout_s: float, descriptors: Sequence[int] = (), on_call: OnCall | None = None
    ) -> dict[str, Any] | None:
        """Send a request and return its reply; None if that takes too long or the channel has ended.

        `on_call` is called with each call that the session makes to the host meanwhile, and with its size in bytes; it
        raises BorderError if that is not a call. Without `on_call`, the session may not call. `countdown` measures the
        time, and can be made to stand still.
        """
        self._reply = None
        self._on_call = on_call
        if not self._random:  # many at a time, because each system call yields to other threads
            self._random = secrets.token_bytes(_NUMBER_BYTES * 64)
        self._expected = self._random[:_NUMBER_BYTES].hex()
        self._random = self._random[_NUMBER_BYTES:]
        self._send(json.dumps({"id": self._expected, **request}).encode(), descriptors)
        return await self.reply(timeout_s)

    def answer(self, message: dict[str, Any]) -> None:
        """Send a message that is not a request. Raises TypeError, ValueError or RecursionError if it can't be sent.

        A session that does not read its answers loses its channel.
        """
        text = json.dumps(message).encode()
        if len(text) > MOST_BYTES:
            raise ValueError(f"{len(text)} bytes are more than the {MOST_BYTES} that a session takes")
        if len(self._unsent) > MOST_BYTES:
            self._end()
        self._send(text)

    async def reply(self, timeout_s: float) -> dict[str, Any] | None:
        """Go on waiting for the reply to the last request; before the first, for the session to come up."""
        if self._reply is None and not self.has_ended:
            self._waiter = self._loop.create_future()
            self.countdown.start(timeout_s)
            try:
                await self._waiter
            finally:
                self.countdown.cancel()
                self._waiter = None
        return self._reply

    def look(self) -> bool:
        """Whether the channel has ended, by a look at the socket now."""
        if not self.has_ended:
            self._on_readable()
        return self.has_ended

    def close(self) -> None:
        self._end()
        self._socket.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def _send(self, text: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send what there is room for now, and the rest later, in order."""
        self._unsent += _HEADER.pack(len(text)) + text
        self._flush(descriptors)

    def _flush(self, descriptors: Sequence[int] = ()) -> None:
        if self.has_ended:
            return
        try:
            if descriptors:
                sent_bytes = socket.send_fds(self._socket, [self._unsent], descriptors)
            else:
                sent_bytes = self._socket.send(self._unsent)
            del self._unsent[:sent_bytes]
        except BlockingIOError:
            pass
        except OSError:
            self._end()
            return
        if self._unsent and not self._is_full:
            self._loop.add_writer(self._socket.fileno(), self._flush)
        elif self._is_full and not self._unsent:
            self._loop.remove_writer(self._socket.fileno())
        self._is_full = bool(self._unsent)

    def _on_readable(self) -> None:
        try:
            if self._expected == _READY:
                chunk, descriptors, _, _ = socket.recv_fds(self._socket, _CHUNK_BYTES, 1)
                self.descriptors += descriptors
            else:
                chunk = self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._received += chunk
        try:
            self._take_messages()
        except Exception as error:  # noqa: BLE001 - a message may be made to break whatever reads it
            # As text: whoever keeps log records would keep the message, which the exception's frames hold.
            if isinstance(error, BorderError):
                reason = str(error)
            else:
                reason = f"its message can't be read ({type(error).__name__})"
            _log.warning("a session is ended: %s", reason)
            self._end()
        if not chunk:
            self._end()

    def _take_messages(self) -> None:
        """Handle the messages received. Raises BorderError on one that was not asked for."""
        while len(self._received) >= _HEADER.size:
            (text_bytes,) = _HEADER.unpack_from(self._received)
            size = _HEADER.size + text_bytes
            if size > _HEADER.size + MOST_BYTES:
                raise BorderError("a message is too long")
            if len(self._received) < size:
                break
            message = parsed(self._received[_HEADER.size : size])
            del self._received[:size]
            if self._expected is None or message.get("id") != self._expected:
                raise BorderError("a message was not asked for")
            if "call" in message:
                if self._on_call is None:
                    raise BorderError("a call comes where none may")
                self._on_call(message["call"], size)
                continue
            self._reply = message
            self._expected = None
            self._on_call = None
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_reader(self._socket.fileno())
                self._loop.remove_writer(self._socket.fileno())
        self._wake()


class LineCalls:
    """Answers the calls that one line makes to the host, one at a time. Leaving this context cancels a call under way.

    Each call is answered once: with what the host returns, or with an error if the line ends or makes another call
    before the host is done. The host's work on it is then cancelled, and work on the next begins when it has ended.
    """

    def __init__(self, host: HostCalls | None, channel: PrivateChannel, turn: asyncio.Lock) -> None:
        """`turn` is held while the host works on a call of this session, also on one that the session has given up."""
        self._host = host
        self._channel = channel
        self._turn = turn
        self._refusal = None if host is not None else _NO_HOST
        self._calls = 0
        self._refused = 0
        self._bytes = 0
        self._open: int | None = None
        """The number of the call that has had no answer."""
        self._work: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._give_up()
        self._channel.countdown.go_on()

    def refuse(self, why: str) -> None:
        """Answer calls with an error from now on."""
        self._refusal = why
        self._give_up()

    def take(self, message: object, size_bytes: int) -> None:
        """Begin to answer a call. The line's time stands still until it is answered. Raises BorderError if it is not a
        call, or comes when too many have been refused."""
        self._bytes += size_bytes
        match message:
            case {"number": int(number), "name": str(name), "args": list(args), "kwargs": dict(kwargs)} if (
                0 <= number < _MOST_CALL_NUMBER and len(name) <= _NAME_CHARS and size_bytes <= _MOST_CALL_BYTES
            ):
                call = HostCall(name, tuple(args), kwargs)
            case _:
                raise BorderError("a call has another form")
        self._give_up()
        self._calls += 1
        refusal = self._refusal
        if self._calls > _MOST_CALLS:
            refusal = f"one line may call the host {_MOST_CALLS} times"
        if self._bytes > _MOST_LINE_BYTES:
            refusal = f"the calls of one line may have {_MOST_LINE_BYTES} bytes together"
        self._open = number
        if refusal is not None:
            self._refused += 1
            if self._refused > _MOST_REFUSED:
                raise BorderError("a line goes on calling the host after it was refused")
            self._settle(number, HostReply(error_name="RuntimeError", error_message=refusal))
            return
        self._channel.countdown.stand_still()
        self._work = asyncio.create_task(self._answer(number, call))

    async def _answer(self, number: int, call: HostCall) -> None:
        reply = HostReply(error_name="RuntimeError", error_message=_GIVEN_UP)
        try:
            assert self._host is not None
            async with self._turn:
                reply = await self._host(call)
        except Exception as error:  # noqa: BLE001 - a tool is anybody's code
            _log.warning("a host tool, %s, failed outside of what it answers for", call.name, exc_info=error)
            reply = HostReply(error_name=type(error).__name__, error_message=message_of(error))
        finally:
            self._settle(number, reply)

    def _give_up(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work = None
        if self._open is not None:
            self._settle(self._open, HostReply(error_name="RuntimeError", error_message=_GIVEN_UP))

    def _settle(self, number: int, reply: HostReply) -> None:
        """Send the answer, unless the call has had one."""
        if self._open != number:
            return
        self._open = None
        answer: dict[str, Any] = {"value": reply.value}
        if reply.error_name is not None:
            answer = {"error_name": reply.error_name, "error_message": reply.error_message}
        try:
            self._channel.answer({"answer": number, **answer})
        except (TypeError, ValueError, RecursionError) as error:
            message = f"what the tool returned can't be sent as JSON: {error}"
            self._channel.answer({"answer": number, "error_name": type(error).__name__, "error_message": message})
        self._channel.countdown.go_on()
