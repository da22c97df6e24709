"""The trainer's side of the grader processes. They are started when first needed and kept; one that hangs is replaced.

A request that takes too long or ends its process is graded as not right, because its text caused that. If a process
does not start at all, RewardError is raised, so that a broken machine never becomes a reward. Safe to call from several
threads, and in a forked child, which starts processes of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
        self._process = subprocess.Popen(
            [sys.executable, "-m", "repl_rl.tasks.grading.program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                "PATH": os.environ.get("PATH", ""),
                "PYTHONPATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
                "LC_ALL": "C.UTF-8",
            },
            start_new_session=True,
        )
        self._unread = b""
        try:
            self._line(_START_S)
        except Overrun as error:
            self.close()
            raise RewardError(
                f"the grader's process did not come up (exit status {self._process.returncode}); see what "
                f"`{sys.executable} -m repl_rl.tasks.grading.program` prints"
            ) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Request) -> Request:
        """The reply. Raises Overrun, after which the process is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            reply: Request = json.loads(self._line(_WALL_S))
        except OSError as error:
            self.close()
            raise Overrun(by_its_text=False) from error
        if reply.get("full"):
            self.close()
        return reply

    @property
    def is_open(self) -> bool:
        return self._process.returncode is None

    def close(self) -> None:
        """Kill the process and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _line(self, wall_s: float) -> bytes:
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + wall_s
        while b"\n" not in self._unread:
            left_s = deadline_s - time.monotonic()
            ready = left_s > 0 and select.select([self._process.stdout], [], [], left_s)[0]
            chunk = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                status = self._process.wait() if ready else None
                self.close()
                raise Overrun(by_its_text=status in (None, -signal.SIGXCPU))
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line


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
        with contextlib.suppress(queue.Empty):
            while True:
                process = self._free.get_nowait()
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
