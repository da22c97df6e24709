"""Yes or no, and why, from functions that read what strangers wrote. They are called in processes that can do nothing
but compute.

    ask([("repl_rl.tasks.grading.compare:equal", ["1/2", ["0.5"]])])    # [(True, "answer read as 0.5, ...")]

A program (`program.py`) is started when first needed and kept, with the functions' modules loaded. It answers calls in
forks of itself, which end with them. One that hangs, crashes or fills its memory costs its own verdict and no other.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from repl_rl.errors import RewardError

_START_S = 120.0
_PACKAGE_PARENT = Path(__file__).resolve().parents[3]

Call = tuple[str, Sequence[Any]]
"""A function's name, `module:function`, and its arguments, which JSON can hold."""


class Confined:
    """The program. Safe to call from several threads, which wait for each other."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._turn = threading.Lock()
        self._start()

    def ask(self, calls: Sequence[Call], search: Sequence[str] = ()) -> list[tuple[bool | None, str]]:
        """What the functions say, in order; None for a call that took too much time or memory, or crashed. Each comes
        with its reason: the `reason` of what the function returned, or what it raised; else "".

        A function that raises says no. `search` are folders to import from, besides this process's PYTHONPATH. Raises
        RewardError if the program does not come up, or ends twice: a broken machine never becomes a reward.
        """
        request = json.dumps({"calls": calls, "search": list(search)}).encode()
        with self._turn:
            for _ in range(2):
                try:
                    self._pipe.send_bytes(request)
                    return [(verdict, reason) for verdict, reason in json.loads(self._pipe.recv_bytes())]
                except (EOFError, OSError):
                    self.close()
                    self._start()
        raise RewardError(f"the process that checks answers ended twice on the same {len(calls)} calls")

    def close(self) -> None:
        """End the program, and wait for its end."""
        self.process.kill()
        self.process.wait()
        self._pipe.close()

    def _start(self) -> None:
        path = os.pathsep.join([str(_PACKAGE_PARENT), *filter(None, [os.environ.get("PYTHONPATH")])])
        names = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
        self._pipe, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "repl_rl.tasks.confined.program", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", ""), **names},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        try:
            if self._pipe.poll(_START_S):
                self._pipe.recv_bytes()
                return
        except (EOFError, OSError):
            self.process.wait()
        self.close()
        raise RewardError(
            f"the process that checks answers did not come up (exit status {self.process.returncode}); see what "
            f"`{sys.executable} -m repl_rl.tasks.confined.program 1` prints"
        )


current: Confined | None = None
_first = threading.Lock()


def ask(calls: Sequence[Call], search: Sequence[str] = ()) -> list[tuple[bool | None, str]]:
    """`Confined.ask` of this process's program, which ends with the process. A forked child starts one of its own."""
    global current
    with _first:
        if current is None or current.owner != os.getpid():
            current = Confined()
            atexit.register(current.close)
    return current.ask(calls, search)
