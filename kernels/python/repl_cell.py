"""Runs cells in a process that does other things between them: what holds only while a cell runs is put up around it."""

import asyncio
import contextlib
import os
import resource
import signal

import repl_interpreter


class Cells:
    """The cells of one session in this process, whoever asks for them. SIGINT reaches nothing but a running cell."""

    def __init__(self, interpreter, memory_bytes):
        """`memory_bytes` is the soft and the hard limit on address space, or None."""
        self.interpreter = interpreter
        self._guard = _Guard(memory_bytes)
        self._pid = os.getpid()

    def run(self, source):
        """The `Outcome` of one cell. Never raises, and never returns in a process that the cell has forked."""
        try:
            with self._guard:
                outcome = self.interpreter.run(source)
        except KeyboardInterrupt:
            outcome = repl_interpreter.Outcome(repl_interpreter.ERROR, error_name="KeyboardInterrupt")
        if os.getpid() != self._pid:
            os._exit(0)  # at a terminal it would compete for the input, here it ends
        return outcome


class _Guard:
    """What holds only while a cell runs: SIGINT raises, memory is limited, and asyncio knows of no loop."""

    def __init__(self, memory_bytes):
        self._memory_bytes = memory_bytes
        self._handler = signal.default_int_handler
        self._policy = asyncio.DefaultEventLoopPolicy()
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __enter__(self):
        self._kernel_loop = asyncio._get_running_loop()
        self._kernel_policy = asyncio.get_event_loop_policy()
        asyncio._set_running_loop(None)
        asyncio.set_event_loop_policy(self._policy)
        self._limit_memory(0)
        signal.signal(signal.SIGINT, self._handler)

    def __exit__(self, *_exc_info):
        self._handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._limit_memory(1)
        self._policy = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(self._kernel_policy)
        asyncio._set_running_loop(self._kernel_loop)

    def _limit_memory(self, soft_index):
        """After a cell that used up its memory the reply needs some: the soft limit gives way to the hard one."""
        if self._memory_bytes is not None:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_AS, (self._memory_bytes[soft_index], self._memory_bytes[1]))
