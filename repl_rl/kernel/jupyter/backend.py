"""Kernels of any installed Jupyter kernelspec: R, Julia, Sage, Lean, stock ipykernel, remote ones, and our own.

Our own kernelspec, `repl_rl`, comes with the package and needs no installation. Its kernels run in the sandbox of its
provisioner, under all of the limits, and report exactly how a cell ended. Others on this machine run in it too, as
guests (guest.py), under the same limits. With `kernel.sandbox: none` they are launched by jupyter_client as their spec
says, and of the limits, only those on time and output hold; they can access all that the user can. So can those that a
provisioner of their own launches. Without a sandbox, those on this machine start in an empty folder of their own.

What other kernels can do, by the protocol:
- Python kernels built on IPython and R's IRkernel get a `submit_final_answer`. In other languages there is no answer.
- They say where a cell of their language ends (`is_complete`), if they can.
- `exit()` loses the state; a SystemExit that IPython catches is an exception like others. IPython shows tracebacks in
  its own form, and only the last of several expressions in a cell.
- A cell that did not compile and that the kernel calls unfinished is `incomplete`. See `judge` for `compiled`.
- Text is in the order in which it arrives: ipykernel buffers stdout and stderr separately, until each is flushed.
- What they write to descriptors that they do not capture is shown only if they fail to start.

Kernels on this machine are killed with all that they started, at the end and when their owner dies. In a sandbox, and
in Python on this machine, they are reached through sockets in a private folder, all others through TCP ports.
"""

import logging
import os
from typing import Any

import zmq.asyncio
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory
from zmq.constants import SocketOption

from repl_rl.errors import ConfigError
from repl_rl.kernel.border import MOST_BYTES
from repl_rl.kernel.jupyter import provisioner
from repl_rl.kernel.jupyter.guest import Guest
from repl_rl.kernel.jupyter.kernel import KernelspecKernel, Kind
from repl_rl.kernel.jupyter.messages import OTHERS_BYTES
from repl_rl.kernel.limits import Limits, Profile
from repl_rl.kernel.paths import Home, program_folder
from repl_rl.kernel.processes import MARK
from repl_rl.kernel.sandbox import Sandbox, SandboxKind, require_sandbox
from repl_rl.utils.text import nearest
from repl_rl.utils.threads import to_own_thread

OWN_NAME = "repl_rl"
_LOCAL = "local-provisioner"
_MOST_SOCKETS = 1 << 16
_MOST_QUEUED = 32
"""Messages of a guest that wait on our side; further ones wait on its own, where it pays for them."""

_unheard = logging.getLogger(f"{__name__}.jupyter_client")
_unheard.setLevel(logging.CRITICAL + 1)
"""Silences jupyter_client, which logs with tracebacks what is raised here."""


