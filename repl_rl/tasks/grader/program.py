"""The grader's process: a JSON request a line on stdin, a JSON reply a line on stdout.

`{"answer": REFERENCE, "submitted": [REPR, ...]}` is answered by `{"right": bool}`, without "submitted" by
`{"gradable": bool}`. Text that can't be read is no fault: the verdict is false. What takes too long or too much memory
ends the process, by limits that the kernel holds it to; whoever started it starts another.
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
    from repl_rl.tasks.grader import reading, same  # noqa: F401  # loaded before the first request is timed

    _hold_to_limits()
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        _allow_cpu()
        reply = _answer(json.loads(line))
        _reply(replies, reply)
        if reply.get("full"):
            return


def _reply(replies: Any, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _hold_to_limits() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _allow_cpu() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    name = "right" if "submitted" in request else "gradable"
    try:
        return {name: _judge(request)}
    except MemoryError:
        return {name: False, "full": True}
    except Exception:  # noqa: BLE001  # sympy raises all sorts on hostile text, and all of it means: not the answer
        return {name: False}


def _judge(request: dict[str, Any]) -> bool:
    from repl_rl.tasks.grader.reading import read_submission, read_text
    from repl_rl.tasks.grader.same import same

    reference = read_text(request["answer"])
    if "submitted" not in request:
        return same(reference, reference)
    return same(reference, read_submission(request["submitted"]))


if __name__ == "__main__":
    main()
