"""The program that `ask` and `compute` call: requests as JSON over the pipe whose descriptor is its argument; verdicts
with their reasons, or what a function returned, as JSON.

Modules are imported here, where calls share them; a module that has a function `warm` gets it called once. The calls
themselves run in forks: with limits on time and memory, and behind walls that keep them from files, processes and
networks.
"""

import gc
import importlib.util
import json
import logging
import os
import resource
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from mmap import mmap
from multiprocessing.connection import Connection
from typing import Any

from repl_rl.utils.folders import resource_folder
from repl_rl.utils.processes import die_with_parent

_MEMORY_BYTES = 2 << 30
_CPU_S = 2
_SLOT_BYTES = 1024
"""Shared memory for each call: a byte that says how far it has come, and the reason in UTF-8."""
_BEGUN, _NO_VERDICT, _NO, _YES = range(1, 5)
_WALL_S = 60
"""Far above the limit of processor time, so that a loaded machine does not change verdicts."""
_WALL_FACTOR = 20
"""The same for `compute`, whose limit of processor time is the caller's."""
_MOST_VALUE_BYTES = 256 << 20
_FEW_CALLS, _PARTS = 16, 8
"""In one fork, which costs as much as several calls; and parts for each core, where there are more calls than that."""


def confine() -> Callable[[], None]:
    """Keep this process from writing files, signalling others and reaching networks, as far as this Linux allows.

    By Landlock, and by the filter of system calls that sessions have (kernels/python/seccomp_filter.py): its fork calls
    what is returned here, after which it can't fork or start programs either. What is submitted is only ever read, so
    these are second walls. Without them, the limits on resources remain.
    """
    with suppress(Exception):  # the package is missing, or the kernel is too old
        sandlock = importlib.import_module("sandlock")
        sandlock.confine(sandlock.Sandbox(fs_readable=["/"]))
    with suppress(Exception):  # another machine than it is written for, or a kernel without filters
        file = resource_folder("kernels") / "python" / "seccomp_filter.py"
        spec = importlib.util.spec_from_file_location("repl_rl_seccomp_filter", file)
        assert spec is not None
        assert spec.loader is not None
        seccomp_filter = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(seccomp_filter)
        install: Callable[[], None] = seccomp_filter.Filter(may_fork=False).install
        return install
    return lambda: None


@cache
def _function(name: str) -> Callable[..., bool]:
    module, _, attribute = name.partition(":")
    loaded = importlib.import_module(module)
    getattr(loaded, "warm", lambda: None)()
    gc.freeze()  # so that a fork's collections don't copy what it shares
    function: Callable[..., bool] = getattr(loaded, attribute)
    return function


def _answer(calls: Sequence[Sequence[Any]], slots: mmap, wall: Callable[[], None]) -> None:
    """Fill a slot for each call, one after another. If this process ends early, the call that was begun is what ended
    it. A verdict stands before its reason is made, so that nothing that goes wrong in a reason changes it."""
    with suppress(OSError):
        wall()
    for start, (name, arguments) in zip(range(0, len(slots), _SLOT_BYTES), calls, strict=True):
        slots[start] = _BEGUN
        _limit(_CPU_S, _WALL_S)
        try:
            found: Any = _function(name)(*arguments)
            slots[start] = _YES if found else _NO
        except MemoryError:  # what is left of this process is not worth much
            slots[start] = _NO_VERDICT
            return
        except Exception as error:  # noqa: BLE001  # sympy raises all sorts on hostile text, and all of it means no
            slots[start], found = _NO, error
        try:
            raised = isinstance(found, Exception)
            reason = f"the answer can't be judged: {found}" if raised else getattr(found, "reason", "")
            text = reason.encode(errors="replace")[: _SLOT_BYTES - 1]
            slots[start + 1 : start + 1 + len(text)] = text
        except MemoryError:
            return
        except Exception:  # noqa: BLE001
            continue


