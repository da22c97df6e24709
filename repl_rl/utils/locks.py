"""Who writes a run folder: the process that holds its lock, as far as another process can tell without taking it.

Taking the lock to look would keep a command that begins at that moment from its run.
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
        if match := _WRITER.fullmatch(text):
            return Writer(int(match[1]), match[2])
    return None


def is_held(folder: Path) -> bool | None:
    """Whether the process that locked the folder still holds it. None where this machine can't tell: the process is one
    of another machine, or this one does not list its locks.

    False also for a process that was killed, after which `writer` still names it.
    """
    known = writer(folder)
    if known is None:
        return False
    if known.host != socket.gethostname():
        return None
    try:
        inode = (folder / LOCK_NAME).stat().st_ino
        rows = [row.split() for row in _LOCKS.read_text(encoding="ascii").splitlines()]
    except OSError:
        return None
    # A row: 1: FLOCK ADVISORY WRITE 2037 fe:00:131 0 EOF. The device is left out: some file systems have two numbers.
    held = {(row[4], row[5].rpartition(":")[2]) for row in rows if len(row) > 5 and row[1] == "FLOCK"}
    return (str(known.process), str(inode)) in held
