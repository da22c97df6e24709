"""The Jupyter messaging protocol: requests to a kernel, and what its messages say about a cell.

That is the cell's text, its answer, and how it ended.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from jupyter_client.asynchronous import AsyncKernelClient
from zmq.constants import SocketOption

from repl_rl.kernel.border import MOST_IMAGES, NAME_CHARS, BorderError, forms_of, images_of, parsed, result_of, text_of
from repl_rl.kernel.output import HeadAndTail
from repl_rl.kernel.paths import kernels_folder, program_folder
from repl_rl.kernel.results import ExecResult, ExecStatus

ANSWER_MIME = "application/vnd.repl-rl.answer+json"
OTHERS_BYTES = 64 << 20
"""The longest message of a kernel that is not ours, whose text comes in messages."""
_MOST_ANSWERS = 1_000
SYNTAX_ERRORS = frozenset({"SyntaxError", "IndentationError", "TabError", "_IncompleteInputError"})

_MOST_FRAMES = 1_000
"""The most frames of one message: a kernel's own have six, and one for each buffer."""
_FRAME_BYTES = 100
"""What a frame counts for beside what it holds."""
_MOST_MARKS = 500_000
"""The most commas, quotes and brackets of a message that may be meant to do harm: so many are parsed in 0.15 s, in
which the loop stands still."""
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ANY_FRAME = "Traceback (most recent call last)"
_SUBSCRIBED_S = 0.2
"""How long to wait for the first messages: a kernel that answers before our subscription has reached it sends none."""

_log = logging.getLogger(__name__)


def submit_cell(language: str) -> str | None:
    """A cell that defines `submit_final_answer` in a kernel built on IPython, or in IRkernel; None for other languages.

    It sends the answer as a message of a type that nothing shows, so no text can be mistaken for it. Code that sends
    such a message itself has submitted an answer, nothing more.
    """
    others = kernels_folder() / "others"
    if language == "R":
        return (others / "irkernel_answer.R").read_text(encoding="utf-8").replace("ANSWER_MIME", ANSWER_MIME)
    if language != "python":
        return None
    answer = (program_folder() / "repl_answer.py").read_text(encoding="utf-8")
    define = (others / "ipython_answer.py").read_text(encoding="utf-8")
    return f"{define}\nsubmit_final_answer = submit_final_answer({answer!r}, {ANSWER_MIME!r})\n"


def setup_cell(source: str) -> str:
    """A cell that runs `source` in a namespace of its own, with `repl_tools` at hand, and leaves no names behind.

    For Python kernels that are not ours.
    """
    tools = (program_folder() / "repl_tools.py").read_text(encoding="utf-8")
    define = (kernels_folder() / "others" / "set_up.py").read_text(encoding="utf-8")
    return f"exec({f'{define}set_up({tools!r}, {source!r})'!r}, {{}})"


class CellOutput:
    """Collects what iopub messages show, in their order, and the answers and images among them."""

    def __init__(self, text: HeadAndTail) -> None:
        self._text = text
        self._answers: list[str] = []
        self._forms: list[object] = []
        self._images: list[str] = []

    def take_in(self, msg_type: str, content: Mapping[str, Any]) -> None:
        if msg_type == "stream":
            self._show(str(content["text"]))
        elif msg_type in ("execute_result", "display_data"):
            data = content["data"]
            if ANSWER_MIME in data:
                self._add_answer(data[ANSWER_MIME])
                return
            if "text/plain" in data:
                self._show(_whole_lines(str(data["text/plain"])))
            if "image/png" in data and len(self._images) < MOST_IMAGES:
                self._images.append(str(data["image/png"]).replace("\n", ""))
        elif msg_type == "error":
            self._show(traceback_text(content))

    def _add_answer(self, submitted: Mapping[str, Any]) -> None:
        """Whatever runs in the kernel can send this, so each part is bounded and may be of any type."""
        values = submitted["values"][:_MOST_ANSWERS]
        forms = submitted.get("forms")
        forms = forms[:_MOST_ANSWERS] if isinstance(forms, list) else []
        if len(forms) != len(values):
            forms = [None] * len(values)
        self._answers += [text_of(str(value)) or "" for value in values]
        self._forms += forms
        del self._answers[_MOST_ANSWERS:]
        del self._forms[_MOST_ANSWERS:]

    def take(self) -> dict[str, Any]:
        """What was submitted and drawn since the last call: the fields of an ExecResult that hold it."""
        answer = tuple(self._answers) or None
        forms = self._forms
        images = self._images
        # Emptied first: reading what a session sent may raise.
        self._answers = []
        self._forms = []
        self._images = []
        return {"answer": answer, "answer_forms": forms_of(forms, answer), "images": images_of(images)}

    def _show(self, text: str) -> None:
        self._text.feed(text.encode("utf-8", "backslashreplace"))


