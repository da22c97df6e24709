"""The default backend: sessions forked from one warm server, each from its start to its death.

An execution is a race between its reply, the death of the session, and one deadline. The reply carries status and
answer; the text comes through a pipe, so that it is complete even if the session dies in the middle of a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from repl_rl.errors import ForkRefusedError, KernelDiedError, KernelError, KernelStartError
from repl_rl.kernel.border import BorderError, result_of
from repl_rl.kernel.caches import home_caches
from repl_rl.kernel.cgroups import PoolGroup, SessionGroup
from repl_rl.kernel.forked.channel import LineCalls
from repl_rl.kernel.forked.fork import (
    DEEPEST,
    MOST_AT_ONCE,
    Ancestor,
    Child,
    Listener,
    fork_session,
    kill_children,
    still_shared,
)
from repl_rl.kernel.forked.server import ForkServer
from repl_rl.kernel.limits import Limits, Profile
from repl_rl.kernel.line_time import LineTime
from repl_rl.kernel.memory import shared_mb, stored_mb, tree_mb
from repl_rl.kernel.paths import CHANNELS, Home, listening, remove_sockets, remove_tree
from repl_rl.kernel.processes import (
    INSIST,
    children_of,
    interrupt,
    kill_descendants,
    kill_family,
    processor_s,
    readable,
    send_signal,
    status_of,
    tree,
)
from repl_rl.kernel.results import ExecResult, ExecStatus, HostCalls, LineLimit
from repl_rl.kernel.sandbox import Sandbox, SandboxKind, require_sandbox
from repl_rl.utils.text import sendable
from repl_rl.utils.threads import to_own_thread

_COPIED_MB = 6.0
"""Pages shared with the server that a session has written to, and so copied: 4 to 6 MB by measurement."""
_PRINTED_CHARS = 4_000
_REASON_CHARS = 500
_FEW_OPEN = 32
"""So few descriptors are compared in the event loop, more of them in a thread."""
_WATCH_AFTER_S = 0.005
"""The output of a line that takes longer than this is read while it runs."""
_WATCH_AFTER_S_PER_LINE = 0.0003
"""It begins so much later for each other line that runs."""

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class ForkBackend:
    """A `Backend`: one fork server, replaced when it dies, and the folder of its sessions' files."""

    def __init__(self, profile: Profile, limits: Limits, kind: SandboxKind) -> None:
        self._profile = profile
        self._limits = limits
        self._kind = kind
        self.server: ForkServer | None = None
        self.home: Home | None = None
        self._starting = asyncio.Lock()
        self.restarts = 0

    async def open(self, memory_mb: float) -> None:
        """Raises DependencyError or SandboxError, with the remedy, if sessions can't be isolated here as asked."""
        kind = await to_own_thread(require_sandbox, self._kind)
        self.home = await to_own_thread(Home, (memory_mb, self._limits.session_bytes()))
        try:
            caches_sandbox = Sandbox(kind, self._profile, self._limits, self.home)
            caches = await to_own_thread(home_caches, caches_sandbox, self._profile.caches)
            self._sandbox = Sandbox(kind, self._profile, self._limits, self.home, divides=True, caches=caches)
            await to_own_thread(self._sandbox.readable)
        except BaseException:
            await self.close()
            raise

    async def start(self) -> ForkedKernel:
        """Fork a session. Raises KernelStartError with what it printed if it does not come up in time."""
        try:
            async with self._starting:
                if self.server is not None and self.server.has_ended:
                    _log.warning("the fork server ended; its sessions are gone with it, and another one is started")
                    self.restarts += 1
                    await self.server.close()
                    self.server = None
                if self.server is None:
                    self.server = await ForkServer.start(self._sandbox)
            return await ForkedKernel.start(self.server, self._sandbox)
        except OSError as error:
            raise KernelStartError(f"a kernel could not be started: {error}") from error

    async def close(self) -> None:
        if self.server is not None:
            await self.server.close()
        if self.home is not None:
            await to_own_thread(self.home.close)


