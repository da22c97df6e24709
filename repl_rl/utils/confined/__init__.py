"""Calls functions that read what strangers wrote (answers, tokenizers, chat templates) in processes that can do nothing
but compute, with limits on time and memory.

    ask([("repl_rl.tasks.grading.compare:equal", ["1/2", ["0.5"]])])    # [(True, "answer read as 0.5, ...")]
    compute("repl_rl.engine.strangers:spelled_file", [path], cpu_s=30)    # Computed(["!", ...])

`ask` is for many calls that each return yes or no; `compute` is for one call, and returns its value. A
program (`program.py`) is started when first needed and kept, with the functions' modules loaded. It answers calls in
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
from typing import Any, NamedTuple

from repl_rl.errors import RewardError
from repl_rl.utils.processes import start_process

_START_S = 120.0
_PACKAGE_PARENT = Path(__file__).resolve().parents[3]

Call = tuple[str, Sequence[Any]]
"""A function's name, `module:function`, and its arguments, which JSON can hold."""


class Computed(NamedTuple):
    """What a function returned, or why there is no such value."""

    value: Any = None
    problem: str = ""
    """What the function raised, or the limit that it met. Empty if it returned."""
    is_ended: bool = False
    """Whether it met a limit, crashed, or panicked, which is more than an exception."""


class Confined:
    """The program. Safe to call from several threads, which wait for each other."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._turn = threading.Lock()
        self._start()

    def ask(self, calls: Sequence[Call], search: Sequence[str] = ()) -> list[tuple[bool | None, str]]:
        """The verdicts of the functions, in order; None for a call that took too much time or memory, or crashed. Each
        comes with its reason: the `reason` of what the function returned, or what it raised; else "".

        An exception is a no. `search` are folders to import from, besides this process's PYTHONPATH. Raises
        RewardError if the program does not come up, or ends twice: a broken machine never becomes a reward.
        """
        request = {"calls": calls, "search": list(search)}
        answers = self._request(request, f"the same {len(calls)} calls")
        return [(verdict, reason) for verdict, reason in answers]

    def compute(self, name: str, arguments: Sequence[Any], cpu_s: int) -> Computed:
        """What the function `name` makes of `arguments` in `cpu_s` seconds of processor time. JSON can hold both.

        Raises RewardError as `ask` does.
        """
        request = {"compute": [name, list(arguments)], "cpu_s": cpu_s, "search": []}
        return Computed(**self._request(request, name))

    def _request(self, request: dict[str, Any], subject: str) -> Any:
        data = json.dumps(request).encode()
        with self._turn:
            for _ in range(2):
                try:
                    self._pipe.send_bytes(data)
                    return json.loads(self._pipe.recv_bytes())
                except (EOFError, OSError):
                    self.close()
                    self._start()
        raise RewardError(f"the process that reads what others wrote ended twice on {subject}")

    def close(self) -> None:
        """End the program, and wait for its end."""
        self.process.kill()
        self.process.wait()
        self._pipe.close()

    def _start(self) -> None:
        python_path = str(_PACKAGE_PARENT)
        if os.environ.get("PYTHONPATH"):
            python_path += os.pathsep + os.environ["PYTHONPATH"]
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": python_path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
            # The program's memory is limited by its address space, of which each thread takes a part.
            "TOKENIZERS_PARALLELISM": "false",
            "RAYON_NUM_THREADS": "1",
        }
        self._pipe, program_end = Pipe()
        self.process = start_process(
            [sys.executable, "-P", "-m", "repl_rl.utils.confined.program", str(program_end.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=[program_end.fileno()],
            start_new_session=True,
        )
        program_end.close()
        try:
            if self._pipe.poll(_START_S):
                self._pipe.recv_bytes()
                return
        except (EOFError, OSError):
            self.process.wait()
        self.close()
        raise RewardError(
            f"the process that reads what others wrote did not come up (exit status {self.process.returncode}); see "
            f"what `{sys.executable} -m repl_rl.utils.confined.program 1` prints"
        )


current: Confined | None = None
_current_lock = threading.Lock()


def ask(calls: Sequence[Call], search: Sequence[str] = ()) -> list[tuple[bool | None, str]]:
    """`Confined.ask` of this process's program."""
    return _program().ask(calls, search)


def compute(name: str, arguments: Sequence[Any], cpu_s: int) -> Computed:
    """`Confined.compute` of this process's program."""
    return _program().compute(name, arguments, cpu_s)


def _program() -> Confined:
    """This process's program, which ends with the process. A forked child starts one of its own."""
    global current
    with _current_lock:
        if current is None or current.owner != os.getpid():
            current = Confined()
            atexit.register(current.close)
    return current