def traceback_text(content: Mapping[str, Any]) -> str:
    """An error as a terminal without colours shows it; its name and value where the kernel sends no traceback."""
    text = "\n".join(str(line) for line in content.get("traceback") or [])
    if not text:
        text = f"{content.get('ename')}: {content.get('evalue')}"
    return _whole_lines(_ESCAPES.sub("", text))


def judge(reply: Mapping[str, Any] | None, output: CellOutput) -> ExecResult:
    """The result that an execute_reply reports, without its text; None stands for a kernel that died without a reply.

    Our own kernel reports the result exactly. For others this is best effort, and correct for IPython: the kernel has
    exited if it asks its client to exit, and a cell did not compile if it ended in a syntax error whose traceback shows
    no frame.
    """
    if reply is not None:
        report = reply.get("repl_rl")
        if isinstance(report, dict):
            return result_of(report)
    fields = output.take()
    if reply is None:
        return ExecResult(ExecStatus.KILLED, **fields)
    for part in reply.get("payload") or []:
        if part.get("source") == "ask_exit" and not part.get("keepkernel"):
            return ExecResult(ExecStatus.KILLED, error_name="SystemExit", **fields)
    if reply.get("status") == "ok":
        return ExecResult(ExecStatus.OK, **fields)
    default_name = "Interrupted" if reply.get("status") == "abort" else "Error"  # IRkernel's word for an interrupt
    name = text_of(str(reply.get("ename") or default_name), NAME_CHARS) or "Error"
    compiled = name not in SYNTAX_ERRORS or _ANY_FRAME in traceback_text(reply)
    message = text_of(f"{name}: {reply['evalue']}" if reply.get("evalue") else name)
    return ExecResult(ExecStatus.ERROR, error_name=name, compiled=compiled, error_message=message, **fields)


def _whole_lines(text: str) -> str:
    return text.rstrip("\n") + "\n"


@dataclass(frozen=True, slots=True)
class _Exchange:
    reply: asyncio.Future[dict[str, Any]]
    idle: asyncio.Future[None]


