"""The Jupyter side: requests come in, cells run in the session, replies and messages go out.

A request of the host is a line that is typed into the session, or set-up code; program.py says how it is told from
those of Jupyter's clients. A forked session has its lines on a channel of its own (repl_session.py) and opens this side
for clients alone. They are told of typed lines as of what somebody else runs: each as a request of its own, its text in
streams when it is done, its images, and its error. To show more of a line's values would be to run code in between
that the session would not run otherwise.

Imports ipykernel, so it has to be imported under `slim_imports.stand_ins`.
"""

from __future__ import annotations

import _thread
import asyncio
import collections
import contextlib
import fnmatch
import json
import logging
import os
import signal
import sys
import threading

import repl_client
import repl_interpreter
import repl_lookup
import zmq
from ipykernel import heartbeat, kernelbase
from jupyter_client.session import Session
from repl_client import Client, encodable
from repl_publisher import Publisher, Silence
from tornado.ioloop import IOLoop
from zmq.eventloop.zmqstream import ZMQStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    from repl_cell import Cells
    from repl_interpreter import Outcome

    Message = dict[str, Any]
    """A message of Jupyter, or its content."""
    HistoryCell = tuple[int, str, str | None]
    """Number, source, and the text of the result or None."""

_HISTORY_CELLS, _HISTORY_CHARS = 1_000, 10_000
_HISTORY_SESSION = 1
_LOOK_S = 0.2
"""How often, while a client's cell runs, its text is published."""


class _Iopub(zmq.Socket):  # type: ignore[type-arg]  # as a base it would be another one
    """The iopub channel, on which two threads send. Each subscriber is greeted before it is told anything else."""

    _turn = threading.RLock()
    greet = None  # type: Any
    """Called with the topic of a new subscription."""

    def send_multipart(self, *arguments: Any, **options: Any) -> Any:
        with self._turn:
            with contextlib.suppress(zmq.Again):
                while True:
                    self.admit(self.recv(zmq.NOBLOCK))
            return super().send_multipart(*arguments, **options)

    def admit(self, frame: bytes) -> None:
        """Let what subscribers have sent take effect, which with XPUB_MANUAL it does not by itself."""
        with self._turn:
            option = zmq.SUBSCRIBE if frame[:1] == b"\x01" else zmq.UNSUBSCRIBE
            with contextlib.suppress(zmq.ZMQError):  # of one that is gone
                self.setsockopt(option, frame[1:])
            if option == zmq.SUBSCRIBE:
                self.greet(frame[1:])


def make_kernel(
    connection: dict[str, Any], descriptors: dict[str, int], cells: Cells, is_guest: bool = False
) -> ReplKernel:
    """A kernel that answers on inherited listening sockets, with its heartbeat running.

    `connection` is what a Jupyter connection file holds, `descriptors` the socket of each channel, `cells` what runs
    the session's cells (repl_cell.py). As a guest in another's session, it does not end with a client that leaves.
    """
    context = zmq.Context()
    sockets = {channel: context.socket(zmq.ROUTER) for channel in ("shell", "control", "stdin")}
    sockets["iopub"] = context.socket(zmq.XPUB, socket_class=_Iopub)
    sockets["iopub"].setsockopt(zmq.XPUB_MANUAL, 1)
    for channel, socket in sockets.items():
        _serve(socket, descriptors[channel], connection, channel)
    _Heartbeat(context, descriptors["hb"], connection).start()
    session = Session(
        key=connection["key"].encode(), signature_scheme=connection["signature_scheme"], username="kernel"
    )
    return ReplKernel(sockets, session, cells, is_guest)


def _serve(socket: zmq.Socket[bytes], descriptor: int, connection: dict[str, Any], channel: str) -> None:
    socket.linger = 1000
    socket.setsockopt(zmq.USE_FD, descriptor)
    transport, separator = connection["transport"], "-" if connection["transport"] == "ipc" else ":"
    socket.bind(f"{transport}://{connection['ip']}{separator}{connection[channel + '_port']}")


