"""Kernels forked from a warm server: the default backend, from a session's start to its death.

An execution is a race between its reply, the death of the session, and one deadline. The reply carries status and
answer; the text comes through a pipe, so that it is whole even where the session dies in mid-line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

from repl_rl.errors import KernelDiedError, KernelError, KernelStartError
from repl_rl.kernel.channel import PrivateChannel
from repl_rl.kernel.fork_server import ForkServer
from repl_rl.kernel.home import Home
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.listening import CHANNELS, listening, remove_sockets
from repl_rl.kernel.pipe import OutputPipe
from repl_rl.kernel.processes import ended, send_signal
from repl_rl.kernel.profile import Profile
from repl_rl.kernel.results import ExecResult, ExecStatus
from repl_rl.kernel.sandbox import Sandbox, SandboxKind, require_sandbox

_MIB = 1024 * 1024
_WATCH_AFTER_S = 0.005
"""A line that runs for longer has its output read meanwhile."""

_log = logging.getLogger(__name__)


class ForkBackend:
    """A `Backend`: one fork server, replaced when it dies, and the folder in which its sessions' files lie."""

    def __init__(self, profile: Profile, limits: Limits, kind: SandboxKind) -> None:
        self._profile = profile
        self._limits = limits
        self._kind = kind
        self._server: ForkServer | None = None
        self._starting = asyncio.Lock()
        self.restarts = 0

    async def open(self) -> None:
        """Raises DependencyError or SandboxError, with the remedy, if sessions can't be isolated here as asked."""
        kind = await asyncio.to_thread(require_sandbox, self._kind)
        self._home = await asyncio.to_thread(Home)
        self._sandbox = Sandbox(kind, self._profile, self._limits, self._home, divides=True)

    async def start(self) -> ForkedKernel:
        """Fork a session. Raises KernelStartError with what it printed if it does not come up in time."""
        server = await self._running_server()
        return await ForkedKernel.start(server, self._sandbox, self._home)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        await asyncio.to_thread(self._home.close)

    async def _running_server(self) -> ForkServer:
        async with self._starting:
            if self._server is not None and self._server.has_ended:
                _log.warning("the fork server ended; its sessions are gone with it, and another one is started")
                self.restarts += 1
                await self._server.close()
                self._server = None
            if self._server is None:
                self._server = await ForkServer.start(self._sandbox, self._home)
            return self._server


