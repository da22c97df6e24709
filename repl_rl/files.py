"""Opens files that a stranger may have made, and replaces files without following what a stranger may have put there.

A run folder, a file of rollouts or a checkpoint that somebody sent can hold a link to a private file, a pipe on which a
reader waits for ever, a device without an end, and files that are larger than memory. Whatever reads such a folder
opens it by this module, which raises OSError with a sentence as its `strerror`.

Not covered: hard links, which can't be told from files, and whoever changes the folder while it is read.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 64 << 20
"""The largest file that is held in memory whole."""
MOST_LINE_BYTES = 32 << 20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: Path, inside: Path | None = None) -> BinaryIO:
    """A regular file, opened for reading. With `inside`, which is a folder above it, no part of the path below that
    folder may be a link. Raises OSError."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)  # opens no device and waits for nobody
    try:
        kind = stat.S_IFMT(os.fstat(handle).st_mode)
        if kind != stat.S_IFREG:
            raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, not a file", str(path))
        opened = f"/proc/self/fd/{handle}"  # by this name it is the same file, even if another is put at `path` now
        if inside is not None:
            expected = os.path.join(os.path.realpath(inside), os.path.relpath(path, inside))
            if os.readlink(opened) != expected:
                raise OSError(errno.ELOOP, "it is reached by a link", str(path))
        return open(opened, "rb")
    finally:
        os.close(handle)


def read_file(path: Path, inside: Path | None = None, most_bytes: int = MOST_BYTES) -> bytes:
    """The whole of a file that `open_file` opens. Raises OSError for a larger one."""
    with open_file(path, inside) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {_size(most_bytes)}", str(path))
    return data


def lines_of(file: BinaryIO, most_bytes: int = MOST_LINE_BYTES) -> Iterator[bytes]:
    """The lines of a file, each with its newline. Raises OSError at a longer one."""
    while line := file.readline(most_bytes + 1):
        if len(line) > most_bytes:
            raise OSError(errno.EFBIG, f"a line is longer than {_size(most_bytes)}", file.name)
        yield line


def replace_file(path: Path, content: str | bytes) -> None:
    """Put a file of this text, or of these bytes, at `path`, in place of a file or a link there; on failure that stays.
    Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    try:
        with part.open("xb") as file:  # "x" fails at a link, where "w" would follow it
            file.write(data)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _size(count: int) -> str:
    if count >= 1 << 20:
        return f"{count >> 20} MiB"
    return f"{count >> 10} KiB"