class ForkedKernel:
    """A `Kernel`. Made by `start`; `close` releases everything that it holds."""

    def __init__(
        self,
        server: ForkServer,
        sandbox: Sandbox,
        child: Child,
        folder: Path | None = None,
        listener: Listener | None = None,
        ancestors: tuple[Ancestor, ...] = (),
    ) -> None:
        """`folder` is for a session that has no /tmp of its own. A session without a listener can't be forked."""
        self._server = server
        self._sandbox = sandbox
        self._limits = sandbox.limits
        self._wall_s = sandbox.limits.wall_s
        self._kind = sandbox.kind
        self._folder = folder
        self._become(child)
        self.group: SessionGroup | None = None
        self._held_before_mb = 0.0
        """Its memory from before it was in its group, which is not charged for it."""
        assert sandbox.home is not None
        self._home = sandbox.home
        pool_group = sandbox.home.group
        self._joining = None if pool_group is None else asyncio.create_task(self._join(pool_group))
        self._listener = listener
        self._ancestors = ancestors
        for ancestor in ancestors:
            ancestor.descendants.add(self)
        self._connection: dict[str, Any] = {}
        self._connection_file: Path | None = None
        self._channel_lock = asyncio.Lock()
        """Held from a request until its reply."""
        self._host_turn = asyncio.Lock()
        self._death: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._has_run = False

    def _become(self, child: Child) -> None:
        self._channel = child.channel
        self._output = child.output
        self._pidfd = child.pidfd
        self.pid = child.pid
        """The process id of the session on the host."""
        self._inherited_mb = tree_mb(self.pid)

    @classmethod
    async def start(cls, server: ForkServer, sandbox: Sandbox) -> ForkedKernel:
        """A session that answers. Raises KernelStartError with what it printed if it does not come up in time."""
        assert sandbox.home is not None
        limits = sandbox.limits
        folder = None if sandbox.kind == "bwrap" else sandbox.home.next_session_folder()
        child = Child(limits)
        try:
            request = {"uid": sandbox.uid(), "tmp": None if folder is None else str(folder)}
            child.started(await server.fork(request, child.descriptors()))
            kernel = cls(server, sandbox, child, folder)
        except BaseException:
            child.abandon()
            if folder is not None:
                await to_own_thread(remove_tree, folder)
            raise
        try:
            if await kernel._channel.reply(limits.start_s) is None:
                failure = "ended" if kernel._channel.has_ended else f"did not answer within {limits.start_s:g} s"
                text, _omitted_bytes = child.output.take()
                raise KernelStartError(f"a kernel {failure} as it started; it printed: {text.strip() or 'nothing'}")
            if kernel._channel.descriptors:
                kernel._listener = Listener(kernel._channel.descriptors.pop())
        except BaseException:
            await kernel.close()
            raise
        return kernel

    @property
    def is_alive(self) -> bool:
        if self._closing is not None or self._channel.look():
            return False
        return self._has_run or not self._server.is_gone()  # without state it is of no use once its server is gone

    async def prepare(self, source: str) -> None:
        """As `KernelSession.prepare`, for `start_s` at most; if it fails, the session is closed."""
        if self._has_run:
            raise KernelError("a session is prepared before its first cell, and this one has run cells")
        reply = None
        try:
            async with self._channel_lock:
                self._output.watch()
                reply = await self._channel.ask({"prepare": sendable(source)}, self._limits.start_s)
        finally:
            text, _omitted_bytes = self._output.take()
            is_prepared = reply is not None and reply.get("status") == "ok"
            if not is_prepared:
                await self.close()
        if not is_prepared:
            printed = text.strip()[-_PRINTED_CHARS:]
            raise KernelStartError(f"a kernel could not be set up; it printed: {printed or 'nothing'}")

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        """Run one cell. If the caller is cancelled meanwhile, the session is killed."""
        is_first = not self._has_run
        if self._closing is not None or (is_first and self._channel.has_ended):
            raise KernelDiedError("the kernel is gone, and its state with it; take a new session")
        self._has_run = True
        try:
            async with self._channel_lock:
                # Not before: while it waited for the lock, a fork may have given the session another output.
                began = time.monotonic()
                after_s = _WATCH_AFTER_S + _WATCH_AFTER_S_PER_LINE * self._server.running_lines
                watch = asyncio.get_running_loop().call_later(after_s, self._output.watch)
                self._server.running_lines += 1
                try:
                    limit, reply = await self._race(source, host)
                finally:
                    self._server.running_lines -= 1
                    watch.cancel()
        except BaseException:
            self.kill()
            raise
        if reply is None:
            await self._kill()
        result = self._result(limit, reply, time.monotonic() - began)
        if result.state_lost:
            await self.close()
        if is_first and result.by_machinery:
            raise KernelDiedError("the kernel went down with the fork server before it had any state")
        return result

    async def can_fork(self) -> str | None:
        """Why it can't be forked now, or None. Raises KernelDiedError if it is gone."""
        reason = self._objection()
        if reason is not None:
            return reason
        return await _to_its_end(self._ask_if_it_can_fork())

    async def _ask_if_it_can_fork(self) -> str | None:
        async with self._channel_lock:
            reply = await self._channel.ask({"can_fork": True}, self._limits.start_s)
        if reply is None:
            raise KernelDiedError("the session ended, or did not answer in time, as it was asked whether it can fork")
        refusal = reply.get("refused")
        return None if refusal is None else str(refusal)[:_REASON_CHARS]

    def _objection(self) -> str | None:
        """Why it can't be forked, as far as this is known without asking it."""
        if not self.is_alive:
            raise KernelDiedError("the kernel is gone, and its state with it")
        if self._kind != "bwrap":
            return f"sessions under {self._kind} can't be forked: there is no namespace for a fork to be apart in"
        if self._listener is None:
            return "it came without the notifications of system calls (seccomp) through which a fork is allowed"
        if self._connection_file is not None:
            return "Jupyter's channels are open to it, and a fork would share them"
        if self._channel_lock.locked():
            return "a line is running in it; fork it between two lines"
        try:
            levels = len(status_of(self.pid)["NSpid"].split())  # of PID namespaces, one inside the other
        except (OSError, LookupError):
            raise KernelDiedError("the kernel is gone, and its state with it") from None
        if levels >= DEEPEST:
            return f"it is a fork of forks, {levels} levels deep, and Linux ends at 32"
        return None

    async def fork(self, count: int, *, reseed: bool) -> list[ForkedKernel]:
        """As `Kernel.fork`: the forks and this session go on apart from one another."""
        reason = self._objection()
        if reason is None and count > MOST_AT_ONCE:
            reason = f"{count} forks at once, and {MOST_AT_ONCE} are the most"
        if reason is not None:
            raise ForkRefusedError(f"the session can't be forked: {reason}")
        assert self._listener is not None
        held_mb = self._own_mb()
        children: list[Child] = []
        before: list[int] = []
        async with self._listener.turn, self._channel_lock:
            try:
                before = children_of(self.pid)
                for _ in range(count + 1):
                    children.append(Child(self._limits))
                await fork_session(
                    children,
                    self._server,
                    self.pid,
                    self._pidfd,
                    self._channel,
                    self._listener,
                    reseed=reseed,
                    patience_s=self._limits.start_s,
                )
                if len(os.listdir(f"/proc/{self.pid}/fd")) <= _FEW_OPEN:
                    shared = still_shared(children, self.pid)
                else:
                    shared = await to_own_thread(still_shared, children, self.pid)
                if shared is not None:
                    raise ForkRefusedError(
                        f"forks of the session would not have been apart from it; they share: {shared}"
                    )
                for child in children:
                    send_signal(child.pidfd, signal.SIGCONT)  # they go on, and the session stays stopped
            except BaseException as error:
                for child in children:
                    child.abandon()
                if isinstance(error, Exception) and not isinstance(error, KernelError):
                    # One of them ended meanwhile, or this process lacks something.
                    error = ForkRefusedError(f"the session can't be forked: {type(error).__name__}: {error}")
                if isinstance(error, ForkRefusedError) and await self._stays(before):
                    raise error from None
                self.kill()  # it is not known what it was doing
                if isinstance(error, ForkRefusedError):
                    raise KernelDiedError(f"the session ended as it was to be forked: {error}") from None
                raise
            return self._replace_by(children, held_mb)

    async def _stays(self, before: list[int]) -> bool:
        """End the forks that have begun, and let the session go on. Returns whether it does."""
        with contextlib.suppress(OSError):  # it is gone
            kill_children(self.pid, before)
        send_signal(self._pidfd, signal.SIGCONT)
        return await self._channel.ask({"stay": True}, self._limits.start_s) is not None

    def _replace_by(self, children: list[Child], held_mb: float) -> list[ForkedKernel]:
        """The last child goes on as this session, which held `held_mb`. Returns kernels for the others."""
        assert self._listener is not None
        ancestor = Ancestor(self._pidfd, held_mb, self.group)
        ancestors = (*self._ancestors, ancestor)
        self._channel.close()
        self._output.close()
        *others, last = children
        self._become(last)
        self._ancestors = ancestors
        ancestor.descendants.add(self)
        forks = []
        for child in others:
            fork = ForkedKernel(self._server, self._sandbox, child, None, self._listener.share(), ancestors)
            fork._has_run = True
            forks.append(fork)
        return forks

    async def open_jupyter(self) -> Path:
        """Jupyter's channels are opened in addition to the private one, once the current line is done."""
        if not self.is_alive:
            raise KernelDiedError("the kernel is gone, and its state with it")
        return await _to_its_end(self._open_jupyter())

    async def _open_jupyter(self) -> Path:
        async with self._channel_lock:
            if self._connection_file is None:
                path = self._home.next_connection_file()
                self._connection = {
                    "transport": "ipc",
                    "ip": str(path.with_suffix("")),
                    "key": os.urandom(16).hex(),
                    "signature_scheme": "hmac-sha256",
                    "kernel_name": "repl_rl",
                }
                for port, name in enumerate(CHANNELS, 1):
                    self._connection[f"{name}_port"] = port
                with listening(self._connection) as sockets:
                    request = {"jupyter": self._connection}
                    descriptors = [sockets[name] for name in CHANNELS]
                    reply = await self._channel.ask(request, self._limits.start_s, descriptors)
                if reply is None:
                    raise KernelError(f"the kernel opened no Jupyter channels within {self._limits.start_s:g} s")
                path.touch(mode=0o600)
                path.write_text(json.dumps(self._connection))
                self._connection_file = path
            return self._connection_file

    async def _join(self, pool_group: PoolGroup) -> None:
        """Meanwhile it is in its server's group, or in that of the session that it is a fork of."""
        group = await to_own_thread(pool_group.admit, self.pid)
        if group is not None:
            self._held_before_mb = await to_own_thread(self._held_elsewhere_mb)
        self.group = group

    def _held_elsewhere_mb(self) -> float:
        """Its memory in the group that it has just left: the first line may run before a session has its own group."""
        held_mb = tree_mb(self.pid, self._inherited_mb) + shared_mb(self.pid)
        if self._kind == "bwrap":
            held_mb += stored_mb(self.pid)
        return held_mb

    def memory_mb(self) -> float:
        """The memory that it has taken since it was forked, with a fixed figure for the pages that it has copied.

        Read from its control group; without one, from /proc for its processes and folders.
        """
        held_mb = _COPIED_MB + self._own_mb()
        if self.group is None and self._kind == "bwrap":
            held_mb += stored_mb(self.pid)
        for ancestor in self._ancestors:
            if self.group is None or ancestor.group != self.group:  # its own group counts the ancestor as well
                held_mb += ancestor.part_mb()
        return held_mb

    def _own_mb(self) -> float:
        if self.group is not None:
            return self._held_before_mb + self.group.used_mb()
        return max(0.0, tree_mb(self.pid) - self._inherited_mb)

    def _processor_s(self) -> float:
        if self.group is not None:
            charged_s = self.group.processor_s()
            if charged_s is not None:
                return charged_s
        return processor_s(self.pid)

    def excess(self) -> str | None:
        """Threads, under Landlock: there, Linux counts them per user, and root's not at all."""
        if self._kind != "sandlock":
            return None
        try:
            threads = int(status_of(self.pid)["Threads"])
        except OSError:  # it is gone
            return None
        if threads <= self._limits.processes:
            return None
        return f"{threads} threads, and {self._limits.processes} are allowed"

    def kill(self) -> None:
        if self._closing is None and (self._death is None or not self._death.done()):
            send_signal(self._pidfd, signal.SIGKILL)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        # Whatever one of these raises, the others are still done: from the last, the channel, up to the first.
        async with AsyncExitStack() as releases:
            if self._joining is not None:
                releases.push_async_callback(self._leave_group, self._joining)
            if self._folder is not None:
                releases.push_async_callback(to_own_thread, remove_tree, self._folder)
            if self._connection_file is not None:
                releases.callback(self._connection_file.unlink, missing_ok=True)
            releases.callback(remove_sockets, self._connection)
            releases.callback(self._output.close)
            if self._listener is not None:
                releases.callback(self._listener.release)
            for ancestor in self._ancestors:
                releases.callback(ancestor.leave, self)
            releases.callback(os.close, self._pidfd)
            releases.callback(self._channel.close)
            await self._kill()

    async def _leave_group(self, joining: asyncio.Task[None]) -> None:
        await joining
        if self.group is not None:
            await to_own_thread(self.group.close)

    async def _kill(self) -> None:
        """Kill the session and all that it started, and wait until it is dead.

        In bwrap, the session is the first process of a PID namespace, and all others have died when it has. In sandlock
        there are no others. In "none", its remaining descendants and its process group are killed as well.
        """
        if self._death is None:
            family = [] if self._kind != "none" else list(tree(self.pid))
            send_signal(self._pidfd, signal.SIGKILL)
            if family:
                kill_family(family)
            self._death = asyncio.create_task(readable(self._pidfd))
        await asyncio.shield(self._death)

    async def _race(self, source: str, host: HostCalls | None) -> tuple[LineLimit | None, dict[str, Any] | None]:
        """The limit that ended the line, and the reply.

        Without a reply, the session has ended by itself if there is no limit, and is to be killed if there is one.
        """
        with LineCalls(host, self._channel, self._host_turn) as calls:
            line = LineTime(self._limits.line_s, self._wall_s, self._processor_s)
            reply = await self._channel.ask({"run": sendable(source)}, line.wait_s, on_call=calls.take)
            while reply is None and line.limit is None and not self._channel.has_ended:
                await to_own_thread(line.look)
                reply = await self._channel.reply(line.wait_s)
            if reply is not None or self._channel.has_ended:
                return None, reply
            calls.refuse("the line is out of time")
            self._output.unblock()
            await to_own_thread(interrupt, self.pid)
            reply = await self._channel.reply(self._limits.grace_s / 2)
            if reply is None and not self._channel.has_ended:  # what it waits for may have ignored that
                send_signal(self._pidfd, INSIST)
                await to_own_thread(kill_descendants, self.pid)
                reply = await self._channel.reply(self._limits.grace_s / 2)
            if reply is None and self._channel.look():
                return None, None
            return line.limit, reply

    def _result(self, limit: LineLimit | None, reply: dict[str, Any] | None, duration_s: float) -> ExecResult:
        output, omitted_bytes = self._output.take()
        measured: dict[str, Any] = {"output": output, "omitted_bytes": omitted_bytes, "duration_s": duration_s}
        if reply is None:
            # It may have ended with its server. If so, the server's end shows by now, because it comes first.
            by_machinery = self._closing is None and self._server.is_gone()
            return ExecResult(ExecStatus.KILLED, by_machinery=by_machinery, limit=limit, **measured)
        try:
            result = result_of(reply, **measured)
        except BorderError as error:
            _log.warning("a session is ended: %s", str(error))
            return ExecResult(ExecStatus.KILLED, **measured)
        if limit is not None and result.status is not ExecStatus.KILLED:
            result = replace(result, status=ExecStatus.TIMEOUT, limit=limit)
        return result


async def _to_its_end(exchange: Coroutine[Any, Any, Result]) -> Result:
    """The outcome of a request to a session, which waits for the reply also if the caller is cancelled.

    A reply that comes later would be taken for a message that nobody has asked for, and that ends a session.
    """
    task = asyncio.create_task(exchange)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_look_at_outcome)
        raise


def _look_at_outcome(task: asyncio.Task[Any]) -> None:
    """Or asyncio would log the exception of a task that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
