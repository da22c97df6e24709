"""The fork server: imports a profile's packages once, and then forks a session from itself on each request.

Its boot record holds

    control        a SOCK_SEQPACKET socket to the owner; when the owner hangs up, the server ends
    fork_setup     another one, or null where sessions can't be forked (repl_fork.py)
    walls          "bwrap", "sandlock" or "none": the sandbox around the server, see confinement.py
    rlimits        {"RLIMIT_CPU": [soft, hard], ...} of each session; RLIMIT_AS counts from what a session starts with,
                   and is held at its soft value while a cell runs
    charged        whether each session is in a control group, which counts all memory that it takes
    tmp_mb         size of a session's /tmp, and of its /dev/shm
    readable       what a session may read, in "sandlock"
    preload        names of modules to import
    warm_up        Python code to run once, so that what packages do at their first use is done
    site_packages  folders to import own modules and third-party packages from
    links          {name: target} of links that each session finds in its working folder
    caches         the same of its home folder, in folders that belong to it

It first sends {"ready": true, "missing": [modules that can't be imported], "warm_up_error": text or null, "threads":
[names of threads that the imports or the warm-up left running, which no session will have]}. Then, for each request
{"fork": number, "uid": user id or null, "tmp": folder or null} that comes with two descriptors (the session's
channel, and what its output is written to), it answers {"fork": number} with a pidfd of the session, or {"fork":
number, "error": text}. The session then does what repl_session.py documents.

Requests {"folders": bool} to set up a session's fork of itself come with two descriptors: its pidfd, and a pipe on
which "ok" is written once it has a user and a /proc of its own, and folders if it is to have them, or else what went
wrong.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time

import confinement
import huge_pages
import slim_imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

_MOST_BYTES = 1 << 16
_HELPERS, _ENOUGH = 5, 3
"""How many processes wait to set up a fork. While there are enough, those that a fork used are replaced only when it is
over, so that they don't keep a core from it."""
_PAUSES, _PAUSE_S = 4, 0.005
_MOST_THREADS = 8
"""That are named to the owner."""
_OWNER_IS_GONE = 3
"""An exit code."""
_CHANNEL = 3
"""Where a session has its channel: the first descriptor after the standard ones."""


class SessionServer:
    """One server. Its constructor imports what the sessions will find imported."""

    def __init__(self, boot: dict[str, Any]) -> None:
        self._control = socket.socket(fileno=boot["control"])
        self._control.set_inheritable(False)
        sys.path.extend(boot["site_packages"])
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the sessions
        if boot["walls"] != "bwrap":
            confinement.die_with_parent(os.getppid())
        if boot["fork_setup"] is not None:
            self._start_helpers(socket.socket(fileno=boot["fork_setup"]), boot["tmp_mb"])
        with slim_imports.stand_ins():
            import repl_fork
            import repl_session
        self._draw_new_chances = repl_fork.reseed
        self._session_class = repl_session.Session
        self._warm_up = repl_session.warm_up
        preload = [*boot["preload"], "sandlock"] if boot["walls"] == "sandlock" else boot["preload"]
        self._missing = [name for name in preload if not _imported(name)]
        self._warm_up_error = _error_of(boot["warm_up"])
        self._threads = _other_threads()
        os.environ.pop("PYTHONHASHSEED", None)
        self._forks = confinement.Forks(boot["walls"])
        self._walls = confinement.Walls(boot)

    def serve(self) -> NoReturn:
        """Fork on request until the owner is gone. Never returns."""
        self._warm_up()
        gc.collect()
        gc.freeze()  # garbage collections in sessions leave shared objects alone
        huge_pages.collapse()
        said = {"missing": self._missing, "warm_up_error": self._warm_up_error, "threads": self._threads}
        self._send({"ready": True, **said})
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._control, _MOST_BYTES, 2)
            if not message:
                os._exit(0)
            self._fork(json.loads(message), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    def _start_helpers(self, requests: socket.socket, tmp_mb: int) -> None:
        if os.fork() == 0:
            try:
                self._control.close()
                _keep_helpers(requests, tmp_mb)
            finally:
                os._exit(1)
        requests.close()

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> None:
        server_pid = os.getpid()
        try:
            pid = self._forks.fork()
        except OSError as error:
            self._send({"fork": request["fork"], "error": f"fork: {error}"})
        else:
            if pid == 0:
                self._become_session(request, server_pid, *descriptors)
            self._introduce(pid, request)

    def _introduce(self, pid: int, request: dict[str, Any]) -> None:
        """Answer with a pidfd of the session. A session that is gone already has been reaped, and has none."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            self._send({"fork": request["fork"], "error": f"the session ended at once: {error}"})
        else:
            self._send({"fork": request["fork"]}, [pidfd])
            os.close(pidfd)

    def _become_session(self, request: dict[str, Any], server_pid: int, channel: int, output: int) -> NoReturn:
        """Never returns. What goes wrong is written to the session's output, and ends it."""
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep_only(channel, output)
            memory_bytes, listener = self._walls.enter(request, server_pid)
            gc.enable()
            self._draw_new_chances()
            self._session_class(_CHANNEL, memory_bytes).serve(listener)
        except BaseException:  # noqa: BLE001 - nothing of the server may run on in a session
            sys.__excepthook__(*sys.exc_info())
            sys.__stderr__.flush()  # type: ignore[union-attr]  # it is there
        finally:
            os._exit(1)

    def _send(self, message: dict[str, object], descriptors: Iterable[int] = ()) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)


