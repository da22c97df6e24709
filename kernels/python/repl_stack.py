"""Hides what lies below a cell on the stack: in its tracebacks, and in how deep it can recurse."""

from __future__ import annotations

import gc
import os
import sys
import types

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PROBE_ROOM = 60
_TERMINAL_RESERVE = 2  # a terminal's limit minus what the probe would reach there
_get_limit, _set_limit = sys.getrecursionlimit, sys.setrecursionlimit

PROBE = compile(
    "def probe(n):\n global reached\n reached = n\n probe(n + 1)\ntry: probe(0)\nexcept RecursionError: pass",
    "<probe>",
    "exec",
    dont_inherit=True,
)
"""Sets `reached` in its namespace to the number of calls that fit on the stack, minus 1."""


class Stack:
    """The recursion limit that a session sees, whatever lies below its cells on the stack.

    Cells recurse exactly as deep as at a terminal, so that their RecursionErrors read the same. What lies below a cell
    is measured: frames can be counted, but C code takes up frames too, and their number varies as long as CPython still
    specialises the calls. `is_steady` says that it no longer does, so that equal depths need no new measurement.
    """

    def __init__(self) -> None:
        self.is_steady = False
        self._limit = 1000
        self._below = 0
        self._measured_depth: int | None = None
        self._collects = True

    def enter(self) -> None:
        """Show the session its own limit. The caller measures, runs the cell, and leaves."""
        self._limit_outside = _get_limit()
        sys.getrecursionlimit, sys.setrecursionlimit = self._get_limit, self._set_limit

    def leave(self) -> None:
        sys.getrecursionlimit, sys.setrecursionlimit = _get_limit, _set_limit
        _set_limit(self._limit_outside)

    # Type comments: annotations would show where the session asks `help` for its `sys.setrecursionlimit`.

    def _get_limit(self):  # type: () -> int
        return self._limit

    def _set_limit(self, limit):  # type: (int) -> None
        _set_limit(limit + self._below if isinstance(limit, int) else limit)
        self._limit = limit

    def before_probe(self) -> int | None:
        """Leave the probe some frames to use up; returns the limit that it runs into, or None if it need not run.

        Garbage is not collected meanwhile: finalizers would run out of stack.
        """
        depth, frame = 0, sys._getframe()  # type: int, types.FrameType | None
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        if self.is_steady and depth == self._measured_depth:
            _set_limit(self._limit + self._below)
            return None
        self._measured_depth = depth
        self._collects = gc.isenabled()
        gc.disable()
        _set_limit(depth + _PROBE_ROOM)
        return depth + _PROBE_ROOM

    def after_probe(self, limit: int, reached: int) -> None:
        """Set the session's limit on top of what the probe found to be used up."""
        self._below = limit - _TERMINAL_RESERVE - reached
        _set_limit(self._limit + self._below)
        if self._collects:
            gc.enable()


def hide_frames(error: BaseException) -> None:
    """Take this module's frames out of the tracebacks of an exception and of everything that it is chained to."""
    todo, seen = [error], set()  # type: list[BaseException | None], set[int]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _without_ours(each.__traceback__)
        todo += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions


def _without_ours(traceback: types.TracebackType | None) -> types.TracebackType | None:
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    frames = []
    each = traceback
    while each is not None:
        frames.append(each)
        each = each.tb_next
    if not any(map(_is_ours, frames)):
        return traceback
    rebuilt: types.TracebackType | None = None
    for each in reversed(frames):
        if not _is_ours(each):
            rebuilt = types.TracebackType(rebuilt, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rebuilt


def _is_ours(traceback: types.TracebackType) -> bool:
    return os.path.dirname(traceback.tb_frame.f_code.co_filename) == _FOLDER
