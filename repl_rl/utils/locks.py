"""Which process writes a run folder: the one that holds its lock, as far as others can tell without taking the lock.

A process that took the lock to look would turn away a command that begins at that moment.
"""

import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from repl_rl.files import read_file
from repl_rl.utils.text import visible

LOCK_NAME = ".lock"
_MOST_CHARS = 300
_WRITER = re.compile(r"process (\d+) on (.+)")
_LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that wrote its name into a lock, and has not taken it out again."""

    process: int
    host: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


def writer(folder: Path) -> Writer | None:
    """Who locked the folder last; None if that one gave it back, or nobody did."""
    with suppress(OSError):
        text = visible(read_file(folder / LOCK_NAME, folder).decode(errors="replace"))[:_MOST_CHARS]
        match = _WRITER.fullmatch(text)
        if match:
            return Writer(int(match[1]), match[2])
    return None


def is_held(folder: Path) -> bool | None:
    """Whether the process that locked the folder still holds it. None where this machine can't tell: the process is one
    of another machine, or this one does not list its locks.

    False also for a process that was killed, after which `writer` still names it.
    """
    process = writer(folder)
    if process is None:
        return False
    if process.host != socket.gethostname():
        return None
    try:
        inode = (folder / LOCK_NAME).stat().st_ino
        rows = _LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for row in rows:
        # 1: FLOCK ADVISORY WRITE 2037 fe:00:131 0 EOF. The device is not compared: some file systems have two numbers.
        fields = row.split()
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        row_inode = fields[5].rpartition(":")[2]
        if fields[4] == str(process.process) and row_inode == str(inode):
            return True
    return False
