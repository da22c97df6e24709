"""The grader's process: a JSON request at a time over the pipe whose descriptor is its argument, a JSON reply to each.

`{"answer": REFERENCE, "submitted": [TEXT, ...]}` is answered by `{"right": bool}`, without "submitted" by
`{"gradable": bool}`. `{"family": NAME, "operands": [...], "submitted": [...]}` asks what the family accepts; "gym" is
the folder of reasoning-gym, for families that need it. Text that can't be read is not an error: the verdict is false.
A request that takes too much time or memory ends the process, by resource limits of the operating system; its parent
then starts another one.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import resource
import sys
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from repl_rl.utils.folders import resource_folder

_MEMORY_BYTES = 2 << 30
CPU_S = 4
"""Seconds of processor time for one request."""


def confine() -> None:
    """Have this process write no file, start no other process, signal none and reach no network, as far as this Linux
    allows: by Landlock, and by the filter of system calls that sessions have (kernels/python/seccomp_filter.py).

    What is submitted is only ever read, so these are second walls. Without them, the limits on resources remain.
    """
    with suppress(Exception):  # the package is missing, or the kernel is too old
        sandlock = importlib.import_module("sandlock")
        sandlock.confine(sandlock.Sandbox(fs_readable=["/"]))
    with suppress(Exception):  # another machine than it is written for, or a kernel without filters
        place = resource_folder("kernels") / "python" / "seccomp_filter.py"
        spec = importlib.util.spec_from_file_location("repl_rl_seccomp_filter", place)
        assert spec is not None
        assert spec.loader is not None
        seccomp_filter = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(seccomp_filter)
        seccomp_filter.Filter(may_fork=False).install()


def main() -> None:
    """Serve until the other end is closed."""
    pipe = Connection(int(sys.argv[1]))
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    # Imported here so that the time of the first request does not include it.
    from repl_rl.tasks.grading.compare import read_submission, read_text, same
    from repl_rl.tasks.make import KNOWN

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    confine()
    reply: dict[str, bool] = {"ready": True}
    while True:
        pipe.send_bytes(json.dumps(reply).encode())
        if reply.get("full"):
            return
        try:
            request: dict[str, Any] = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        if "gym" in request:
            if request["gym"] not in sys.path:
                sys.path.append(request["gym"])
            importlib.import_module("reasoning_gym")
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(used.ru_utime + used.ru_stime) + 1 + CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        name = "right" if "submitted" in request else "gradable"
        try:
            if "family" in request:
                accepts = KNOWN[request["family"]].accepts
                reply = {name: accepts is not None and accepts(request["submitted"], *request["operands"])}
            else:
                reference = read_text(request["answer"])
                other = read_submission(request["submitted"]) if "submitted" in request else reference
                reply = {name: same(reference, other)}
        except MemoryError:
            reply = {name: False, "full": True}
        except Exception:  # noqa: BLE001  # sympy raises all sorts on hostile text, and all of it means: not the answer
            reply = {name: False}


if __name__ == "__main__":
    main()