def _limit(cpu_s: int, wall_s: int) -> None:
    """From now on. What goes beyond it ends this process by SIGXCPU or SIGALRM."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
    signal.alarm(wall_s)


def _computed(call: Sequence[Any], cpu_s: int, wall: Callable[[], None]) -> dict[str, Any]:
    """The fields of a `Computed`, from a fork."""
    name, arguments = call
    function = _function(name)
    program_pid = os.getpid()
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        try:
            die_with_parent(program_pid)
            with suppress(OSError):
                wall()
            _limit(cpu_s, _WALL_FACTOR * cpu_s)
            with open(writing, "wb") as pipe:
                pipe.write(_called(function, arguments))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read(_MOST_VALUE_BYTES + 1)
    _, status = os.waitpid(pid, 0)
    if len(said) > _MOST_VALUE_BYTES:
        return {"problem": f"it gives more than {_MOST_VALUE_BYTES >> 20} MiB", "is_ended": True}
    if said:
        fields: dict[str, Any] = json.loads(said)
        return fields
    if os.waitstatus_to_exitcode(status) in (-signal.SIGXCPU, -signal.SIGALRM):
        return {"problem": f"it takes more than {cpu_s} s of processor time", "is_ended": True}
    return {"problem": f"it crashes, or takes more than {_MEMORY_BYTES >> 30} GiB of memory", "is_ended": True}


def _called(function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    """The fields of a `Computed` as JSON; nothing if the memory did not suffice."""
    try:
        return json.dumps({"value": function(*arguments)}).encode()
    except MemoryError:
        return b""
    except BaseException as error:  # noqa: BLE001 - a panic of tokenizers is no Exception
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:_SLOT_BYTES]}"
        return json.dumps({"problem": text, "is_ended": not isinstance(error, Exception)}).encode()


def _verdicts(calls: Sequence[Sequence[Any]], wall: Callable[[], None]) -> list[tuple[bool | None, str]]:
    """Share the calls among forks, as many at once as there are cores.

    A call that ends its fork in another way than by its limits is asked once more: memory may have been short.
    """
    verdicts: list[tuple[bool | None, str]] = [(None, "")] * len(calls)
    cores, program_pid = os.cpu_count() or 1, os.getpid()
    size = max(min(_FEW_CALLS, len(calls) // cores + 1), len(calls) // (cores * _PARTS))
    waiting = deque((range(first, min(first + size, len(calls))), 0) for first in range(0, len(calls), size))
    """Parts of the calls, and how often the first one has ended its fork."""
    running: dict[int, tuple[range, int, mmap]] = {}
    for name in {name for name, _ in calls}:
        _function(name)
    while waiting or running:
        while waiting and len(running) < cores:
            part, ended = waiting.popleft()
            slots = mmap(-1, len(part) * _SLOT_BYTES)
            if not (pid := os.fork()):
                try:
                    die_with_parent(program_pid)
                    _answer([calls[index] for index in part], slots, wall)
                finally:
                    os._exit(0)
            running[pid] = part, ended, slots
        pid, status = os.wait()
        part, ended, slots = running.pop(pid)
        states = slots[::_SLOT_BYTES]
        answered = sum(state > _BEGUN for state in states)
        for place, index in enumerate(part[:answered]):
            state, *reason = slots[place * _SLOT_BYTES : (place + 1) * _SLOT_BYTES].rstrip(b"\0")
            verdicts[index] = None if state == _NO_VERDICT else state == _YES, bytes(reason).decode(errors="ignore")
        slots.close()
        left, is_begun = part[answered:], _BEGUN in states
        ended = int(is_begun) if answered else ended + 1
        overran = is_begun and os.waitstatus_to_exitcode(status) in (-signal.SIGXCPU, -signal.SIGALRM)
        if overran or ended == 2:
            left, ended = left[1:], 0
        if left:
            waiting.append((left, ended))
    return verdicts


def main() -> None:
    """Serve until the other end is closed."""
    pipe = Connection(int(sys.argv[1]))
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    wall = confine()
    pipe.send_bytes(b"ready")
    while True:
        try:
            request: dict[str, Any] = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        sys.path += [folder for folder in request["search"] if folder not in sys.path]
        if "compute" in request:
            answer: Any = _computed(request["compute"], request["cpu_s"], wall)
        else:
            answer = _verdicts(request["calls"], wall)
        pipe.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