class Channels:
    """The shell and the iopub channel of one kernel. Belongs to one event loop.

    `show` is called with the type and content of each iopub message that belongs to a request of ours; background
    threads of earlier requests may still send some. Messages for other clients are ignored. Without `show` there is no
    iopub channel, and the kernel is ours.
    """

    def __init__(
        self,
        client: AsyncKernelClient,
        show: Callable[[str, Mapping[str, Any]], None] | None,
        most_bytes: int = OTHERS_BYTES,
        most_bytes_in_all: int | None = None,
        refuse: Callable[[str], None] | None = None,
    ) -> None:
        """`most_bytes` is the longest message of a kernel that is not ours.

        For a kernel whose messages may be meant to do harm, `most_bytes_in_all` is for those between a request and the
        next. `refuse` is called with the reason if there are more, or if one can't be read; else it is dropped.
        """
        if show is None:
            client.session.unpack = parsed
        else:
            most_marks = most_bytes if refuse is None else min(most_bytes // 4, _MOST_MARKS)
            client.session.unpack = partial(parsed, most_bytes=most_bytes, most_marks=most_marks)
        self._most_bytes_in_all = most_bytes_in_all
        self._bytes = 0
        self._refuse = refuse
        self.heard_all = True
        """False if the last reply came without the message that ends those about its request."""
        client.session.digest_history_size = 0  # it would keep whatever a kernel calls a signature
        self._client = client
        self._show = show
        self._exchanges: dict[str, _Exchange] = {}
        client.start_channels(iopub=show is not None, stdin=False, hb=False, control=False)
        self._tasks = [asyncio.create_task(self._receive(client.shell_channel, self._on_reply))]
        if show is not None:
            self._tasks.append(asyncio.create_task(self._receive(client.iopub_channel, self._on_message)))

    async def greet(self) -> dict[str, Any]:
        """Wait until the kernel answers and, if there is an iopub channel, is heard there; returns its kernel_info."""
        while True:
            exchange, content = await self._exchange("kernel_info_request", {}, _SUBSCRIBED_S)
            if self._show is None or exchange.idle.done():
                return content

    async def request(self, msg_type: str, content: dict[str, Any], idle_s: float) -> dict[str, Any]:
        """The content of the reply, once all messages before it are shown; for those it waits `idle_s` at most.

        A request that the kernel drops because another client's request failed is sent again.
        """
        while True:
            _, reply = await self._exchange(msg_type, content, idle_s)
            if reply.get("status") != "aborted":  # "abort" is how IRkernel says that it was interrupted
                return reply
            await asyncio.sleep(_SUBSCRIBED_S)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._client.stop_channels()

    async def _exchange(
        self, msg_type: str, content: dict[str, Any], idle_s: float
    ) -> tuple[_Exchange, dict[str, Any]]:
        """Send a request and wait for its reply, and `idle_s` at most for the message that ends those about it."""
        loop = asyncio.get_running_loop()
        message = self._client.session.msg(msg_type, content)
        message_id = message["header"]["msg_id"]
        exchange = _Exchange(loop.create_future(), loop.create_future())
        self._bytes = 0
        self._exchanges[message_id] = exchange
        try:
            self._client.shell_channel.send(message)
            reply = await exchange.reply
            if self._show is not None:
                await asyncio.wait({exchange.idle}, timeout=idle_s)
                self.heard_all = exchange.idle.done()
            return exchange, reply
        finally:
            del self._exchanges[message_id]

    async def _receive(self, channel: Any, take_in: Callable[[dict[str, Any]], None]) -> None:
        while True:
            frames, is_whole = await _frames(channel.socket)
            self._bytes += sum(len(frame) for frame in frames) + _FRAME_BYTES * len(frames)
            try:
                if not is_whole:
                    raise BorderError("a message has too many frames")
                if self._most_bytes_in_all is not None and self._bytes > self._most_bytes_in_all:
                    raise BorderError("its messages are too many or too long")
                _, parts = self._client.session.feed_identities(frames)
                take_in(self._client.session.deserialize(parts))
            except Exception as error:  # noqa: BLE001 - a message may be made to break whatever reads it
                _log.debug("a kernel sent what is not a Jupyter message: %s", type(error).__name__)
                if self._refuse is not None:
                    reason = str(error) if isinstance(error, BorderError) else "it sends what can't be read"
                    self._refuse(reason)
            await asyncio.sleep(0)  # other tasks run even during a flood of messages
            while not is_whole:  # the rest is dropped
                _, is_whole = await _frames(channel.socket)
                await asyncio.sleep(0)

    def _on_reply(self, message: dict[str, Any]) -> None:
        exchange = self._exchanges.get(message["parent_header"].get("msg_id"))
        if exchange is not None and not exchange.reply.done():
            exchange.reply.set_result(dict(message["content"]))

    def _on_message(self, message: dict[str, Any]) -> None:
        parent = message["parent_header"]
        content = message["content"]
        if message["msg_type"] == "status":
            exchange = self._exchanges.get(parent.get("msg_id"))
            is_idle = content["execution_state"] == "idle"
            if is_idle and exchange is not None and not exchange.idle.done():
                exchange.idle.set_result(None)
            return
        is_ours = parent.get("session") == self._client.session.session
        if self._show is not None and is_ours:
            self._show(message["msg_type"], content)


async def _frames(socket: Any) -> tuple[list[bytes], bool]:
    """The frames of a message, or of what is left of one, up to `_MOST_FRAMES`; and whether these are all."""
    frames = [await socket.recv()]
    while socket.getsockopt(SocketOption.RCVMORE) and len(frames) < _MOST_FRAMES:
        frames.append(await socket.recv())
    return frames, not socket.getsockopt(SocketOption.RCVMORE)
