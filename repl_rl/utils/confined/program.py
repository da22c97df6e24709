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
from functools import cache, partial
from mmap import mmap
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from repl_rl.utils.folders import resource_folder
from repl_rl.utils.processes import die_with_parent

_MEMORY_BYTES = 2 << 30
_CPU_S = 2
_SLOT_BYTES = 1024
"""Shared memory for each call: a byte for its state (zero before it begins), then the reason in UTF-8."""
_BEGUN, _NO_VERDICT, _NO, _YES = range(1, 5)
_WALL_S = 60
"""Far above the limit of processor time, so that a loaded machine does not change verdicts."""
_WALL_FACTOR = 20
"""The same for `compute`, whose limit of processor time is the caller's."""
_MOST_VALUE_BYTES = 256 << 20
_FEW_CALLS = 16
"""Answered in one fork, which costs as much as several calls."""
_FORKS_PER_CORE = 8
"""Where there are more calls than that."""


def confine() -> Callable[[], None]:
    """Keep this process from writing files, signalling others and reaching networks, as far as this Linux allows.

    By Landlock, and by the filter of system calls that sessions have (kernels/python/seccomp_filter.py). The filter is
    installed by the function that is returned here: each fork calls it, and can't fork or start programs after that.
    Answers are only ever read, never run, so these are second walls. Without them, the limits on resources remain.
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
            result: Any = _function(name)(*arguments)
            slots[start] = _YES if result else _NO
        except MemoryError:  # what is left of this process is not worth much
            slots[start] = _NO_VERDICT
            return
        except Exception as error:  # noqa: BLE001  # sympy raises all sorts on hostile text, and all of it means no
            slots[start] = _NO
            result = error
        try:
            if isinstance(result, Exception):
                reason = f"the answer can't be judged: {result}"
            else:
                reason = getattr(result, "reason", "")
            text = reason.encode(errors="replace")[: _SLOT_BYTES - 1]
            slots[start + 1 : start + 1 + len(text)] = text
        except MemoryError:
            return
        except Exception:  # noqa: BLE001
            continue


def _limit(cpu_s: int, wall_s: int) -> None:
    """Let this process run for so long from now on. SIGXCPU or SIGALRM then ends it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime) + 1 + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
    signal.alarm(wall_s)


def _fork(work: Callable[[], None]) -> int:
    """Do the work in a fork, which ends with this process. Returns the fork's process id."""
    program_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(program_pid)
            work()
        finally:
            os._exit(0)
    return pid


def _computed(call: Sequence[Any], cpu_s: int, wall: Callable[[], None]) -> dict[str, Any]:
    """The fields of a `Computed`, from a fork."""
    name, arguments = call
    function = _function(name)
    read_end, write_end = os.pipe()

    def work() -> None:
        with suppress(OSError):
            wall()
        _limit(cpu_s, _WALL_FACTOR * cpu_s)
        with open(write_end, "wb") as pipe:
            pipe.write(_called(function, arguments))

    pid = _fork(work)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        reply = pipe.read(_MOST_VALUE_BYTES + 1)
    _, status = os.waitpid(pid, 0)
    if len(reply) > _MOST_VALUE_BYTES:
        return {"problem": f"it gives more than {_MOST_VALUE_BYTES >> 20} MiB", "is_ended": True}
    if reply:
        fields: dict[str, Any] = json.loads(reply)
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
        message = " ".join(str(error).split())[:_SLOT_BYTES]
        problem = f"{type(error).__name__}: {message}"
        return json.dumps({"problem": problem, "is_ended": not isinstance(error, Exception)}).encode()


class _Batch(NamedTuple):
    """Indices of calls that one fork answers in order, and how often the first of them has ended its fork."""

    indices: range
    crashes: int = 0


def _verdicts(calls: Sequence[Sequence[Any]], wall: Callable[[], None]) -> list[tuple[bool | None, str]]:
    """Share the calls among forks, as many at once as there are cores.

    A call that ends its fork in another way than by its limits is asked once more: memory may have been short.
    """
    verdicts: list[tuple[bool | None, str]] = [(None, "")] * len(calls)
    cores = os.cpu_count() or 1
    size = max(min(_FEW_CALLS, len(calls) // cores + 1), len(calls) // (cores * _FORKS_PER_CORE))
    waiting = deque[_Batch]()
    for start in range(0, len(calls), size):
        waiting.append(_Batch(range(start, min(start + size, len(calls)))))
    running: dict[int, tuple[_Batch, mmap]] = {}
    for name in {name for name, _ in calls}:
        _function(name)  # imported here, once, and not in each fork
    while waiting or running:
        while waiting and len(running) < cores:
            batch = waiting.popleft()
            slots = mmap(-1, len(batch.indices) * _SLOT_BYTES)
            batch_calls = [calls[index] for index in batch.indices]
            pid = _fork(partial(_answer, batch_calls, slots, wall))
            running[pid] = batch, slots
        pid, status = os.wait()
        batch, slots = running.pop(pid)
        states = slots[::_SLOT_BYTES]
        answered = sum(1 for state in states if state > _BEGUN)
        for place, index in enumerate(batch.indices[:answered]):
            start = place * _SLOT_BYTES
            verdicts[index] = _verdict(slots[start : start + _SLOT_BYTES])
        slots.close()

        rest = batch.indices[answered:]
        is_begun = _BEGUN in states
        crashes = int(is_begun) if answered else batch.crashes + 1
        overran = is_begun and os.waitstatus_to_exitcode(status) in (-signal.SIGXCPU, -signal.SIGALRM)
        if overran or crashes == 2:
            rest = rest[1:]  # the call that ended the fork has no verdict
            crashes = 0
        if rest:
            waiting.append(_Batch(rest, crashes))
    return verdicts


def _verdict(slot: bytes) -> tuple[bool | None, str]:
    state = slot[0]
    reason = slot[1:].rstrip(b"\0").decode(errors="ignore")
    return (None if state == _NO_VERDICT else state == _YES), reason


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
