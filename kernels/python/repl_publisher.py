"""What Jupyter's clients are told of a cell while it runs: its messages on the iopub channel, within limits.

The code of the cell runs in this process and may do to these messages what it likes. The limits keep what is printed or
displayed in a loop from drowning its clients; a client that is to be safe from a session has to be so by itself.
"""

from __future__ import annotations

import codecs
import json
import os
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MOST_TEXT_BYTES = 1_000_000
_MOST_DISPLAY_BYTES = 16 << 20
_MOST_MESSAGES = 10_000
"""Each of one cell."""
_PENDING_BYTES = 1 << 16
_PENDING_S = 0.2
"""How much text waits for more, and for how long: a line printed in a loop is not a message."""


class Publisher:
    """Publishes for one cell. `send(msg_type, content)` sends a message.

    It listens to the session's screen, from any thread. What it is told in a process that the cell has forked is
    dropped: the sockets are the parent's.
    """

    def __init__(self, send: Callable[[str, dict[str, Any]], None]) -> None:
        self._send = send
        self._pid = os.getpid()
        self._turn = threading.RLock()  # a finalizer of the session may print while a message is put together
        self._name = "stdout"
        self._pending = bytearray()
        self._pending_since = time.monotonic()
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._text_room = _MOST_TEXT_BYTES
        self._display_room = _MOST_DISPLAY_BYTES
        self._messages_room = _MOST_MESSAGES
        self._omitted_bytes = 0
        self._omitted_messages = 0

    def write(self, name: str, chunk: bytes) -> None:
        """Text of a stream, "stdout" or "stderr"."""
        if os.getpid() != self._pid:
            return
        with self._turn:
            kept = chunk[: self._text_room]
            self._text_room -= len(kept)
            self._omitted_bytes += len(chunk) - len(kept)
            if name != self._name:
                self.flush()
                self._name = name
            self._pending += kept
            self.flush_in_time()

    def flush_in_time(self) -> None:
        """Publish the text that has waited long enough, or is long enough."""
        with self._turn:
            waited_s = time.monotonic() - self._pending_since
            if len(self._pending) >= _PENDING_BYTES or waited_s >= _PENDING_S:
                self.flush()

    def flush(self) -> None:
        """Publish the text that waits: what comes next must not overtake it."""
        with self._turn:
            text = self._decoders[self._name].decode(bytes(self._pending))
            self._pending.clear()
            self._pending_since = time.monotonic()
            if text:
                self._publish("stream", {"name": self._name, "text": text})

    def omit(self, count: int) -> None:
        """Bytes of text that have been left out before they came here."""
        self._omitted_bytes += count

    def error(self, fields: dict[str, Any]) -> None:
        """The cell's error: `ename`, `evalue`, and its `traceback` in lines."""
        with self._turn:
            self.flush()
            self._send("error", fields)

    def result(self, data: dict[str, Any], metadata: dict[str, Any] | None, execution_count: int) -> None:
        """The value of the cell's last expression."""
        self._show("execute_result", data, metadata, execution_count=execution_count)

    def display(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        transient: dict[str, Any] | None = None,
        is_update: bool = False,
    ) -> None:
        """Something to display, or what a display that is identified in `transient` shows from now on."""
        msg_type = "update_display_data" if is_update else "display_data"
        self._show(msg_type, data, metadata, transient=transient or {})

    def clear_output(self, wait: bool = False) -> None:
        """Have what the cell has shown removed: at once, or when there is something in its place."""
        self.flush()
        self._publish("clear_output", {"wait": bool(wait)})

    def end(self) -> None:
        """Publish what is left, and say what was left out."""
        with self._turn:
            self.flush()
            left_out = []
            if self._omitted_bytes:
                left_out.append(f"{self._omitted_bytes} bytes of text")
            if self._omitted_messages:
                left_out.append(f"{self._omitted_messages} messages")
            if left_out:
                text = f"[the limits on what a cell may show left out {' and '.join(left_out)}]\n"
                self._send("stream", {"name": "stderr", "text": text})

    def _show(self, msg_type: str, data: dict[str, Any], metadata: dict[str, Any] | None, **more: object) -> None:
        content = {"data": data, "metadata": metadata or {}, **more}
        size = len(json.dumps(content, default=_as_text))  # raises what can't be sent here, in the code that shows it
        with self._turn:
            if size > self._display_room:
                self._omitted_messages += 1
                return
            self._display_room -= size
            self.flush()
            self._publish(msg_type, content)

    def _publish(self, msg_type: str, content: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            return
        with self._turn:
            if self._messages_room == 0:
                self._omitted_messages += 1
                return
            self._messages_room -= 1
            self._send(msg_type, content)


class Silence:
    """In the place of a publisher for a request that asks for silence."""

    def flush_in_time(self) -> None:
        pass

    write = flush = omit = error = result = display = clear_output = end = lambda self, *_, **__: None


def _as_text(value: object) -> str:
    """How jupyter_client writes bytes, in base64: about as long."""
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"Object of type {type(value).__name__} can't be sent to a client")
