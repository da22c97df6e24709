"""One kernel of any Jupyter kernelspec, from its start to its death: what a `KernelspecBackend` hands out.

An execution is a race between its reply, the death of the kernel, and one deadline. Text comes as iopub messages; our
own kernel's comes through a pipe instead, so that it is complete even if the kernel dies in the middle of a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import signal
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_client.manager import AsyncKernelManager

from repl_rl.errors import ForkRefusedError, KernelDiedError, KernelError, KernelStartError
from repl_rl.kernel.border import BorderError
from repl_rl.kernel.cgroups import PoolGroup, SessionGroup
from repl_rl.kernel.jupyter.messages import CellOutput, Channels, judge, setup_cell, submit_cell, traceback_text
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.line_time import LineTime
from repl_rl.kernel.memory import stored_mb, tree_mb
from repl_rl.kernel.output import HeadAndTail, OutputPipe
from repl_rl.kernel.paths import remove_tree
from repl_rl.kernel.processes import INSIST, exited, kill_descendants, kill_family, kill_marked, processor_s, tree
from repl_rl.kernel.results import ExecResult, ExecStatus, HostCalls, LineLimit
from repl_rl.utils.text import sendable
from repl_rl.utils.threads import to_own_thread

_PRINTED_BYTES = 4000
_LAST_WORDS_S = 0.1
"""How long to wait for messages that a kernel sent before its death."""
_POLL_S = 1.0
_WHAT_HELPS = (
    ". In the sandbox it sees little of this machine, has no network, and may take `kernel.memory_mb`; name what it "
    "lacks in `also_read_only` of a profile (docs/kernelspecs.md), or run it without walls by `kernel.sandbox: none`"
)
_FLOOD = 4
"""How many times `read_mb` the messages about one cell may take, unless they are to end the session."""

_log = logging.getLogger(__name__)


class Kind(NamedTuple):
    """Whose kernel it is, if it is none that a provisioner launches somewhere else."""

    is_ours: bool
    is_local: bool
    """Another one's process on this machine, without a sandbox."""
    is_guest: bool
    """Another one in our sandbox."""


