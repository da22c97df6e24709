"""What one line calls of the host: one call at a time, answered over the session's channel.

The messages are those of kernels/python/repl_host.py. Each call is answered once: by what the host returns, or by an
error where the line ended, or called something else, before the host was done; that is cancelled then.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any, Self

from repl_rl.kernel.forked.channel import PrivateChannel
from repl_rl.kernel.results import HostCall, HostCalls, HostReply

_MOST_CALLS = 1_000
_MOST_BYTES = (1 << 20) + 64
"""Of one message; what the session sends of itself is shorter by the request's number."""
_MOST_NUMBER = 1 << 53
_NAME_CHARS = 200
_NO_HOST = "nothing on the host answers calls in this line"
_GIVEN_UP = "the call was given up before the host was done"

_log = logging.getLogger(__name__)


class LineCalls:
    """The calls of one line, as a context: leaving it cancels the one that the host still works on."""

    def __init__(self, host: HostCalls | None, channel: PrivateChannel) -> None:
        self._host = host
        self._channel = channel
        self._refusal = None if host is not None else _NO_HOST
        self._calls = 0
        self._open: int | None = None
        self._work: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_up()

    def refuse(self, why: str) -> None:
        """Answer calls with an error from now on."""
        self._refusal = why
        self._give_up()

    def take(self, message: object, size_bytes: int) -> bool:
        """Begin to answer a call; False if it is none. The line's time stands still until it is answered."""
        parsed = _parsed(message) if size_bytes <= _MOST_BYTES else None
        if parsed is None:
            return False
        number, call = parsed
        self._give_up()
        self._calls += 1
        refusal = self._refusal
        if self._calls > _MOST_CALLS:
            refusal = f"one line may call the host {_MOST_CALLS} times"
        self._open = number
        if refusal is not None:
            self._settle(number, HostReply(error_name="RuntimeError", error_message=refusal))
            return True
        self._channel.countdown.stand_still()
        self._work = asyncio.create_task(self._answer(number, call))
        return True

    async def _answer(self, number: int, call: HostCall) -> None:
        reply = HostReply(error_name="RuntimeError", error_message=_GIVEN_UP)
        try:
            assert self._host is not None
            reply = await self._host(call)
        except Exception as error:  # noqa: BLE001 - a tool is anybody's code
            _log.warning("a host tool, %s, failed outside of what it answers for", call.name, exc_info=error)
            reply = HostReply(error_name=type(error).__name__, error_message=str(error))
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
        try:
            self._channel.answer({"answer": number, **_fields(reply)})
        except (TypeError, ValueError, RecursionError) as error:
            message = f"what the tool returned can't be sent as JSON: {error}"
            self._channel.answer({"answer": number, "error_name": type(error).__name__, "error_message": message})
        self._channel.countdown.go_on()


def _fields(reply: HostReply) -> dict[str, Any]:
    if reply.error_name is None:
        return {"value": reply.value}
    return {"error_name": reply.error_name, "error_message": reply.error_message}


def _parsed(message: object) -> tuple[int, HostCall] | None:
    match message:
        case {"number": int(number), "name": str(name), "args": list(args), "kwargs": dict(kwargs)} if (
            0 <= number < _MOST_NUMBER and len(name) <= _NAME_CHARS
        ):
            return number, HostCall(name, tuple(args), kwargs)
    return None
