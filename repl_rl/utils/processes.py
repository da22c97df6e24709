"""Processes that end with the one that started them, and ports for those that listen.

Three ways, each for what the others can't do. In all of them Linux or a thread ends the process with SIGKILL, however
its parent has ended and whatever it is doing.

- A program is started by `start_process`. Linux kills it (`PR_SET_PDEATHSIG`), also while it holds Python's lock.
- A fork that has one thread and a parent with one thread calls `die_with_parent`, which asks Linux for the same.
- A process of `multiprocessing` calls `end_with_parent`. Linux would kill it when the *thread* that started it ends,
  and libraries start theirs in threads that may end first. A thread waits for the parent instead. It takes Python's
  lock once, so it comes late where C code holds that; torch and vLLM give it back while they compute.

Kernels have walls of their own that do it (kernels/python/confinement.py, and `repl_rl.kernel.paths.Home`).
"""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from repl_rl.utils.threads import OneThread

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

_THEN_RUN = f"""
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)
if os.getppid() == int(parent):
    os.execvp(command[0], command)
"""
"""Asks Linux, then becomes the command. If the parent is another one by then, the right one has ended before."""


def start_process(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """As `subprocess.Popen`, of a program that ends with this process.

    One thread starts all of them, and lives as long as this process: the death of the thread that starts a program is
    what Linux goes by.
    """
    start = _starter().submit(lambda: subprocess.Popen(dying_with_parent(command), **options))
    process: subprocess.Popen[bytes] = start.result()
    return process


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """The command to start in place of `command`, which ends with the thread that starts it."""
    return [sys.executable, "-I", "-S", "-c", _THEN_RUN, str(os.getpid()), *command]


def die_with_parent(parent_pid: int) -> None:
    """Called in a fork: Linux kills this process when the thread that forked it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def end_with_parent() -> None:
    """Called in a process of `multiprocessing`: it is killed when its parent has ended, in whatever way.

    Elsewhere it does nothing.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="end_with_parent", daemon=True).start()


def free_port(address: str = "") -> int:
    """A port on which nobody listens now."""
    with socket.socket() as listener:
        listener.bind((address, 0))
        port: int = listener.getsockname()[1]
        return port


_starters: dict[int, OneThread] = {}
"""By process id: a fork has none of its parent's threads."""
_starters_lock = threading.Lock()


def _starter() -> OneThread:
    process = os.getpid()
    with _starters_lock:
        if process not in _starters:
            _starters[process] = OneThread("repl-rl-starter")
        return _starters[process]