class _Heartbeat(heartbeat.Heartbeat):  # type: ignore[misc]  # untyped
    """ipykernel's echo thread, on an inherited socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], descriptor: int, connection: dict[str, Any]) -> None:
        super().__init__(context, (connection["transport"], connection["ip"], connection["hb_port"]))
        self._descriptor = descriptor
        self._connection = connection

    def _try_bind_socket(self) -> None:
        _serve(self.socket, self._descriptor, self._connection, "hb")


class ReplKernel(kernelbase.Kernel):  # type: ignore[misc]  # untyped
    implementation = "repl_rl"
    implementation_version = "1"
    banner = f"Python {sys.version} on {sys.platform}"
    language_info = {  # noqa: RUF012 - ipykernel declares it so
        "name": "python",
        "version": sys.version.split()[0],
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "pygments_lexer": "python3",
        "codemirror_mode": {"name": "python", "version": 3},
        "nbconvert_exporter": "python",
    }
    msg_types = [*kernelbase.Kernel.msg_types, "comm_open", "comm_msg", "comm_close"]  # noqa: RUF012

    def __init__(self, sockets: dict[str, Any], session: Session, cells: Cells, is_guest: bool) -> None:
        self._loop = IOLoop.current()
        super().__init__(
            session=session,
            shell_stream=ZMQStream(sockets["shell"], self._loop),
            control_stream=ZMQStream(sockets["control"], self._loop),
            iopub_socket=sockets["iopub"],
            stdin_socket=sockets["stdin"],
            log=_silent_log(),
        )
        sockets["iopub"].greet = self._welcome
        self._subscriptions = ZMQStream(sockets["iopub"], self._loop)
        self._subscriptions.on_recv(lambda frames: sockets["iopub"].admit(frames[0]))
        self._execute_sleep = 0.0
        self._cells = cells
        self._is_guest = is_guest
        self._history: collections.deque[HistoryCell] = collections.deque(maxlen=_HISTORY_CELLS)
        self._cells_policy: asyncio.AbstractEventLoopPolicy = asyncio.DefaultEventLoopPolicy()

    def serve(self, descriptor: int, on_readable: Callable[..., object], *arguments: object) -> NoReturn:
        """Answer until a session ends, and call `on_readable` whenever `descriptor` can be read. Never returns."""
        self._loop.asyncio_loop.add_reader(descriptor, self._without_loop, on_readable, *arguments)  # type: ignore[attr-defined]  # all of tornado's loops are asyncio's
        self.start()
        self._loop.start()
        os._exit(0)

    def _without_loop(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function with no running asyncio loop, because cells may want to run their own."""
        loop, policy = asyncio._get_running_loop(), asyncio.get_event_loop_policy()
        asyncio._set_running_loop(None)
        asyncio.set_event_loop_policy(self._cells_policy)
        try:
            return function(*arguments)
        finally:
            self._cells_policy = asyncio.get_event_loop_policy()
            asyncio.set_event_loop_policy(policy)
            asyncio._set_running_loop(loop)

    def pre_handler_hook(self) -> None:
        """SIGINT is handled around the cell alone, see repl_cell.py."""

    post_handler_hook = pre_handler_hook

    @property
    def kernel_info(self) -> Message:
        """As in the base class, which imports a debugger to find out whether there is one."""
        return {
            "protocol_version": kernelbase.kernel_protocol_version,
            "implementation": self.implementation,
            "implementation_version": self.implementation_version,
            "language_info": self.language_info,
            "banner": self.banner,
            "help_links": self.help_links,
            "supported_features": ["iopub_welcome"],
        }

    def _welcome(self, topic: bytes) -> None:
        content = {"subscription": topic.decode("utf-8", "replace")}
        self.session.send(self.iopub_socket, "iopub_welcome", content, parent={}, ident=topic or None)

    # Typed lines

    @contextlib.contextmanager
    def line(self, source: str) -> Iterator[Callable[[Outcome], None]]:
        """Tell clients of a line of the session's own while it runs here. Yields a function to hand its outcome to."""
        self.execution_count += 1
        parent = self.session.msg("execute_request", {"code": source, "silent": False})
        self._publish_status("busy", "shell", parent)
        self._publish_execute_input(source, parent, self.execution_count)
        try:
            yield lambda outcome: self._tell(source, outcome, parent)
        finally:
            self._publish_status("idle", "shell", parent)

    def _tell(self, source: str, outcome: Outcome, parent: Message) -> None:
        """Publish what a typed line has shown."""
        self._remember(source)
        publisher = Publisher(self._sender(parent))
        traceback = b""
        for name, chunk in outcome.parts:
            if name == "traceback":
                traceback += chunk
            else:
                publisher.write(name, chunk)
        for image in outcome.images:
            publisher.display({"image/png": image, "text/plain": "<Figure>"})
        if outcome.error_name:
            lines = traceback.decode("utf-8", "replace").splitlines()
            publisher.error({**outcome.error_fields(), "traceback": lines})
        publisher.omit(outcome.omitted_bytes)
        publisher.end()

    def _sender(self, parent: Message) -> Callable[[str, Message], None]:
        def send(msg_type: str, content: Message) -> None:
            self.session.send(self.iopub_socket, msg_type, content, parent=parent, ident=self._topic(msg_type))

        return send

    # Requests to run something

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, str] | None = None,
        allow_stdin: bool = False,
        **_: object,
    ) -> Message:
        parent = self.get_parent("shell")
        purpose = parent["content"].get("repl_rl")
        if purpose == "setup":
            outcome = self._without_loop(self._cells.prepare, code)
        elif purpose == "line":
            outcome = self._without_loop(self._cells.run, code)
            self._tell(code, outcome, parent)
        else:
            return self._run_for_client(code, silent, store_history, user_expressions or {}, allow_stdin)
        if outcome.status == repl_interpreter.KILLED:
            self._end_soon()
        return self._reply(outcome, ends=True) | {"repl_rl": _report(outcome)}

    def _run_for_client(
        self, code: str, silent: bool, stores_history: bool, user_expressions: dict[str, str], allows_stdin: bool
    ) -> Message:
        question = repl_lookup.QUESTION.fullmatch(code)
        if question is not None:
            return self._page(*question.groups())
        self._allow_stdin = allows_stdin
        publisher = Silence() if silent else Publisher(self._sender(self.get_parent("shell")))
        client = Client(self._cells.interpreter, self, publisher, self.execution_count)
        screen = self._cells.interpreter.screen
        with _Watch(self, publisher), screen.heard_by(publisher.write):
            outcome = self._without_loop(self._cells.run_for, client, code)
            values = {}
            if user_expressions and outcome.status == repl_interpreter.OK:
                values = self._without_loop(client.expressions, user_expressions)
            publisher.end()
        reply = self._reply(outcome, ends=not self._is_guest)
        reply |= {"user_expressions": values, "repl_rl": _report(outcome)}
        if outcome.status == repl_interpreter.KILLED and not self._is_guest:
            self._end_soon()
        if stores_history and not silent:
            self._remember(code, client.result_text)
        elif not silent:
            self.execution_count -= 1
        return reply

    def _reply(self, outcome: Outcome, ends: bool) -> Message:
        """The content of an `execute_reply`. Who asked for an exit is asked to leave, and told whether all `ends`."""
        reply = {"status": "ok", "execution_count": self.execution_count, "user_expressions": {}, "payload": []}
        if outcome.status == repl_interpreter.KILLED:
            reply["payload"] = [{"source": "ask_exit", "keepkernel": not ends}]
        elif outcome.error_name:
            reply |= {"status": "error", "traceback": [], **outcome.error_fields()}
        return reply

    def _page(self, name: str, marks: str) -> Message:
        text = self._explain(name, has_source=marks == "??") or f"Object `{name}` not found."
        page = {"source": "page", "data": {"text/plain": text}, "start": 0}
        return {"status": "ok", "execution_count": self.execution_count, "user_expressions": {}, "payload": [page]}

    def _end_soon(self) -> None:
        self._loop.call_later(0.05, self._loop.stop)

    # Requests to know something

    async def do_complete(self, code: str, cursor_pos: int) -> Message:
        matches, start, end, kinds = [], cursor_pos, cursor_pos, []  # type: list[str], int, int, list[dict[str, Any]]
        with contextlib.suppress(BaseException), self._aside():
            found = self._without_loop(repl_client.completions, self._cells.interpreter, code, cursor_pos)
            matches, start, end, kinds = found
        metadata = {"_jupyter_types_experimental": kinds}
        return {"status": "ok", "matches": matches, "cursor_start": start, "cursor_end": end, "metadata": metadata}

    async def do_inspect(
        self, code: str, cursor_pos: int, detail_level: int = 0, *_positional: object, **_named: object
    ) -> Message:
        text = self._explain(repl_lookup.name_at(code, cursor_pos), has_source=detail_level > 0)
        data = {} if text is None else {"text/plain": text}
        return {"status": "ok", "found": text is not None, "data": data, "metadata": {}}

    def _explain(self, name: str, has_source: bool = False) -> str | None:
        """What the session's object or the builtin called `name` is; None if there is none, or it fails to say so."""
        namespace = self._cells.interpreter.namespace
        with contextlib.suppress(BaseException), self._aside():
            return encodable(self._without_loop(repl_lookup.description, namespace, name, has_source))
        return None

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """While this is open, the session's objects may be asked what they are: what they print is shown nowhere."""
        interpreter = self._cells.interpreter
        with interpreter.screen.heard_by(None):
            try:
                with repl_client.shell_at_work(interpreter, Silence()):
                    yield
            finally:
                interpreter.screen.flush()

    async def do_is_complete(self, code: str) -> Message:
        status, indent = repl_lookup.completeness(code)
        return {"status": status, "indent": indent} if status == "incomplete" else {"status": status}

    def _remember(self, source: str, result: str | None = None) -> None:
        self._history.append((self.execution_count, source[:_HISTORY_CHARS], result and result[:_HISTORY_CHARS]))

    async def do_history(
        self,
        hist_access_type: str,
        output: bool,
        raw: bool,
        session: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        n: int | None = None,
        pattern: str | None = None,
        unique: bool = False,
    ) -> Message:
        """Typed lines and clients' cells since this side was opened, as one session's."""
        cells = list(self._history)
        if hist_access_type == "range":
            cells = cells if session in (None, 0, _HISTORY_SESSION) else []
            cells = [cell for cell in cells if (start or 0) <= cell[0] and (stop is None or cell[0] < stop)]
        elif hist_access_type == "search":
            cells = [cell for cell in cells if fnmatch.fnmatchcase(cell[1], pattern or "*")]
            if unique:
                cells = sorted({cell[1]: cell for cell in cells}.values())
        if hist_access_type != "range" and n is not None:
            cells = cells[-n:] if n > 0 else []
        history = [
            (_HISTORY_SESSION, number, (source, result) if output else source) for number, source, result in cells
        ]
        return {"status": "ok", "history": history}

    # Other messages

    async def comm_open(self, _stream: object, _ident: object, parent: Message) -> None:
        """There is nothing here to open a comm to: it is closed at once, as the protocol asks for."""
        closed = {"comm_id": parent["content"].get("comm_id", ""), "data": {}}
        self._sender(parent)("comm_close", closed)

    async def comm_msg(self, _stream: object, _ident: object, _parent: Message) -> None:
        """Of a comm that is closed."""

    comm_close = comm_msg

    async def do_shutdown(self, restart: bool) -> Message:
        self._end_soon()
        return {"status": "ok", "restart": restart}

    def interrupt_from(self, socket: zmq.Socket[bytes], ident: list[bytes], parent: Message) -> None:
        """Answer a request to interrupt the client's cell that runs. Processes that it has started go on."""
        self._publish_status("busy", "control", parent)
        os.kill(os.getpid(), signal.SIGINT)
        self.session.send(socket, "interrupt_reply", {"status": "ok"}, parent, ident=ident)
        self._publish_status("idle", "control", parent)


