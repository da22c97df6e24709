"""Calls of the host's tools by the line that runs, over the session's channel.

    {"id": the line's request, "call": {"number", "name", "args", "kwargs"}}
    {"answer": number, "value"}  or  {"answer": number, "error_name", "error_message"}

One call at a time: threads wait for each other. The host answers each call once, in the order of the calls, and those
of a line before the next request. A call whose line ends first is answered with an error, and so is one that was given
up in favour of another one; an answer that nobody waits for any more is dropped by whoever reads next.

SIGINT may come at any time, also while a line waits here. It is let through while nothing has been read, and deferred
while a message is being read or sent, so that the channel stays in step. Not covered: other signals whose handlers
raise while a message is being read or sent; they break the channel, which ends the session.
"""

from __future__ import annotations

import builtins
import itertools
import re
from _signal import SIGINT, signal
from _thread import get_ident
from os import _exit, getpid

from repl_channel import frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from repl_channel import SessionChannel
    from repl_fork import Handler

_MOST_BYTES = 1 << 20
_MOST_CALLS = 1_000
_MARKS, _MOST_MARKS, _MOST_DEPTH, _NUMBER_CHARS = b'[{,:"\\', 120_000, 100, 4_300
"""As in repl_rl/kernel/border.py: the host takes no call of more parts, of deeper ones, or with longer numbers."""
_STRINGS, _LONG_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*"'), re.compile(rb"[0-9]{%d}" % (_NUMBER_CHARS + 1))
_STEPS = {**dict.fromkeys(b"[{", 1), **dict.fromkeys(b"]}", -1)}


class HostLine:
    """The way to the host for the line that runs. Belongs to the process and the thread that make it."""

    def __init__(self, channel: SessionChannel) -> None:
        self._channel = channel
        self._pid, self._thread = getpid(), get_ident()
        self._request: str | int | None = None
        self._numbers = itertools.count(1)
        self._calls = 0

    def begin(self, request: str | int) -> None:
        """Calls are those of this request from now on."""
        self._request = request
        self._calls = 0

    def end(self, result: dict[str, Any]) -> None:
        """Send the request's result; no call of it comes after that."""
        with self._channel.sending:
            self._request = None
            self._channel.send(result)

    def call(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """What the host's tool returns. Raises what it raised, TypeError or ValueError for arguments that can't be
        sent, and RuntimeError where no line runs and in children of the session."""
        __tracebackhide__ = True
        if getpid() != self._pid:
            raise RuntimeError(f"{name}() runs on the host, and a child process of the session can't call it")
        self._calls += 1
        if self._calls > _MOST_CALLS:
            raise RuntimeError(f"one line may call the host {_MOST_CALLS} times")
        request, number = self._request, next(self._numbers)
        if request is None:  # whoever waits for the next line has the turn
            raise _over(name)
        message = _message(request, number, name, args, kwargs)
        with self._channel.turn, _Seal(get_ident() == self._thread) as seal:
            self._send(name, request, message)
            answer = self._answer(number, seal)
        if answer.get("error_name") is not None:
            raise _error(answer["error_name"], answer.get("error_message") or "")
        return answer.get("value")

    def _send(self, name: str, request: str | int, message: bytes) -> None:
        with self._channel.sending:
            if request != self._request:
                raise _over(name)
            self._channel.send_frame(message)

    def _answer(self, number: int, seal: _Seal) -> dict[str, Any]:
        while True:
            seal.wait(self._channel)
            message = self._channel.read()
            if message is None:
                _exit(0)
            if message.get("answer") == number:
                return message


class _Seal:
    """While this is open in the main thread, SIGINT takes effect only in `wait`, and is deferred at other times.

    Other threads are never interrupted.
    """

    def __init__(self, is_main: bool) -> None:
        self._is_main = is_main
        self._is_waiting = self._is_put_off = False
        self._handler: Handler = None

    def __enter__(self) -> _Seal:
        if self._is_main:
            self._handler = signal(SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._is_main:
            signal(SIGINT, self._handler)
        if self._is_put_off:
            self._interrupt()

    def wait(self, channel: SessionChannel) -> None:
        """Wait until the channel can be read. Reads nothing itself, so an interrupt may end it."""
        self._is_waiting = True
        try:
            if self._is_put_off:
                self._is_put_off = False
                self._interrupt()
            channel.wait()
        finally:
            self._is_waiting = False

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_waiting:
            self._interrupt()
        else:
            self._is_put_off = True

    def _interrupt(self) -> None:
        """Call the line's own handler, which raises KeyboardInterrupt unless the line has set another one."""
        if callable(self._handler):
            self._handler(SIGINT, None)


def _over(name: str) -> RuntimeError:
    return RuntimeError(f"{name}() runs on the host, and the line that calls it is over")


def _message(request: str | int, number: int, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
    call = {"number": number, "name": name, "args": args, "kwargs": kwargs}
    try:
        message = frame({"id": request, "call": call})
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{name}() runs on the host and takes what JSON can hold: {error}") from None
    if len(message) > _MOST_BYTES:
        raise ValueError(f"{name}() runs on the host and takes {_MOST_BYTES} bytes; its arguments have {len(message)}")
    if len(message) > _MOST_MARKS and sum(map(message.count, _MARKS)) > _MOST_MARKS:
        raise ValueError(f"{name}() runs on the host, and its arguments have too many parts: send fewer at a time")
    if len(message) > _NUMBER_CHARS or sum(map(message.count, (b"[", b"{"))) > _MOST_DEPTH:
        bare = _STRINGS.sub(b"", message[4:])  # without its length
        if _LONG_NUMBER.search(bare):
            raise ValueError(f"{name}() runs on the host and takes numbers of {_NUMBER_CHARS} digits; send it as text")
        if max(itertools.accumulate(map(_STEPS.get, bare, itertools.repeat(0)))) > _MOST_DEPTH:
            raise ValueError(f"{name}() runs on the host, and its arguments are nested too deeply")
    return message


def _error(name: str, message: str) -> Exception:
    """The builtin exception of that name if there is one that shows the message as it is, else one made for it."""
    kind = vars(builtins).get(name)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(name, (Exception,), {"__module__": "builtins"})
    try:
        error: Exception = kind(message)
    except TypeError:
        error = type(name, (Exception,), {"__module__": "builtins"})(message)
    if str(error) != message:
        error = type(name, (kind,), {"__module__": "builtins", "__str__": lambda self: self.args[0]})(message)
    return error
