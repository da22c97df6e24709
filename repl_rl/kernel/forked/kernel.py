"""One session forked from a warm server, from its start to its death.

An execution is a race between its reply, the death of the session, and one deadline. The reply carries status and
answer; the text comes through a pipe, so that it is whole even where the session dies in mid-line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from repl_rl.errors import KernelDiedError, KernelError, KernelStartError
from repl_rl.kernel.forked.calls import LineCalls
from repl_rl.kernel.forked.channel import PrivateChannel
from repl_rl.kernel.forked.files import SessionFiles
from repl_rl.kernel.forked.pipe import OutputPipe
from repl_rl.kernel.forked.server import ForkServer
from repl_rl.kernel.home import Home
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.listening import CHANNELS, listening
from repl_rl.kernel.memory import folder_mb, tree_mb
from repl_rl.kernel.processes import ended, kill_family, pid_of, send_signal, tree
from repl_rl.kernel.reports import calls_of, text_of
from repl_rl.kernel.results import ExecResult, ExecStatus, HostCalls
from repl_rl.kernel.sandbox import Sandbox

_MIB = 1024 * 1024
_COPIED_MB = 6.0
"""Pages shared with the server that a session has come to write to: 4 to 6 MB by measurement."""
_FOLDERS = ("/tmp", "/dev/shm")
_MOST_ANSWERS, _PRINTED_CHARS = 1_000, 4_000
_WATCH_AFTER_S = 0.005
"""A line that runs for longer has its output read meanwhile."""


class ForkedKernel:
    """A `Kernel`. Made by `start`; everything that it takes is given back by `close`."""

    def __init__(
        self,
        server: ForkServer,
        channel: PrivateChannel,
        output: OutputPipe,
        pidfd: int,
        limits: Limits,
        files: SessionFiles,
    ) -> None:
        self._server = server
        self._channel = channel
        self._output = output
        self._pidfd = pidfd
        self._limits = limits
        self._files = files
        self._pid = pid_of(pidfd)
        self._inherited_mb = tree_mb(self._pid)
        self._asking = asyncio.Lock()
        self._death: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._has_run = False

    @classmethod
    async def start(cls, server: ForkServer, sandbox: Sandbox, home: Home) -> ForkedKernel:
        """A session that answers. Raises KernelStartError with what it printed if it does not come up in time."""
        limits, files = sandbox.limits, SessionFiles(home, sandbox.kind)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(files.remove)
            output = OutputPipe(limits.output_bytes, limits.read_mb * _MIB)
            undo.callback(output.close)
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            with theirs:
                request = {"uid": sandbox.uid(), "tmp": files.folder()}
                pidfd = await server.fork(request, [theirs.fileno(), output.write_fd])
            undo.pop_all()
        output.close_write_end()
        kernel = cls(server, PrivateChannel(ours), output, pidfd, limits, files)
        try:
            await kernel._come_up()
        except BaseException:
            await kernel.close()
            raise
        return kernel

    @property
    def is_alive(self) -> bool:
        if self._closing is not None or self._channel.look():
            return False
        return self._has_run or not self._server.is_gone()  # one without state is of no use once its server is gone

    @property
    def pid(self) -> int:
        """The process id of the session on the host."""
        return self._pid

    async def prepare(self, source: str) -> None:
        """Run set-up code before the first cell, for `start_s` at most. Raises KernelStartError if it fails.

        A session in which it failed is gone. Raises KernelError after a cell has run.
        """
        if self._has_run:
            raise KernelError("a session is prepared before its first cell, and this one has run cells")
        reply = None
        self._output.watch()
        try:
            async with self._asking:
                reply = await self._channel.ask({"prepare": _sendable(source)}, self._limits.start_s)
        finally:
            printed = self._output.take()[0].strip()
            is_prepared = reply is not None and reply.get("status") == "ok"
            if not is_prepared:
                await self.close()
        if not is_prepared:
            raise KernelStartError(
                f"a kernel could not be set up; it printed: {printed[-_PRINTED_CHARS:] or 'nothing'}"
            )

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        """Run one cell; one at a time. A caller that is cancelled meanwhile takes the session with it.

        Raises KernelDiedError if the session is gone although it has run nothing yet, and after a result that said so.
        A death between two cells is the doing of the first one, and the second one's result.
        """
        is_first = not self._has_run
        if self._closing is not None or (is_first and self._channel.has_ended):
            raise KernelDiedError("the kernel is gone, and its state with it; take a new session")
        self._has_run = True
        started = time.monotonic()
        watch = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._output.watch)
        try:
            async with self._asking:
                status, reply = await self._race(source, host)
        except BaseException:
            self.kill()
            raise
        finally:
            watch.cancel()
        if status is ExecStatus.KILLED:
            await self._kill()
        result = self._result(status, reply, time.monotonic() - started)
        if result.state_lost:
            await self.close()
        if is_first and result.by_machinery:
            raise KernelDiedError("the kernel went down with the fork server before it had any state")
        return result

    async def open_jupyter(self) -> Path:
        """A connection file for the live session: Jupyter's channels are opened beside the private one.

        Waits for the line that runs. Raises KernelDiedError if the session is gone.
        """
        if not self.is_alive:
            raise KernelDiedError("the kernel is gone, and its state with it")
        async with self._asking:
            return self._files.connection_file or await self._open_jupyter()

    async def _open_jupyter(self) -> Path:
        path, connection = self._files.new_connection()
        with listening(connection) as sockets:
            request = {"jupyter": connection}
            reply = await self._channel.ask(request, self._limits.start_s, [sockets[name] for name in CHANNELS])
        if reply is None:
            raise KernelError(f"the kernel opened no Jupyter channels within {self._limits.start_s:g} s")
        path.touch(mode=0o600)
        path.write_text(json.dumps(connection))
        self._files.connection_file = path
        return path

    def memory_mb(self) -> float:
        """What it holds beyond what it was forked with; of that, the copied part is put at a fixed figure."""
        own_mb = max(0.0, tree_mb(self._pid) - self._inherited_mb)
        return _COPIED_MB + own_mb + (folder_mb(self._pid, _FOLDERS) if self._files.is_in_memory else 0.0)

    def kill(self) -> None:
        """End the session at once."""
        if self._closing is None and (self._death is None or not self._death.done()):
            send_signal(self._pidfd, signal.SIGKILL)

    async def close(self) -> None:
        """Kill the session with everything that it started, and wait until all of it is gone."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._kill()
        self._channel.close()
        os.close(self._pidfd)
        self._output.close()
        await self._files.remove()

    async def _kill(self) -> None:
        """The death of a PID namespace's first process is the death of all others, and over when it is over.

        In sandlock there are no others. In "none" they are looked for: those that still hang beneath the session, or
        are of its process group.
        """
        if self._death is None:
            family = [] if self._files.kind != "none" else list(tree(self._pid))
            send_signal(self._pidfd, signal.SIGKILL)
            if family:
                kill_family(family)
            self._death = asyncio.create_task(ended(self._pidfd))
        await asyncio.shield(self._death)

    async def _come_up(self) -> None:
        if await self._channel.ready(self._limits.start_s):
            return
        what = "ended" if self._channel.has_ended else f"did not answer within {self._limits.start_s:g} s"
        printed = self._output.take()[0].strip()
        raise KernelStartError(f"a kernel {what} as it started; it printed: {printed or 'nothing'}")

    async def _race(self, source: str, host: HostCalls | None) -> tuple[ExecStatus | None, dict[str, Any]]:
        """The reply, and a status where the host knows better than the reply."""
        with LineCalls(host, self._channel) as calls:
            reply = await self._channel.ask({"run": _sendable(source)}, self._limits.line_s, on_call=calls.take)
            if reply is not None:
                return None, reply
            if self._channel.has_ended:
                return ExecStatus.KILLED, {}
            calls.refuse("the line is out of time")
            self._output.unblock()
            send_signal(self._pidfd, signal.SIGINT)
            reply = await self._channel.reply(self._limits.grace_s)
            return (ExecStatus.KILLED, {}) if reply is None else (ExecStatus.TIMEOUT, reply)

    def _result(self, status: ExecStatus | None, reply: dict[str, Any], duration_s: float) -> ExecResult:
        output, omitted_bytes = self._output.take()
        try:
            reported = ExecStatus(reply.get("status", ExecStatus.KILLED))
            answer = reply.get("answer")
            if not isinstance(answer, list | None):
                raise TypeError(f"{answer!r} is no list of answers")
            return ExecResult(
                status=reported if status is None or reported is ExecStatus.KILLED else status,
                output=output,
                error_name=text_of(reply.get("error_name")),
                error_message=text_of(reply.get("error_message")),
                compiled=reply.get("compiled") is not False,
                answer=None if answer is None else tuple(text_of(text) or "" for text in answer[:_MOST_ANSWERS]),
                duration_s=duration_s,
                omitted_bytes=omitted_bytes,
                fingerprint=text_of(reply.get("fingerprint")),
                by_machinery=self._by_machinery(status),
                calls=calls_of(reply.get("calls")),
            )
        except (TypeError, ValueError):
            return ExecResult(ExecStatus.KILLED, output, duration_s=duration_s, omitted_bytes=omitted_bytes)

    def _by_machinery(self, status: ExecStatus | None) -> bool:
        """Whether it was killed together with its server; that one's end shows before a session's."""
        return status is ExecStatus.KILLED and self._server.is_gone()


def _sendable(source: str) -> str:
    return source.encode("utf-8", "replace").decode()
