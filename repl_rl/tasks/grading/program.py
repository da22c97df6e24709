"""The grader's process: a JSON request a line on stdin, a JSON reply a line on stdout.

`{"answer": REFERENCE, "submitted": [REPR, ...]}` is answered by `{"right": bool}`, without "submitted" by
`{"gradable": bool}`. Text that can't be read is not an error: the verdict is false. What takes too long or too much
memory ends the process, by limits that the kernel holds it to; whoever started it starts another.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import warnings
from typing import Any

_MEMORY_BYTES = 2 << 30
CPU_S = 4
"""Seconds of processor time for one request."""


def main() -> None:
    """Serve until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    # Loaded before the first request is timed.
    from repl_rl.tasks.grading.compare import read_submission, read_text, same

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(used.ru_utime + used.ru_stime) + 1 + CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        request: dict[str, Any] = json.loads(line)
        name = "right" if "submitted" in request else "gradable"
        try:
            reference = read_text(request["answer"])
            other = read_submission(request["submitted"]) if "submitted" in request else reference
            reply = {name: same(reference, other)}
        except MemoryError:
            reply = {name: False, "full": True}
        except Exception:  # noqa: BLE001  # sympy raises all sorts on hostile text, and all of it means: not the answer
            reply = {name: False}
        print(json.dumps(reply), file=replies, flush=True)
        if reply.get("full"):
            return


if __name__ == "__main__":
    main()
