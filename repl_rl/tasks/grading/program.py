"""The grader's process: a JSON request at a time over the pipe whose descriptor is its argument, a JSON reply to each.

`{"answer": REFERENCE, "submitted": [TEXT, ...]}` is answered by `{"right": bool}`, without "submitted" by
`{"gradable": bool}`. Text that can't be read is not an error: the verdict is false. A request that takes too much time
or memory ends the process, by resource limits of the operating system; its parent then starts another one.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import warnings
from multiprocessing.connection import Connection
from typing import Any

_MEMORY_BYTES = 2 << 30
CPU_S = 4
"""Seconds of processor time for one request."""


def main() -> None:
    """Serve until the other end is closed."""
    pipe = Connection(int(sys.argv[1]))
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    # Imported here so that the time of the first request does not include it.
    from repl_rl.tasks.grading.compare import read_submission, read_text, same

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    reply: dict[str, bool] = {"ready": True}
    while True:
        pipe.send_bytes(json.dumps(reply).encode())
        if reply.get("full"):
            return
        try:
            request: dict[str, Any] = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(used.ru_utime + used.ru_stime) + 1 + CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        name = "right" if "submitted" in request else "gradable"
        try:
            reference = read_text(request["answer"])
            other = read_submission(request["submitted"]) if "submitted" in request else reference
            reply = {name: same(reference, other)}
        except MemoryError:
            reply = {name: False, "full": True}
        except Exception:  # noqa: BLE001  # sympy raises all sorts on hostile text, and all of it means: not the answer
            reply = {name: False}


if __name__ == "__main__":
    main()
