"""The trainer's side of the grader processes. They are started when first needed and kept; one that hangs is replaced.

A request that takes too long or ends its process is graded as not right, because its text caused that. If a process
does not start at all, RewardError is raised, so that a broken machine never becomes a reward. Safe to call from several
threads, and in a forked child, which starts processes of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from repl_rl.errors import RewardError

_START_S = 120.0
_WALL_S = 60.0
"""For one request, and far above its limit of processor time, so that a loaded machine does not change verdicts."""
_MOST = 4
_PACKAGE_PARENT = Path(__file__).resolve().parents[3]

Request = dict[str, Any]


class Overrun(Exception):
    """A request was not answered: its process took too long, or died."""

    def __init__(self, by_its_text: bool) -> None:
        super().__init__("the grader's process ended")
        self.by_its_text = by_its_text


class GraderProcess:
    """One process, one request at a time."""

    def __init__(self) -> None:
        """Raises RewardError if the process does not start."""
        path = os.pathsep.join([str(_PACKAGE_PARENT), *filter(None, [os.environ.get("PYTHONPATH")])])
        names = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "repl_rl.tasks.grading.program", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", ""), **names},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        try:
            self._reply(_START_S)
        except Overrun as error:
            raise RewardError(
                f"the grader's process did not come up (exit status {self._process.returncode}); see what "
                f"`{sys.executable} -m repl_rl.tasks.grading.program 1` prints"
            ) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_open(self) -> bool:
        return self._process.returncode is None

    def ask(self, request: Request) -> Request:
        """The reply. Raises Overrun, after which the process is gone."""
        try:
            self._pipe.send_bytes(json.dumps(request).encode())
        except OSError as error:
            self.close()
            raise Overrun(by_its_text=False) from error
        reply = self._reply(_WALL_S)
        if reply.get("full"):
            self.close()
        return reply

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def _reply(self, wall_s: float) -> Request:
        status = None
        try:
            if self._pipe.poll(wall_s):
                reply: Request = json.loads(self._pipe.recv_bytes())
                return reply
        except (EOFError, OSError):
            status = self._process.wait()
        self.close()
        raise Overrun(by_its_text=status in (None, -signal.SIGXCPU))


class GraderPool:
    """As many processes as there are requests at once, but no more than four or the number of cores."""

    def __init__(self, size: int | None = None) -> None:
        self.owner = os.getpid()
        size = min(_MOST, os.cpu_count() or 1) if size is None else size
        self._free: queue.LifoQueue[GraderProcess | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="repl-rl-grader")

    def ask(self, requests: Sequence[Request]) -> list[Request | None]:
        """The replies in order; None for a request that ended its process."""
        if len(requests) == 1:
            return [self._ask(requests[0])]
        return list(self._threads.map(self._ask, requests))

    def close(self) -> None:
        """End all processes."""
        self._threads.shutdown(wait=True)
        while not self._free.empty():
            process = self._free.get()
            if process is not None:
                process.close()

    def _ask(self, request: Request) -> Request | None:
        """Ask a free process. If it dies of something other than its limits, ask once more."""
        process = self._free.get()
        try:
            for _ in range(2):
                try:
                    if process is None or not process.is_open:
                        process = GraderProcess()
                    return process.ask(request)
                except Overrun as overrun:
                    if overrun.by_its_text:
                        return None
            return None
        finally:
            self._free.put(process)


_pool: GraderPool | None = None


def ask(requests: Sequence[Request]) -> list[Request | None]:
    """The replies of the current process's pool, which ends with the process."""
    global _pool
    if _pool is None or _pool.owner != os.getpid():
        _pool = GraderPool()
        atexit.register(_pool.close)
    return _pool.ask(requests)
