"""Folders of the package and of a cache, and the files and folders that a user names.

What is costly to make is made once: in a temporary folder, which is then renamed, so a folder that exists is complete.
Such folders lie in `$XDG_CACHE_HOME/repl-rl`, or `~/.cache/repl-rl`, and may be deleted at any time while nobody reads
them. Two processes that want the same folder make it once. Not covered: network file systems whose locks don't hold.
"""

import errno
import fcntl
import glob
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from repl_rl.errors import ConfigError, DependencyError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST_BYTES = 2**20
"""A disk with less free space than this is full."""
_PACKAGE = Path(__file__).resolve().parents[1]
_IN_USE = ".in-use"


def resource_folder(name: str) -> Path:
    """The folder `name` ("prompts", "configs", ...): inside the package in a wheel, beside it in a checkout.

    Raises DependencyError if it is in neither folder, which means a broken installation.
    """
    for parent in (_PACKAGE, _PACKAGE.parent):
        if (parent / name).is_dir():
            return parent / name
    raise DependencyError(f"the folder {name!r} of repl_rl is missing from {_PACKAGE}; reinstall the package")


def is_local_path(name: str) -> bool:
    """Whether `name` can only mean a file or folder of this machine, and not something on a hub."""
    return name.startswith((".", "/", "~")) or name.endswith("/")


def shipped_configs() -> list[str]:
    """Names of the configs in the package."""
    return sorted(path.stem for path in resource_folder("configs").glob("*.yaml"))


def require_file(flag: str, path: Path) -> None:
    """Check that the file that the user gives with `flag` can be written, and make its folder if there is none.

    Leaves no new file. Raises ConfigError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        is_blocked = isinstance(error, FileExistsError | NotADirectoryError)
        reason = f"{path.parent} is not a folder" if is_blocked else error.strerror
        raise ConfigError(f"{flag} {path} can't be written: {reason}; give another file") from error


def require_folder(flag: str, path: Path) -> None:
    """Check that the folder that the user gives with `flag` can be written, or be made. Makes nothing.

    Raises ConfigError. What only a try would tell (a full disk, a file system of its own rules) is not covered.
    """
    existing = path.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigError(f"{flag} {path} can't be a folder: {existing} is a file; give another folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag} {path} can't be written: {existing} is not writable; give another folder")


def full_disk(error: BaseException, folder: Path) -> str | None:
    """The message for an error that a full disk led to, that of `folder` or of temporary files; None for any other.

    torch and safetensors then raise errors of their own, some of which don't name the cause: so the disks are looked at
    first.
    """
    temporary = Path(tempfile.gettempdir())
    is_full = any(path.is_dir() and shutil.disk_usage(path).free < _LEAST_BYTES for path in (folder, temporary))
    cause: BaseException | None = error
    while cause is not None and not is_full:
        has_number = isinstance(cause, OSError) and cause.errno in _FULL
        is_full = has_number or any(os.strerror(number) in str(cause) for number in _FULL)
        cause = cause.__cause__ or cause.__context__
    if not is_full:
        return None
    first_line, _, _ = str(error).partition("\n")
    return (
        f"a disk is full: that of {folder}, or of {temporary} with temporary files (TMPDIR). {first_line}; "
        "free some space"
    )


def cache_home() -> Path:
    """The folder of all caches of this package; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "repl-rl"


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None, mode: int = 0o700) -> Iterator[Path]:
    """A new folder in `parent` (default: where temporary folders go), removed at the end.

    Also removes folders of this prefix that killed processes of this machine have left there. Each process locks a file
    in its own folder for as long as it lives. Not covered: file systems without locks, where such folders stay.
    """
    if parent is None:
        parent = Path(tempfile.gettempdir())
    prefix = f"{prefix}{socket.gethostname()}-"
    for lock_file in parent.glob(f"{glob.escape(prefix)}*/{_IN_USE}"):
        with suppress(OSError), lock_file.open("r+") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                continue
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises OSError while its process lives
            shutil.rmtree(lock_file.parent, ignore_errors=True)
    folder = parent / f"{prefix}{secrets.token_hex(6)}"
    folder.mkdir(mode=mode, parents=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        part = folder / f"{_IN_USE}.part"
        file = stack.enter_context(part.open("w"))
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.rename(folder / _IN_USE)  # only now, so that a file of this name is never without its lock
        yield folder


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` if it is not there yet; callers that come while it is being made wait.

    `make` gets an empty folder to fill. If it raises, or on an OSError, the exception passes through and no folder is
    left.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.part")
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print(f"another process is making {folder}; waiting for it", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        if not folder.is_dir():
            shutil.rmtree(part, ignore_errors=True)  # left by a process that was killed
            part.mkdir()
            make(part)
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        lock.release()
    return folder