class KernelspecKernel:
    """A `Kernel`. A local one works in a folder beside its connection file, which has links to `mounts`."""

    def __init__(
        self,
        manager: AsyncKernelManager,
        limits: Limits,
        kind: Kind,
        *,
        pool_group: PoolGroup | None,
        mounts: Mapping[str, Path],
    ) -> None:
        self._manager = manager
        self._mounts = mounts
        self._limits = limits
        self._work = Path(manager.connection_file).with_suffix(".work")
        self._is_ours, self._is_local, self._is_guest = kind
        self._pool_group = pool_group
        self._group: SessionGroup | None = None
        self._text = HeadAndTail(limits.output_bytes)
        self._output = CellOutput(self._text)
        if kind.is_ours:
            self._printed = OutputPipe(self._text, limits.read_mb * (1 << 20))
        else:
            self._printed = OutputPipe(HeadAndTail(_PRINTED_BYTES))
        self._printed.watch()
        self._channels: Channels | None = None
        self._died: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.process: Any = None
        self._has_run = False
        self.language = ""
        """As the kernel gives it, from its start on."""
        self._can_ask = True
        """Whether it says of a source if it is complete."""

    @property
    def is_alive(self) -> bool:
        return self._closing is None and self._died is not None and not self._died.done()

    async def start(self, **words: Any) -> None:
        """Launch with `words` and wait until it answers; raises KernelStartError with what it printed."""
        if self._is_ours or self._is_guest:
            words["output_fd"] = self._printed.write_fd
        elif self._is_local:
            self._work.mkdir()
            for name, path in self._mounts.items():
                (self._work / name).symlink_to(path)
            words |= {"cwd": str(self._work), "stdout": self._printed.write_fd, "stderr": self._printed.write_fd}
        try:
            async with asyncio.timeout(self._limits.start_s):
                await self._manager.start_kernel(**words)
                self._printed.close_write_end()
                await self._come_up()
        except KernelStartError:
            raise
        except TimeoutError as error:
            raise self._no_start(f"did not answer within {self._limits.start_s:g} s") from error
        except Exception as error:  # a provisioner is anybody's code
            raise self._no_start(f"could not be launched: {error}") from error

    async def prepare(self, source: str) -> None:
        """As `KernelSession.prepare`, for `start_s` at most; if it fails, the kernel is closed.

        Host tools can't reach the host from here, so binding one fails. Only our own kernel reports calls of tools.
        """
        if self._has_run:
            raise KernelError("a kernel is prepared before its first cell, and this one has run cells")
        try:
            if self.language != "python":
                what = f"runs {self.language}, and tools are for Python; do without, or take another kernel"
                raise self._no_start(what)
            if self._is_ours:
                request = _cell(source, silent=True) | {"repl_rl": "setup"}
            else:
                request = _cell(setup_cell(source), silent=True)
            reply = await self._silently(request)
            if judge(reply, self._output).status is not ExecStatus.OK:
                reason = ""
                if not self._is_ours and reply["status"] != "ok":
                    reason = f": {traceback_text(reply).strip()}"
                raise self._no_start(f"could not be set up{reason}")
        except BaseException:
            await self.close()
            raise
        self._take()

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        """Run one cell. `host` is never called: these kernels have no host tools."""
        if self._closing is not None or not (self.is_alive or self._has_run):
            raise KernelDiedError("the kernel is gone, and its state with it; take a new session")
        self._has_run = True
        start_s = time.monotonic()
        cell = _cell(source)
        if self._is_ours:
            cell["repl_rl"] = "line"  # so that it runs as at a terminal: other requests are clients', see program.py
        request = asyncio.create_task(self._request("execute_request", cell))
        try:
            limit = await self._race(request)
            has_replied = request.done()
            try:
                result = judge(request.result() if has_replied else None, self._output)
            except Exception as error:  # noqa: BLE001 - a reply may be made to break whatever reads it
                reason = f"its reply can't be read ({type(error).__name__})"
                if isinstance(error, BorderError):
                    reason = str(error)
                _log.warning("a session is ended: %s", reason)
                result = ExecResult(ExecStatus.KILLED)
        finally:
            request.cancel()
        if self._is_guest and has_replied and self._channels is not None and not self._channels.heard_all:
            result = ExecResult(ExecStatus.KILLED)  # `_request` has ended it for that
        elif limit is not None and not has_replied:
            result = dataclasses.replace(result, limit=limit)
        elif limit is not None and not result.state_lost:
            result = dataclasses.replace(result, status=ExecStatus.TIMEOUT, limit=limit)
        elif not (result.compiled or self._is_ours) and await self.is_complete(source) == "incomplete":
            result = ExecResult(ExecStatus.INCOMPLETE)  # nothing of it has run: it needs another line
        if result.state_lost:
            await self.close()
        text, omitted_bytes = self._take()
        if result.status is ExecStatus.INCOMPLETE:
            text, omitted_bytes = "", 0
        if self.language != "python" and result.status in (ExecStatus.ERROR, ExecStatus.TIMEOUT) and text:
            text = text.rstrip("\n") + "\n"  # what a kernel says of an error may lack it, and a prompt comes next
        duration_s = time.monotonic() - start_s
        return dataclasses.replace(result, output=text, omitted_bytes=omitted_bytes, duration_s=duration_s)

    def _take(self) -> tuple[str, int]:
        """The text of a cell, and the bytes left out of it. What a kernel that is not ours printed aside is dropped."""
        printed = self._printed.take()
        self._printed.watch()
        return printed if self._is_ours else self._text.take()

    async def is_complete(self, source: str) -> str:
        """Jupyter's word for it: "complete", "incomplete", "invalid"; "unknown" if the kernel does not say so in the
        time of a line, or is gone."""
        if not self._can_ask or not self.is_alive:
            return "unknown"
        request = asyncio.create_task(self._request("is_complete_request", {"code": sendable(source)}))
        status = None
        try:
            if await self._ends(request, self._limits.line_s):
                status = request.result().get("status")
        finally:
            request.cancel()
        return status if status in ("complete", "incomplete", "invalid") else "unknown"

    async def can_fork(self) -> str | None:
        return "kernels behind Jupyter's channels can't be forked: their channels and threads would be shared"

    async def fork(self, count: int, *, reseed: bool) -> list[KernelspecKernel]:
        """Raises ForkRefusedError."""
        raise ForkRefusedError(f"{count} forks were asked for: {await self.can_fork()}")

    async def open_jupyter(self) -> Path:
        if not self.is_alive:
            raise KernelDiedError("the kernel is gone, and nothing is left to attach to; take a new session")
        return Path(self._manager.connection_file)

    def memory_mb(self) -> float:
        """0 for a kernel that is not a process of this machine."""
        if self._group is not None:
            return self._group.used_mb()
        if self.process is None:
            return 0.0
        used_mb = tree_mb(self.process.pid)
        if self._is_guest:
            pid = self._manager.provisioner.kernel_pid()
            if pid is not None:
                used_mb += stored_mb(pid)
        return used_mb

    def excess(self) -> str | None:
        return None

    def kill(self) -> None:
        if self.process is not None and self.is_alive:
            kill_family(list(tree(self.process.pid)))

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _come_up(self) -> None:
        """Open the channels of a kernel that was launched, wait until it answers, and let it submit answers."""
        self.process = getattr(self._manager.provisioner, "process", None)
        self._died = asyncio.create_task(self._watch())
        if self._pool_group is not None:
            self._group = await to_own_thread(self._pool_group.admit, self.process.pid)
        client = self._manager.client(context=self._manager.context)
        if self._is_guest:
            most_bytes = self._limits.read_mb * (1 << 20)
            self._channels = Channels(client, self._output.take_in, most_bytes, _FLOOD * most_bytes, self._end)
        else:
            self._channels = Channels(client, None if self._is_ours else self._output.take_in)
        info = await self._unless_it_dies(asyncio.create_task(self._channels.greet()))
        self.language = str(info["language_info"]["name"])
        if self.language != "python":
            self._can_ask = await self.is_complete("1") != "unknown"
            if not self._can_ask:
                _say_that_lines_are_cells(self._manager.kernel_name, self.language)
        submit = None if self._is_ours else submit_cell(self.language)  # ours has it from its start
        if submit is None:
            return
        reply = await self._silently(_cell(submit, silent=True))
        if reply["status"] != "ok":
            raise self._no_start(f"can't be given submit_final_answer: {traceback_text(reply)}")

    async def _silently(self, content: dict[str, Any]) -> dict[str, Any]:
        return await self._unless_it_dies(asyncio.create_task(self._request("execute_request", content)))

    async def _unless_it_dies(self, task: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
        try:
            if await self._ends(task, self._limits.start_s):
                return task.result()
        finally:
            task.cancel()
        raise self._no_start("ended as it started")

    async def _watch(self) -> None:
        """Wait until the kernel is dead. If it is not a process of this machine, its provisioner is polled."""
        if self._is_ours or self._is_guest or self._is_local:
            await exited(self.process)
            return
        while await self._manager.is_alive():
            await asyncio.sleep(_POLL_S)

    async def _race(self, request: asyncio.Task[dict[str, Any]]) -> LineLimit | None:
        """Wait for the reply or the kernel's death, forced if need be. Returns the limit that ended the cell; None too
        if the kernel ended by itself."""
        assert self._died is not None
        line = LineTime(self._limits.line_s, self._limits.wall_s, self._processor_s)
        while not await self._ends(request, line.wait_s) and not self._died.done() and line.limit is None:
            await to_own_thread(line.look)
        if request.done() or self._died.done():
            return None

        # A limit was hit: interrupt the cell as a user would.
        self._printed.unblock()
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            await asyncio.wait_for(self._manager.interrupt_kernel(), self._limits.grace_s)
        if await self._ends(request, self._limits.grace_s / 2):
            return line.limit

        # Insist, and end what the cell waits for, which may have ignored the interrupt.
        pid = self._pid() if self.language == "python" else None
        if pid is not None:
            with contextlib.suppress(OSError, RuntimeError):
                await self._manager.signal_kernel(INSIST if self._is_ours else signal.SIGINT)
            await to_own_thread(kill_descendants, pid)
        if await self._ends(request, self._limits.grace_s / 2):
            return line.limit

        if self._died.done():
            return None
        await self._kill()
        return line.limit

    def _processor_s(self) -> float:
        if not (self._is_ours or self._is_local or self._is_guest):
            return math.inf
        group_s = None if self._group is None else self._group.processor_s()
        return processor_s(self.process.pid) if group_s is None else group_s

    def _pid(self) -> int | None:
        """The process that runs cells, if it is one of this machine; the guest is a child of what watches over it."""
        provisioner = self._manager.provisioner
        if self._is_local:
            return int(self.process.pid)
        if not (self._is_ours or self._is_guest):
            return None
        pid: int | None = provisioner.kernel_pid()
        if self._is_ours or pid is None:
            return pid
        processes = list(tree(pid))  # what watches over the guest comes first
        return processes[1] if len(processes) > 1 else None

    async def _ends(self, request: asyncio.Task[dict[str, Any]], timeout_s: float) -> bool:
        assert self._died is not None
        await asyncio.wait({request, self._died}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._died.done() and not request.done():
            await asyncio.wait({request}, timeout=_LAST_WORDS_S)
        return request.done()

    async def _request(self, msg_type: str, content: dict[str, Any]) -> dict[str, Any]:
        assert self._channels is not None
        if not self._is_guest:
            return await self._channels.request(msg_type, content, self._limits.grace_s)
        reply = await self._channels.request(msg_type, content, self._limits.wall_s + self._limits.grace_s)
        if not self._channels.heard_all:
            self._end("messages of it were lost: one of them was too long")
        return reply

    def _end(self, why: str) -> None:
        """End a guest that sends what no kernel sends."""
        if self.is_alive:
            _log.warning("a session is ended: %s", why)
            self.kill()

    async def _close(self) -> None:
        if self._channels is not None:
            await self._channels.close()
        await self._kill()
        if self._died is not None:
            self._died.cancel()
            await asyncio.gather(self._died, return_exceptions=True)
        self._printed.drain()
        self._printed.close()
        if self._manager.provisioner is not None:
            await self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_connection_file()
        if self._is_local:
            await to_own_thread(remove_tree, self._work)
        if self._group is not None:
            await to_own_thread(self._group.close)

    async def _kill(self) -> None:
        """Kill a process of this machine directly: jupyter_client would interrupt it first, then poll every 0.1 s."""
        provisioner = self._manager.provisioner
        if provisioner is None or not provisioner.has_process:
            return
        if self._is_local:
            await to_own_thread(kill_marked, provisioner.process, self._manager.connection_file)
        elif self._is_ours or self._is_guest:
            await provisioner.kill()
        else:
            await self._manager.shutdown_kernel(now=True)
            return
        if self._died is not None:
            await asyncio.wait({self._died})
        await provisioner.wait()

    def _no_start(self, what: str) -> KernelStartError:
        text, _ = self._printed.take()
        printed = text.strip() or "nothing"
        advice = _WHAT_HELPS if self._is_guest else ""
        return KernelStartError(f"kernel {self._manager.kernel_name!r} {what}; it printed: {printed}{advice}")


@cache
def _say_that_lines_are_cells(name: str, language: str) -> None:
    _log.warning(
        "kernel %r does not say when a cell of %s is complete: each line runs as a cell of its own", name, language
    )


def _cell(source: str, *, silent: bool = False) -> dict[str, Any]:
    return {
        "code": sendable(source),
        "silent": silent,
        "store_history": not silent,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,
    }
