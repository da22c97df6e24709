"""Processes that end with the one that started them, and ports for those that listen."""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import threading

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """For `preexec_fn`: the child is killed when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
    with socket.socket() as listening:
        listening.bind((address, 0))
        port: int = listening.getsockname()[1]
        return port
