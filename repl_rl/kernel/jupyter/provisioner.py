"""Launches a kernel in a sandbox, as a kernel provisioner of jupyter_client."""

import contextlib
import os
import signal
import subprocess
from typing import Any

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner
from traitlets import Unicode

from repl_rl.kernel.jupyter.guest import Guest
from repl_rl.kernel.limits import Profile
from repl_rl.kernel.paths import Home, listening, remove_sockets
from repl_rl.kernel.processes import children_of, exited, interrupt
from repl_rl.kernel.sandbox import Sandbox, require_sandbox

NAME = "repl-rl-sandbox"


class SandboxProvisioner(LocalProvisioner):  # type: ignore[misc]
    """One kernel in one sandbox. Works under any jupyter_client frontend, over ipc and tcp."""

    profile = Unicode("default", help="Name of a sandbox profile, or the path of a .toml file").tag(config=True)

    process: subprocess.Popen[bytes] | None = None
    connection_info: dict[str, Any]
    _has_walls = True
    _home: Home | None = None

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        """Start `cmd`. A pool passes `sandbox` and `output_fd`; without a sandbox, this makes and owns one.

        With a `guest`, that kernel is started instead of `cmd`, which is then a kernelspec's that knows nothing of us.
        Raises DependencyError or SandboxError if the sandbox of its own can't be had here.
        """
        try:
            self._launch(cmd, **kwargs)
        except BaseException:
            self._close_home()
            raise
        return self.connection_info

    def _launch(self, cmd: list[str], **kwargs: Any) -> None:
        sandbox: Sandbox | None = kwargs.get("sandbox")
        guest: Guest | None = kwargs.get("guest")
        if sandbox is None:
            profile = Profile.load(self.profile)
            require_sandbox("bwrap")  # a front end shows what this raises, and nothing that bwrap prints
            self._home = self._home or Home()  # one for all kernels that it starts
            sandbox = Sandbox("bwrap", profile, profile.limits, self._home)
        self._has_walls = sandbox.kind == "bwrap"
        assert sandbox.home is not None
        lifeline = sandbox.home.lifeline
        connection = {key: value for key, value in self.connection_info.items() if not isinstance(value, bytes)}
        with listening(self.connection_info) as sockets:
            record: dict[str, Any] = {  # as kernels/python/program.py and repl_guest.py document
                "connection": connection | {"key": self.connection_info["key"].decode()},
                "sockets": sockets,
                "uid": sandbox.uid(),
                "lifeline": lifeline,
            }
            if guest is None:
                # The kernelspec's arguments, for the interpreter that the sandbox shows: the environment's base
                # interpreter.
                argv = [word.replace("{program_dir}", str(sandbox.program_inside)) for word in cmd[1:]]
                record |= {
                    "rlimits": sandbox.limits.rlimits(),
                    "watches_parent": sandbox.kind == "none",
                    "site_packages": sandbox.packages(),
                }
            else:
                argv = ["-s", "-S", "-P", f"{sandbox.program_inside}/launch.py"]
                folders = [*filter(None, [guest.environment.get("PYTHONPATH")]), *sandbox.packages()]
                record |= {
                    "argv": guest.argv,
                    "environment": {**guest.environment, "PYTHONPATH": os.pathsep.join(folders)},
                    "rlimits": sandbox.limits.guest_rlimits(),
                    "walls": sandbox.kind,
                    "charged": sandbox.home.group is not None,
                    "lists_interfaces": True,
                    "tmp_mb": sandbox.limits.tmp_mb,
                    "readable": [],
                    "links": sandbox.links,
                }
            self.process = sandbox.launch(
                argv,
                record,
                output=kwargs.get("output_fd", subprocess.DEVNULL),
                descriptors=[*sockets.values(), lifeline],
                cwd="/tmp" if sandbox.kind == "none" else "/",
            )
        self.pid = self.process.pid

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel itself; SIGKILL and SIGTERM end everything in its sandbox."""
        if signum in (signal.SIGKILL, signal.SIGTERM):
            await self.kill()
            return
        pid = None if self.process is None else self.kernel_pid()
        if pid is None:
            return
        if signum == signal.SIGINT:
            interrupt(pid)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    async def kill(self, restart: bool = False) -> None:
        """Kill the PID namespace's first process, which ends all others; without one, kill the process group."""
        if self.process is None or self.process.poll() is not None:
            return
        pid = self._first_pid()
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            else:
                os.killpg(self.process.pid, signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        await self.kill(restart)

    async def wait(self) -> int | None:
        """Wait until the kernel and everything that it started is gone."""
        process = self.process
        if process is None:
            return 0
        await exited(process)
        self.process = None
        return process.returncode

    async def cleanup(self, restart: bool = False) -> None:
        """Release what the launch took. The connection file belongs to the kernel manager."""
        remove_sockets(self.connection_info)
        if not restart:
            self._close_home()

    def _close_home(self) -> None:
        if self._home is not None:
            self._home.close()
            self._home = None

    def kernel_pid(self) -> int | None:
        """The kernel is the first child of the sandbox's first process; without a sandbox it is the process itself."""
        assert self.process is not None
        if not self._has_walls:
            return self.process.pid
        pid = self._first_pid()
        return None if pid is None else _child_of(pid)

    def _first_pid(self) -> int | None:
        """The sandbox's first process: bwrap's only child, once it has one."""
        if not self._has_walls or self.process is None:
            return None
        return _child_of(self.process.pid)


def _child_of(pid: int) -> int | None:
    """The oldest child of a process of one thread."""
    with contextlib.suppress(OSError):
        return next(iter(children_of(pid)), None)
    return None


def register() -> None:
    """Make the provisioner known to jupyter_client where the package's entry points are not installed."""
    from importlib.metadata import EntryPoint

    factory = KernelProvisionerFactory.instance()
    entry = EntryPoint(NAME, f"{__name__}:{SandboxProvisioner.__name__}", KernelProvisionerFactory.GROUP_NAME)
    factory.provisioners.setdefault(NAME, entry)
