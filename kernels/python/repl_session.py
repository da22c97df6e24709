"""A forked session: serves its private channel, and opens Jupyter's channels beside it when it is asked to.

Sends {"id": "ready"}, then answers each request with one result that carries the request's id:

    {"id": id, "prepare": source}          {"id", "status"}; runs set-up code (repl_tools.py)
    {"id": id, "run": source}              {"id", "status", "fingerprint"}, and of `compiled` (false), `error_name`,
                                            `error_message`, `answer`, `answer_forms`, `calls`, `images` (see
                                            repl_interpreter.Outcome) those that there are
    {"id": id, "jupyter": connection}      {"id"}; comes with a listening socket for each of `CHANNELS`
    {"id": id, "can_fork": true}           {"id", "refused"}: why it can't be forked, or null
    {"id": id, "fork": count}              {"id", "refused"}; comes with the channel and the output of each fork
    {"id": id, "stay": true}               {"id"}; nothing came of the forks

`ready` comes with the descriptor that repl_rl/kernel/forked/fork.py listens on, where there is one. A fork sends
`ready` without one; it is then asked to {"id": id, "settle": {"copies": bool, "reseed": bool}}, answers with {"id"},
and goes on as its session would.

Before the result of a `run`, its calls of the host's tools may go out and be answered, see repl_host.py.
`connection` is what a Jupyter connection file holds. The text that a cell prints is in the output's pipe before its
result is in the channel. When the other end of the channel closes, the session ends.

Imports ipykernel, so it has to be imported under `slim_imports.stand_ins`.
"""

from __future__ import annotations

import os
import socket
import sys

import repl_fork
import repl_kernel
from repl_cell import Cells
from repl_channel import SessionChannel, frame
from repl_fingerprint import fingerprint
from repl_host import HostLine
from repl_interpreter import KILLED, PythonInterpreter
from repl_screen import Screen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from repl_interpreter import Outcome

CHANNELS = ("shell", "control", "iopub", "stdin", "hb")
_IF_THERE = ("error_name", "error_message", "answer", "answer_forms", "calls", "images")
_KEPT_FOR_JUPYTER_BYTES = 1_000_000
_WARM_UP_ROUNDS = 50
_WARM_UP_CELLS = (
    "# x",
    "x = 1",
    "x + 1",
    "print(x)",
    "def f(n):\n    return n\n",
    "[f(n) for n in range(3)]",
    "import math",
    "1 / 0",
    "x = = 1",
    "undefined",
    "submit_final_answer(x)",
)


def warm_up() -> None:
    """Run cells in this process until CPython has adapted its code to them.

    Sessions forked from it then share the memory that this changed, and the stack below their cells stays the same.
    """
    ours, theirs = socket.socketpair()
    with ours, open(os.devnull, "wb") as output:
        session = Session(theirs.detach(), None, (output.fileno(), output.fileno()))
        for _ in range(_WARM_UP_ROUNDS):
            for cell in _WARM_UP_CELLS:
                ours.sendall(frame({"id": "", "run": cell}))
                session.answer_one()
                ours.recv(1 << 16)
    for name in ("last_type", "last_value", "last_traceback"):
        delattr(sys, name)


