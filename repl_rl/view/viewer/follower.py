"""The indexer's process, as a viewer holds it: started with it, asked to look again, ended with it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

_NOT_AGAIN_FOR_S = 0.8


class Follower:
    """Brings an index up to date beside its viewer. Threads may share it."""

    def __init__(self, target: Path, index: Path) -> None:
        self._command = [sys.executable, "-m", "repl_rl.view.viewer.indexer", str(target), str(index)]
        self._lock = threading.Lock()
        self._poked_s = time.monotonic()
        self._process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()

    def poke(self) -> None:
        """Have the files looked at again, unless that was only just asked for. Starts an indexer that has died anew."""
        with self._lock:
            if time.monotonic() - self._poked_s < _NOT_AGAIN_FOR_S:
                return
            self._poked_s = time.monotonic()
            if self._process.poll() is not None:
                self._process = self._start()
                return
            assert self._process.stdin is not None
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                self._process.stdin.write(b".")

    def close(self) -> None:
        """End the process; what it has committed stays."""
        with self._lock:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.terminate()
            self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        """In a session of its own, so that Ctrl-C reaches the viewer alone, which then ends it."""
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0
        )
        assert process.stdin is not None
        return process