class ForkedKernel:
    """A `Kernel`. Made by `start`; everything that it takes is given back by `close`."""

    def __init__(
        self, channel: PrivateChannel, output: OutputPipe, pidfd: int, limits: Limits, files: _SessionFiles
    ) -> None:
        self._channel = channel
        self._output = output
        self._pidfd = pidfd
        self._limits = limits
        self._files = files
        self._opened = time.monotonic()
        self._is_closed = False
        self._has_run = False

    @classmethod
    async def start(cls, server: ForkServer, sandbox: Sandbox, home: Home) -> ForkedKernel:
        """A session that answers. Raises KernelStartError with what it printed if it does not come up in time."""
        limits, files = sandbox.limits, _SessionFiles(home, sandbox.kind)
        output = OutputPipe(limits.output_bytes, limits.read_mb * _MIB)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                request = {"uid": sandbox.uid(), "tmp": files.folder()}
                pidfd = await server.fork(request, [theirs.fileno(), output.write_fd])
        except BaseException:
            ours.close()
            output.close()
            await files.remove()
            raise
        output.close_write_end()
        kernel = cls(PrivateChannel(ours), output, pidfd, limits, files)
        try:
            await kernel._come_up()
        except BaseException:
            await kernel.close()
            raise
        return kernel

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and not self._channel.has_ended

    @property
    def pid(self) -> int:
        """The process id of the session on the host."""
        for line in Path(f"/proc/self/fdinfo/{self._pidfd}").read_text().splitlines():
            if line.startswith("Pid:"):
                return int(line.removeprefix("Pid:"))
        raise KernelDiedError("the kernel is gone, and its process id with it")

    async def execute(self, source: str) -> ExecResult:
        """Run one cell; one at a time.

        Raises KernelDiedError if the session is gone although it has run nothing yet, and after a result that said so.
        A death between two cells is the doing of the first one, and the second one's result.
        """
        if self._is_closed or (self._channel.has_ended and not self._has_run):
            raise KernelDiedError("the kernel is gone, and its state with it; take a new session")
        self._has_run = True
        started = time.monotonic()
        watch = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._output.watch)
        try:
            status, reply = await self._race(source, started)
        finally:
            watch.cancel()
        if status is ExecStatus.KILLED:
            await self._kill()
        result = self._result(status, reply, time.monotonic() - started)
        if result.state_lost:
            await self.close()
        return result

    async def open_jupyter(self) -> Path:
        """A connection file for the live session: Jupyter's channels are opened beside the private one."""
        if not self.is_alive:
            raise KernelDiedError("the kernel is gone, and its state with it")
        if self._files.connection_file is None:
            await self._open_jupyter()
        assert self._files.connection_file is not None
        return self._files.connection_file

    async def _open_jupyter(self) -> None:
        path, connection = self._files.new_connection()
        with listening(connection) as sockets:
            request = {"jupyter": connection}
            reply = await self._channel.ask(request, self._limits.start_s, [sockets[name] for name in CHANNELS])
        if reply is None:
            raise KernelError(f"the kernel opened no Jupyter channels within {self._limits.start_s:g} s")
        path.touch(mode=0o600)
        path.write_text(json.dumps(connection))
        self._files.connection_file = path

    async def close(self) -> None:
        """Kill the session with everything that it started, and wait until all of it is gone."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._kill()
        self._channel.close()
        os.close(self._pidfd)
        self._output.close()
        await self._files.remove()

    async def _kill(self) -> None:
        """The death of a PID namespace's first process is the death of all others, and over when it is over."""
        send_signal(self._pidfd, signal.SIGKILL)
        await ended(self._pidfd)

    async def _come_up(self) -> None:
        if await self._channel.ready(self._limits.start_s):
            return
        what = "ended" if self._channel.has_ended else f"did not answer within {self._limits.start_s:g} s"
        printed = self._output.take()[0].strip()
        raise KernelStartError(f"a kernel {what} as it started; it printed: {printed or 'nothing'}")

    async def _race(self, source: str, started: float) -> tuple[ExecStatus | None, dict[str, Any]]:
        """The reply, and a status where the host knows better than the reply."""
        session_left_s = self._opened + self._limits.session_s - started
        if session_left_s <= 0:
            return ExecStatus.KILLED, {}
        request = {"run": source.encode("utf-8", "replace").decode()}
        reply = await self._channel.ask(request, min(self._limits.line_s, session_left_s))
        if reply is not None:
            return None, reply
        if self._channel.has_ended:
            return ExecStatus.KILLED, {}
        self._output.unblock()
        send_signal(self._pidfd, signal.SIGINT)
        reply = await self._channel.reply(self._limits.grace_s)
        return (ExecStatus.KILLED, {}) if reply is None else (ExecStatus.TIMEOUT, reply)

    def _result(self, status: ExecStatus | None, reply: dict[str, Any], duration_s: float) -> ExecResult:
        output, omitted_bytes = self._output.take()
        try:
            reported = ExecStatus(reply.get("status", ExecStatus.KILLED))
            answer = reply.get("answer")
            return ExecResult(
                status=reported if status is None or reported is ExecStatus.KILLED else status,
                output=output,
                error_name=_text(reply.get("error_name")),
                compiled=reply.get("compiled") is not False,
                answer=None if answer is None else tuple(_text(text) or "" for text in answer),
                duration_s=duration_s,
                omitted_bytes=omitted_bytes,
                fingerprint=_text(reply.get("fingerprint")),
            )
        except (TypeError, ValueError):
            return ExecResult(ExecStatus.KILLED, output, duration_s=duration_s, omitted_bytes=omitted_bytes)


class _SessionFiles:
    """What one session has on the host's disk: its folder where it has no /tmp of its own, its Jupyter sockets."""

    def __init__(self, home: Home, kind: SandboxKind) -> None:
        self._home = home
        self._kind = kind
        self._folder: Path | None = None
        self._connection: dict[str, Any] = {}
        self.connection_file: Path | None = None

    def folder(self) -> str | None:
        if self._kind == "bwrap":
            return None
        self._folder = self._home.next_session_folder()
        return str(self._folder)

    def new_connection(self) -> tuple[Path, dict[str, Any]]:
        path = self._home.next_connection_file()
        ports = {f"{name}_port": number for number, name in enumerate(CHANNELS, 1)}
        self._connection = {
            "transport": "ipc",
            "ip": str(path.with_suffix("")),
            "key": os.urandom(16).hex(),
            "signature_scheme": "hmac-sha256",
            "kernel_name": "repl_rl",
            **ports,
        }
        return path, self._connection

    async def remove(self) -> None:
        remove_sockets(self._connection)
        if self.connection_file is not None:
            with contextlib.suppress(OSError):
                self.connection_file.unlink()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is no text")
