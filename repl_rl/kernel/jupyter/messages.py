"""What Jupyter messages say about a cell: its text, its answer, how it ended. Knows no sockets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from repl_rl.kernel.output import HeadAndTail
from repl_rl.kernel.reports import calls_of, text_of
from repl_rl.kernel.results import ExecResult, ExecStatus

ANSWER_MIME = "application/vnd.repl-rl.answer+json"
SYNTAX_ERRORS = frozenset({"SyntaxError", "IndentationError", "TabError", "_IncompleteInputError"})

SUBMIT = f'''
def submit_final_answer():
    from IPython import get_ipython
    get_ipython().history_manager.enabled = False
    publish, show, text, length = get_ipython().display_pub.publish, repr, str, 10_000
    def submit_final_answer(value, /, *values):
        """Hand in the final answer; this ends the session."""
        __tracebackhide__ = True
        texts = []
        for each in (value, *values):
            texts.append(text(show(each).encode("utf-8", "backslashreplace"), "utf-8")[:length])
        publish({{"{ANSWER_MIME}": {{"values": texts}}}})
    submit_final_answer.__module__ = "builtins"
    submit_final_answer.__qualname__ = "submit_final_answer"
    return submit_final_answer
submit_final_answer = submit_final_answer()
'''
"""Defines `submit_final_answer` in a kernel built on IPython. What it sends is a message of a type that nothing shows,
so no text can be mistaken for it; code that sends such a message itself has submitted an answer, and nothing else."""

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ANY_FRAME = "Traceback (most recent call last)"


class CellText:
    """The two ends of one cell's text; beyond `read_bytes` nothing is looked at any more, only counted."""

    def __init__(self, keep_bytes: int, read_bytes: int) -> None:
        self._kept = HeadAndTail(keep_bytes)
        self._read_bytes = self._room_bytes = read_bytes
        self._omitted_bytes = self._gap_bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._room_bytes -= len(chunk)
        if self._room_bytes < 0:
            self._gap_bytes += len(chunk)
            return
        self._mark_gap()
        self._kept.feed(chunk)

    def make_room(self) -> None:
        """For what an interrupted cell still has to say."""
        self._room_bytes = self._read_bytes

    def take(self) -> tuple[str, int]:
        """The text, with a marker wherever bytes are missing, and their number. Empties it."""
        self.make_room()
        self._mark_gap()
        text, omitted_bytes = self._kept.take()
        omitted_bytes, self._omitted_bytes = omitted_bytes + self._omitted_bytes, 0
        return text, omitted_bytes

    def _mark_gap(self) -> None:
        if self._gap_bytes:
            self._kept.feed(f"\n... [{self._gap_bytes} bytes left out] ...\n".encode())
            self._omitted_bytes += self._gap_bytes
            self._gap_bytes = 0


class CellOutput:
    """Collects what iopub messages show, in their order, and the answers among them."""

    def __init__(self, text: CellText) -> None:
        self._text = text
        self._answers: list[str] = []

    def take_in(self, msg_type: str, content: Mapping[str, Any]) -> None:
        if msg_type == "stream":
            self._show(str(content["text"]))
        elif msg_type in ("execute_result", "display_data"):
            self._take_in_data(content["data"])
        elif msg_type == "error":
            self._show(traceback_text(content))

    def take_answers(self) -> list[str]:
        answers, self._answers = self._answers, []
        return answers

    def _take_in_data(self, data: Mapping[str, Any]) -> None:
        if ANSWER_MIME in data:
            self._answers += [str(value) for value in data[ANSWER_MIME]["values"]]
        elif "text/plain" in data:
            self._show(_whole_lines(str(data["text/plain"])))

    def _show(self, text: str) -> None:
        self._text.feed(text.encode("utf-8", "backslashreplace"))


def traceback_text(content: Mapping[str, Any]) -> str:
    """An error as a terminal without colours shows it; its name and value where the kernel sends no traceback."""
    lines = [str(line) for line in content.get("traceback") or []]
    return _whole_lines(_ESCAPES.sub("", "\n".join(lines) or f"{content.get('ename')}: {content.get('evalue')}"))


def judge(reply: Mapping[str, Any] | None, output: CellOutput) -> ExecResult:
    """The result that an execute_reply stands for, without its text; of a kernel that died without one for None.

    Our own kernel says it exactly. Of others, an exit is one that the kernel asks its client to carry out, and a cell
    did not compile if it ended in a syntax error whose traceback shows no frame: best effort, true of IPython.
    """
    if reply is not None and isinstance(report := reply.get("repl_rl"), dict):
        answer = report.get("answer")
        return ExecResult(
            ExecStatus(report["status"]),
            error_name=report.get("error_name"),
            compiled=report.get("compiled", True),
            answer=None if answer is None else tuple(answer),
            error_message=text_of(report.get("error_message")),
            calls=calls_of(report.get("calls")),
        )
    answer = tuple(output.take_answers()) or None
    if reply is None:
        return ExecResult(ExecStatus.KILLED, answer=answer)
    if _asks_exit(reply):
        return ExecResult(ExecStatus.KILLED, error_name="SystemExit", answer=answer)
    if reply.get("status") == "ok":
        return ExecResult(ExecStatus.OK, answer=answer)
    name = str(reply.get("ename") or "Error")
    compiled = name not in SYNTAX_ERRORS or _ANY_FRAME in traceback_text(reply)
    message = text_of(f"{name}: {reply['evalue']}" if reply.get("evalue") else name)
    return ExecResult(ExecStatus.ERROR, error_name=name, compiled=compiled, answer=answer, error_message=message)


def _asks_exit(reply: Mapping[str, Any]) -> bool:
    payload = reply.get("payload") or []
    return any(part.get("source") == "ask_exit" and not part.get("keepkernel") for part in payload)


def _whole_lines(text: str) -> str:
    return text.rstrip("\n") + "\n"
