"""The fork server: imports a profile's packages once, and then forks a session from itself on each request.

Its boot record holds

    control        a SOCK_SEQPACKET socket to the owner; when the owner hangs up, the server ends
    walls          "bwrap", "sandlock" or "none": the sandbox around the server, see confinement.py
    rlimits        {"RLIMIT_CPU": [soft, hard], ...} of each session; RLIMIT_AS counts from what a session starts with,
                   and is held at its soft value while a cell runs
    tmp_mb         size of a session's /tmp, and of its /dev/shm
    readable       what a session may read, in "sandlock"
    preload        names of modules to import
    warm_up        Python code to run once, so that what packages do at their first use is done
    site_packages  folders to import own modules and third-party packages from
    links          {name: target} of links that each session finds in its working folder

It first sends {"ready": true, "missing": [modules that can't be imported], "warm_up_error": text or null}. Then, for
each request {"fork": number, "uid": user id or null, "tmp": folder or null} that comes with two descriptors (the
session's channel, and what its output is written to), it answers {"fork": number} with a pidfd of the session, or
{"fork": number, "error": text}. The session then does what repl_session.py documents.
"""

import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import sys

import confinement
import huge_pages
import slim_imports

_MOST_BYTES = 1 << 16
_CHANNEL = 3
"""Where a session has its channel: the first descriptor after the standard ones."""


class ForkServer:
    """One server. Its constructor imports what the sessions will find imported."""

    def __init__(self, boot):
        self._control = socket.socket(fileno=boot["control"])
        self._control.set_inheritable(False)
        sys.path.extend(boot["site_packages"])
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the sessions
        if boot["walls"] != "bwrap":
            confinement.die_with_parent(os.getppid())
        with slim_imports.stand_ins():
            import repl_session
        self._session_class = repl_session.Session
        self._warm_up = repl_session.warm_up
        preload = [*boot["preload"], "sandlock"] if boot["walls"] == "sandlock" else boot["preload"]
        self._missing = [name for name in preload if not _imported(name)]
        self._warm_up_error = _error_of(boot["warm_up"])
        os.environ.pop("PYTHONHASHSEED", None)
        self._forks = confinement.Forks(boot["walls"])
        self._walls = confinement.Walls(boot)

    def serve(self):
        """Fork on request until the owner is gone. Never returns."""
        self._warm_up()
        gc.collect()
        gc.freeze()  # garbage collections in sessions leave shared objects alone
        huge_pages.collapse()
        self._send({"ready": True, "missing": self._missing, "warm_up_error": self._warm_up_error})
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._control, _MOST_BYTES, 2)
            if not message:
                os._exit(0)
            self._fork(json.loads(message), descriptors)

    def _fork(self, request, descriptors):
        server_pid = os.getpid()
        try:
            pid = self._forks.fork()
        except OSError as error:
            self._send({"fork": request["fork"], "error": f"fork: {error}"})
        else:
            if pid == 0:
                self._become_session(request, server_pid, *descriptors)
            self._introduce(pid, request)
        for descriptor in descriptors:
            os.close(descriptor)

    def _introduce(self, pid, request):
        """Answer with a pidfd of the session. A session that is gone already has been reaped, and has none."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            self._send({"fork": request["fork"], "error": f"the session ended at once: {error}"})
        else:
            self._send({"fork": request["fork"]}, [pidfd])
            os.close(pidfd)

    def _become_session(self, request, server_pid, channel, output):
        """Never returns. What goes wrong is written to the session's output, and ends it."""
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep_only(channel, output)
            memory_bytes = self._walls.enter(request, server_pid)
            gc.enable()
            _draw_new_chances()
            self._session_class(_CHANNEL, memory_bytes).serve()
        except BaseException:  # noqa: BLE001 - nothing of the server may run on in a session
            sys.__excepthook__(*sys.exc_info())
            sys.__stderr__.flush()
        finally:
            os._exit(1)

    def _send(self, message, descriptors=()):
        socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)


def _imported(name):
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def _draw_new_chances():
    """Seed the random generators of packages anew; for Python's own, each fork does so."""
    for name in ("numpy.random", "sympy.core.random"):
        if name in sys.modules:
            sys.modules[name].seed()


def _error_of(code):
    try:
        exec(compile(code, "<warm_up>", "exec"), {"__name__": "warm_up"})
    except Exception as error:  # noqa: BLE001 - any package's
        return repr(error)
    return None


def _keep_only(channel, output):
    """Leave the process its standard streams and its channel; the rest is the server's."""
    channel, output = (fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in (channel, output))
    os.dup2(channel, _CHANNEL, inheritable=False)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
