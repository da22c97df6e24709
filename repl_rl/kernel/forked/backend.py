"""The default backend: one warm fork server, replaced when it dies, and the folder for its sessions' files."""

from __future__ import annotations

import asyncio
import logging

from repl_rl.errors import KernelStartError
from repl_rl.kernel.forked.cgroup import MemoryCgroup
from repl_rl.kernel.forked.kernel import ForkedKernel
from repl_rl.kernel.forked.server import ForkServer
from repl_rl.kernel.home import Home
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.profile import Profile
from repl_rl.kernel.sandbox import Sandbox, SandboxKind, require_sandbox

_MIB = 1024 * 1024
_SERVER_MB = 256.0
"""Room for the fork server itself beside its sessions' budget."""

_log = logging.getLogger(__name__)


class ForkBackend:
    """A `Backend`: one fork server, replaced when it dies, and the folder in which its sessions' files lie."""

    def __init__(self, profile: Profile, limits: Limits, kind: SandboxKind) -> None:
        self._profile = profile
        self._limits = limits
        self._kind = kind
        self._server: ForkServer | None = None
        self._home: Home | None = None
        self._cgroup: MemoryCgroup | None = None
        self._starting = asyncio.Lock()
        self.restarts = 0

    async def open(self, memory_mb: float) -> None:
        """Raises DependencyError or SandboxError, with the remedy, if sessions can't be isolated here as asked."""
        kind = await asyncio.to_thread(require_sandbox, self._kind)
        self._cgroup = MemoryCgroup.make(int((memory_mb + _SERVER_MB) * _MIB))
        try:
            self._home = await asyncio.to_thread(Home, None if self._cgroup is None else self._cgroup.folder)
            self._sandbox = Sandbox(kind, self._profile, self._limits, self._home, divides=True)
            await asyncio.to_thread(self._sandbox.readable)
        except BaseException:
            await self.close()
            raise

    async def start(self) -> ForkedKernel:
        """Fork a session. Raises KernelStartError with what it printed if it does not come up in time."""
        assert self._home is not None
        try:
            return await ForkedKernel.start(await self._running_server(), self._sandbox, self._home)
        except OSError as error:
            raise KernelStartError(f"a kernel could not be started: {error}") from error

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        if self._cgroup is not None:
            await asyncio.to_thread(self._cgroup.close)
        if self._home is not None:
            await asyncio.to_thread(self._home.close)

    async def _running_server(self) -> ForkServer:
        async with self._starting:
            if self._server is not None and self._server.has_ended:
                _log.warning("the fork server ended; its sessions are gone with it, and another one is started")
                self.restarts += 1
                await self._server.close()
                self._server = None
            if self._server is None:
                assert self._home is not None
                self._server = await ForkServer.start(self._sandbox, self._home, self._cgroup)
            return self._server