class KernelspecBackend:
    """A `Backend` for the kernelspec called `name`.

    `profile` is the sandbox profile. Of it, others than our own get `python_path` and `mounts` alone where they have no
    sandbox.
    """

    def __init__(
        self, name: str, limits: Limits, sandbox_kind: SandboxKind = "auto", *, profile: Profile | None = None
    ) -> None:
        self.name = name
        self.restarts = 0
        self._limits = limits
        self._kind: SandboxKind = sandbox_kind
        self._profile = profile or Profile.load()
        self._guest: Guest | None = None
        self.home: Home | None = None
        self._context: zmq.asyncio.Context | None = None

    async def open(self, memory_mb: float) -> None:
        """Raises what `require_kernelspec` and `Guest.of` raise, and SandboxError if files can't be shown as asked."""
        self._spec, kind = await to_own_thread(require_kernelspec, self.name, self._kind)
        launcher = _provisioner_name(self._spec)
        self._is_ours = launcher == provisioner.NAME
        self._is_local = launcher == _LOCAL and kind == "none"
        if launcher == _LOCAL and kind == "bwrap":
            self._guest = await to_own_thread(Guest.of, self.name, self._spec, self._profile)
            # our provisioner launches it in the sandbox
            stanza = {"kernel_provisioner": {"provisioner_name": provisioner.NAME}}
            self._spec.metadata = {**self._spec.metadata, **stanza}
        self._require_folders(kind)
        try:
            has_sandbox = self._is_ours or self._guest is not None
            memory = (memory_mb, self._limits.session_bytes()) if has_sandbox else None
            self.home = await to_own_thread(Home, memory)
            if has_sandbox:
                self._sandbox = Sandbox(
                    kind,
                    self._profile,
                    self._limits,
                    self.home,
                    divides=self._guest is not None,
                    installation=self._guest.installation if self._guest else None,
                    shown=self._guest.shown if self._guest else (),
                )
        except BaseException:
            await self.close()
            raise
        self._context = zmq.asyncio.Context()
        self._context.max_sockets = _MOST_SOCKETS
        if self._guest is not None:
            self._context.setsockopt(SocketOption.MAXMSGSIZE, self._limits.read_mb * (1 << 20))
            self._context.setsockopt(SocketOption.RCVHWM, _MOST_QUEUED)
        else:
            self._context.setsockopt(SocketOption.MAXMSGSIZE, MOST_BYTES if self._is_ours else OTHERS_BYTES)

    def _require_folders(self, kind: SandboxKind) -> None:
        """Raises ConfigError if the profile shows folders that these kernels could not find."""
        if self._profile.mounts and self._is_ours and kind == "none":
            raise ConfigError(
                f"sandbox profile {self._profile.name} has mounts, and without a sandbox kernels of {self.name!r} have "
                "no folder of their own to find them in; take `kernel.backend: fork`"
            )
        is_here = self._is_ours or self._is_local or self._guest is not None
        if (self._profile.mounts or self._profile.python_path) and not is_here:
            raise ConfigError(
                f"sandbox profile {self._profile.name} has mounts or python_path, and kernels of {self.name!r} may run "
                "on another machine, where these folders are not; take another profile"
            )

    async def start(self) -> KernelspecKernel:
        """A fresh kernel that answers. Raises KernelStartError, with what it printed, if it is not up in time."""
        assert self.home is not None
        connection_file = self.home.next_connection_file()
        words: dict[str, Any] = {}
        if self._is_ours or self._guest is not None:
            words = {"sandbox": self._sandbox, "guest": self._guest}
        elif self._is_local:
            environment = {**os.environ, MARK: str(connection_file)}
            folders = [str(folder) for folder in self._profile.python_path]  # for the profile's own modules
            if folders:
                if os.environ.get("PYTHONPATH"):
                    folders.append(os.environ["PYTHONPATH"])
                environment["PYTHONPATH"] = os.pathsep.join(folders)
            words = {"env": environment}
        address: dict[str, Any] = {}
        speaks_ipc = self._is_ours or self._guest is not None or (self._is_local and self._spec.language == "python")
        if speaks_ipc:
            address = {"transport": "ipc", "ip": str(connection_file.with_suffix(""))}
        manager = AsyncKernelManager(
            kernel_name=self.name,
            kernel_spec_manager=_OneSpec(self._spec),
            connection_file=str(connection_file),
            context=self._context,
            log=_unheard,
            **address,
        )
        mounts = self._profile.mounts if self._is_local else {}
        kind = Kind(self._is_ours, self._is_local, self._guest is not None)
        kernel = KernelspecKernel(manager, self._limits, kind, pool_group=self.home.group, mounts=mounts)
        try:
            await kernel.start(**words)
        except BaseException:
            await kernel.close()
            raise
        return kernel

    async def close(self) -> None:
        if self._context is not None:
            self._context.destroy(linger=0)
        if self.home is not None:
            await to_own_thread(self.home.close)


class _OneSpec(KernelSpecManager):  # type: ignore[misc]
    """Knows one kernelspec, so that Jupyter's folders are not searched for every kernel."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__()
        self._spec = spec

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return self._spec


def require_kernelspec(name: str, sandbox: SandboxKind) -> tuple[KernelSpec, SandboxKind]:
    """The kernelspec, and the kind of sandbox to use.

    Raises ConfigError for a kernelspec that can't be used as asked, else what `require_sandbox` raises.
    """
    spec = find_spec(name)
    launcher = _provisioner_name(spec)
    if launcher not in (provisioner.NAME, _LOCAL) and sandbox != "none":
        raise ConfigError(
            f"kernelspec {name!r} is launched by its own provisioner {launcher!r}, outside of our sandbox, with access "
            "to all that that one has; say `kernel.sandbox: none` if you want that, or take another kernelspec"
        )
    kind = require_sandbox(sandbox)
    if kind == "sandlock":
        raise ConfigError(
            f"kernelspec {name!r} has no walls but bwrap's, and here it would run under {kind} (`repl-rl doctor` says "
            "whether bwrap works); take `kernel.backend: fork`, or `kernel.sandbox: none` for a kernel that may do all "
            "that you can do"
        )
    return spec, kind


def find_spec(name: str) -> KernelSpec:
    """The kernelspec called `name`. Raises ConfigError if there is none, or its provisioner is missing."""
    provisioner.register()
    if name == OWN_NAME:
        return KernelSpec.from_resource_dir(str(program_folder()))
    specs = KernelSpecManager(log=_unheard)
    installed = sorted({OWN_NAME, *specs.find_kernel_specs()})
    try:
        return specs.get_kernel_spec(name)
    except NoSuchKernel as error:
        if name.lower() in installed:
            raise ConfigError(f"kernelspec {name!r} needs a kernel provisioner that is not installed") from error
        raise ConfigError(f"there is no kernelspec {name!r}; {nearest(name, installed)}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"kernelspec {name!r} can't be read: {error}") from error


def _provisioner_name(spec: KernelSpec) -> str:
    stanza = spec.metadata.get("kernel_provisioner", {})
    return str(stanza.get("provisioner_name") or KernelProvisionerFactory.instance().default_provisioner_name)