class _Watch:
    """While a client's cell runs, a thread publishes its text now and then, and looks for requests to interrupt it.

    Other requests on the control channel wait until the cell is done.
    """

    def __init__(self, kernel: ReplKernel, publisher: Publisher | Silence) -> None:
        self._kernel = kernel
        self._publisher = publisher
        self._control = kernel.control_stream.socket
        self._waiting: list[list[zmq.Frame]] = []
        self._at_work = _thread.allocate_lock()

    def __enter__(self) -> None:
        self._end_seen, self._end = os.pipe()
        self._at_work.acquire()
        try:
            _thread.start_new_thread(self._run, ())  # what `threading` does besides, the session may have broken
        except RuntimeError:  # the session has used up its processes
            self._at_work.release()

    def __exit__(self, *_: object) -> None:
        os.close(self._end)
        self._at_work.acquire()
        os.close(self._end_seen)
        self._kernel.io_loop.add_callback(self._kernel.control_stream.flush, zmq.POLLIN)
        for frames in self._waiting:
            self._kernel.io_loop.add_callback(self._kernel.dispatch_control, frames)

    def _run(self) -> None:
        try:
            poller = zmq.Poller()
            poller.register(self._end_seen, zmq.POLLIN)
            poller.register(self._control, zmq.POLLIN)
            events: dict[Any, int] = {}
            while self._end_seen not in events:
                events = dict(poller.poll(_LOOK_S * 1000))  # type: ignore[arg-type]  # zmq takes floats too
                if self._control in events:
                    self._take_in(self._control.recv_multipart(copy=False))
                self._publisher.flush_in_time()
        finally:
            self._at_work.release()

    def _take_in(self, frames: list[zmq.Frame]) -> None:
        session = self._kernel.session
        try:
            ident, parts = session.feed_identities(frames, copy=False)
            if json.loads(bytes(parts[1].buffer)).get("msg_type") != "interrupt_request":
                self._waiting.append(frames)
                return
            parent = session.deserialize(parts, copy=False)
        except Exception:  # noqa: BLE001 - as what is no message is elsewhere
            return
        self._kernel.interrupt_from(self._control, ident, parent)


def _silent_log() -> logging.Logger:
    """The kernel's own log must not show up among what the session prints."""
    log = logging.Logger("repl_rl")
    log.addHandler(logging.NullHandler())
    return log


def _report(outcome: Outcome) -> Message:
    names = ("status", "error_name", "error_message", "compiled", "answer", "answer_forms", "calls", "images")
    return {name: getattr(outcome, name) for name in names}