class Session:
    """The session of this process."""

    def __init__(self, descriptor: int, memory_bytes: list[int] | None, output: tuple[int, int] = (1, 2)) -> None:
        self._channel = SessionChannel(descriptor)
        self._screen = Screen(descriptors=output, limit_bytes=0)
        self._interpreter = PythonInterpreter(self._screen)
        self._interpreter.own_process()
        self._interpreter.settle()
        self._host = HostLine(self._channel)
        self._interpreter.tools.call_host = self._host.call
        self._cells = Cells(self._interpreter, memory_bytes)
        self._not_the_models = frozenset(self._interpreter.namespace)
        self._kernel: repl_kernel.ReplKernel | None = None

    def serve(self, listener: int | None = None) -> NoReturn:
        """Answer until the other end is gone. Never returns."""
        self._send_ready(listener)
        if listener is not None:
            os.close(listener)
        while self._kernel is None:
            self.answer_one()
        self._kernel.serve(self._channel.fileno(), lambda: self.answer_one(waits=False))

    def _send_ready(self, listener: int | None) -> None:
        if listener is not None:
            try:
                self._channel.send({"id": "ready"}, [listener])
            except OSError:  # others of this user have too many descriptors under way: this session can't be forked
                pass
            else:
                return
        self._channel.send({"id": "ready"})

    def answer_one(self, waits: bool = True) -> None:
        """Read a message, or wait for one, and answer it if it is a request; late answers of the host are dropped."""
        with self._channel.turn:
            try:
                request = self._channel.read(waits)
            except BlockingIOError:  # a thread of an earlier line had been waiting for it
                return
        if request is None:
            os._exit(0)
        if "run" in request:
            self._run(request)
        elif "prepare" in request:
            self._prepare(request)
        elif "can_fork" in request:
            self._channel.send({"id": request["id"], "refused": repl_fork.objection()})
        elif "fork" in request:
            self._fork(request, self._channel.descriptors())
        elif "stay" in request:
            repl_fork.go_on()
            self._channel.send({"id": request["id"]})
        elif "jupyter" in request:
            self._open_jupyter(request, self._channel.descriptors())

    def _prepare(self, request: dict[str, Any]) -> None:
        outcome = self._cells.prepare(request["prepare"])
        self._host.end({"id": request["id"], "status": outcome.status})

    def _run(self, request: dict[str, Any]) -> None:
        self._host.begin(request["id"])
        if self._kernel is None:
            self._end_run(request, self._cells.run(request["run"]))
            return
        with self._kernel.line(request["run"]) as tell:
            outcome = self._cells.run(request["run"])
            self._end_run(request, outcome)
            tell(outcome)

    def _end_run(self, request: dict[str, Any], outcome: Outcome) -> None:
        self._host.end(self._result(request, outcome))
        if outcome.status == KILLED:
            os._exit(0)

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> None:
        try:
            refused = repl_fork.objection_at_fork(descriptors)
            if refused is None and len(descriptors) != 2 * request["fork"]:
                refused = "it has so many files open that a fork's don't fit in"
            pairs = list(zip(descriptors[::2], descriptors[1::2], strict=True)) if refused is None else []
            for pair in pairs:
                if repl_fork.clone(is_last=pair is pairs[-1]) == 0:
                    self._become_fork(*pair, descriptors)
                    return
        except BaseException as error:  # noqa: BLE001 - typed code may have changed what this goes by
            refused = repl_fork.told(error)
        for descriptor in descriptors:
            os.close(descriptor)
        self._channel.send({"id": request["id"], "refused": refused})

    def _become_fork(self, channel: int, output: int, descriptors: list[int]) -> None:
        try:
            self._channel.move_to(channel)
            os.dup2(output, 1)
            os.dup2(output, 2)
            for descriptor in descriptors:
                os.close(descriptor)
            files = repl_fork.OpenFiles()
            self._channel.send({"id": "ready"})
            request = self._channel.read()
            if request is None:
                os._exit(0)
            if request["settle"]["copies"]:
                files.copy()
            files.close()
            repl_fork.separate()
            if request["settle"]["reseed"]:
                repl_fork.reseed()
        except BaseException:  # noqa: BLE001 - it must not go on with what is its session's
            sys.__excepthook__(*sys.exc_info())
            sys.__stderr__.flush()  # type: ignore[union-attr]  # it is there
            os._exit(1)
        self._channel.send({"id": request["id"]})

    def _result(self, request: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
        tools = self._interpreter.tools.names()
        hidden = self._not_the_models.union(tools) if tools else self._not_the_models
        result = {
            "id": request["id"],
            "status": outcome.status,
            "fingerprint": fingerprint(self._interpreter.namespace, hidden),
        }
        if not outcome.compiled:
            result["compiled"] = False
        for name in _IF_THERE:
            value = getattr(outcome, name)
            if value is not None and value != []:
                result[name] = value
        return result

    def _open_jupyter(self, request: dict[str, Any], descriptors: list[int]) -> None:
        self._screen.keep(_KEPT_FOR_JUPYTER_BYTES)
        sockets = dict(zip(CHANNELS, descriptors, strict=True))
        self._kernel = repl_kernel.make_kernel(request["jupyter"], sockets, self._cells, is_guest=True)
        self._channel.send({"id": request["id"]})