def _keep_helpers(requests: socket.socket, tmp_mb: int) -> None:
    """Keep some processes waiting, each to set up one fork of a session. Returns when the owner has ended.

    This is a process of its own, forked from the server before that grows, because small ones fork fast.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    waiting, ended = 0, [0]
    while _OWNER_IS_GONE not in ended:
        while waiting < _HELPERS:
            if os.fork() == 0:
                _set_up_one(requests, tmp_mb)
            waiting += 1
        ended = _ended(0)
        for _ in range(_PAUSES):
            if waiting - len(ended) >= _ENOUGH:
                time.sleep(_PAUSE_S)
                ended += _ended(os.WNOHANG)
        waiting -= len(ended)


def _ended(flags: int) -> list[int]:
    """The exit codes of the children that have ended; without flags, waits for the first."""
    codes: list[int] = []
    with contextlib.suppress(ChildProcessError):  # there are none left
        while (found := os.waitpid(-1, os.WNOHANG if codes else flags))[0]:
            codes.append(os.waitstatus_to_exitcode(found[1]))
    return codes


def _set_up_one(requests: socket.socket, tmp_mb: int) -> NoReturn:
    """Never returns."""
    confinement.rehearse()
    message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
    if not message:
        os._exit(_OWNER_IS_GONE)
    pidfd, report = descriptors
    try:
        confinement.set_up_fork(pidfd, tmp_mb if json.loads(message)["folders"] else None, report)
    except BaseException as error:  # noqa: BLE001 - it goes to whoever asked
        os.write(report, (str(error) or type(error).__name__).encode())
    finally:
        os._exit(0)


def _imported(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def _error_of(code: str) -> str | None:
    try:
        exec(compile(code, "<warm_up>", "exec", dont_inherit=True), {"__name__": "warm_up"})
    except Exception as error:  # noqa: BLE001 - any package's
        return repr(error)
    return None


def _other_threads() -> list[str]:
    """The names of this process's threads but for the first; none where /proc can't be read."""
    try:
        first = os.readlink("/proc/self")  # in the numbers of that /proc, which may be another namespace's
        return [_name_of(task) for task in os.listdir("/proc/self/task") if task != first][:_MOST_THREADS]
    except OSError:
        return []


def _name_of(task: str) -> str:
    with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def _keep_only(channel: int, output: int) -> None:
    """Leave the process its standard streams and its channel; the rest is the server's."""
    channel, output = (fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in (channel, output))
    os.dup2(channel, _CHANNEL, inheritable=False)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
