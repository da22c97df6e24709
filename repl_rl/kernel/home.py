"""The folder of one pool: connection files, sockets, a compiled copy of the kernel program. Gone when its owner is.

A small shell waits on a pipe that only the owner holds open. However the owner ends, SIGKILL included, the pipe closes
and the shell removes the folder. The kernels die by themselves, because their sandboxes watch their parent; one that
was only being made at that time sees that the pipe has closed.
"""

from __future__ import annotations

import contextlib
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from repl_rl.errors import KernelStartError
from repl_rl.kernel.paths import Installation, program_folder

_SOCKET_PATH_BYTES = 107
_LONGEST_NAME_BYTES = len("/repl-rl-12345678/1234567890-ipc-65535")
_REAPER = """
trap '' HUP INT TERM
read -r _
tries=0
while { [ -e "$1" ] || [ -e "$2" ]; } && [ $tries -lt 200 ]; do
  chmod -R u+rwx "$1" 2>/dev/null
  rm -rf "$1" 2>/dev/null
  rmdir "$2" 2>/dev/null
  [ -e "$1" ] || [ -e "$2" ] && sleep 0.05
  tries=$((tries + 1))
done
"""


class Home:
    """`path` is readable for its owner alone. `program` and `covers` lie in it, and kernels are shown what they hold.

    `lifeline` is the reading end of the pipe. In `sessions` lie the folders of sessions that get no /tmp of their own.
    `covers` holds an empty `folder` and an empty `file`, to be put over what
    kernels must not see.
    """

    def __init__(self, cgroup: Path | None = None) -> None:
        """`cgroup` is a control group to be removed as well. Raises KernelStartError if no folder can be made."""
        try:
            self.path = Path(tempfile.mkdtemp(prefix="repl-rl-", dir=_short_temporary_folder()))
        except OSError as error:
            raise KernelStartError(f"no temporary folder for kernels: {error}; set TMPDIR to a writable one") from error
        self.lifeline, self._held = os.pipe()
        self._reaper = subprocess.Popen(
            ["/bin/sh", "-c", _REAPER, "repl-rl-reaper", str(self.path), str(cgroup or "")],
            stdin=self.lifeline,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self.covers = self.path / "covers"
        (self.covers / "folder").mkdir(parents=True)
        (self.covers / "file").touch()
        _make_readable(self.covers)
        self.program = _compile_program(self.path / "program")
        self.sessions = self.path / "sessions"
        self.sessions.mkdir()
        self._kernels = 0
        self._folders = 0

    def next_connection_file(self) -> Path:
        """Where the next kernel's connection file goes; its sockets lie beside it."""
        self._kernels += 1
        return self.path / f"{self._kernels}.json"

    def next_session_folder(self) -> Path:
        """A new folder for one session."""
        self._folders += 1
        folder = self.sessions / str(self._folders)
        folder.mkdir(mode=0o700)
        return folder

    def linked_packages(self, installation: Installation) -> list[Path]:
        """Folders with links to all third-party packages but repl_rl: what is not named there can't be imported."""
        folders = []
        for number, folder in enumerate(installation.packages):
            links = self.path / "packages" / str(number)
            folders.append(links)
            if links.exists():
                continue
            links.mkdir(parents=True)
            for entry in installation.shown_entries(folder):
                (links / entry.name).symlink_to(entry)
        return folders

    def close(self) -> None:
        """Remove the folder and end the reaper. A second call does nothing."""
        remove_tree(self.path)
        self.let_go()
        self._reaper.wait()

    def let_go(self) -> None:
        """Close the pipe, as the death of the owner does."""
        if self._held >= 0:
            os.close(self._held)
            os.close(self.lifeline)
            self._held = -1


def remove_tree(folder: Path) -> None:
    """Whatever modes a session has given to what lies in it."""
    for inner, folders, _ in os.walk(folder):
        for path in (os.path.join(inner, name) for name in folders):
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _short_temporary_folder() -> str:
    """TMPDIR and its kin, unless sockets in there would have longer paths than Linux allows."""
    folder = tempfile.gettempdir()
    too_long = len(os.fsencode(folder)) + _LONGEST_NAME_BYTES > _SOCKET_PATH_BYTES
    return "/tmp" if too_long else folder


def _compile_program(target: Path) -> Path:
    """Copy the kernel program with bytecode that is taken on trust: a kernel can't write any, and starts often."""
    target.mkdir(mode=0o755)
    for source in program_folder().glob("*.py"):
        copy = target / source.name
        shutil.copyfile(source, copy)
        cached = target / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        py_compile.compile(
            str(copy), str(cached), source.name, doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )  # fmt: skip
    _make_readable(target)
    return target


def _make_readable(folder: Path) -> None:
    """Whatever the umask is: kernels run as users of their own."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
