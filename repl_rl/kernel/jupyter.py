"""One Jupyter kernel in its sandbox, from start to death: what a `KernelPool` hands out.

An execution is a race between its reply, the death of the kernel, and one deadline. A reply carries status and answer;
the text comes through a pipe, so that it is whole even where the kernel dies in mid-line.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import zmq.asyncio
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager

from repl_rl.errors import KernelDiedError, KernelStartError
from repl_rl.kernel.channel import ShellChannel
from repl_rl.kernel.home import Home
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.paths import program_folder
from repl_rl.kernel.pipe import OutputPipe
from repl_rl.kernel.provisioner import register
from repl_rl.kernel.results import ExecResult, ExecStatus
from repl_rl.kernel.sandbox import Sandbox

_MIB = 1024 * 1024
_KERNEL_NAME = "repl_rl"


class JupyterKernel:
    """A `KernelSession`. Made by `start`; everything that it takes is given back by `close`."""

    def __init__(self, manager: AsyncKernelManager, channel: ShellChannel, output: OutputPipe, limits: Limits) -> None:
        self._manager = manager
        self._channel = channel
        self._output = output
        self._limits = limits
        self._is_closed = False
        self._has_run = False

    @classmethod
    async def start(cls, home: Home, sandbox: Sandbox, context: zmq.asyncio.Context) -> JupyterKernel:
        """A kernel that answers. Raises KernelStartError with what it printed if it does not come up in time."""
        limits = sandbox.limits
        output = OutputPipe(limits.output_bytes, limits.read_mb * _MIB)
        manager = _manager(home)
        try:
            command, kwargs = await manager.pre_start_kernel(sandbox=sandbox, output_fd=output.write_fd)
            await manager.provisioner.launch_kernel(command, **kwargs)
        except (OSError, RuntimeError) as error:
            output.close()
            raise KernelStartError(f"a kernel could not be launched: {error}") from error
        output.close_write_end()
        channel = ShellChannel(context, manager._make_url("shell"), manager.session)
        kernel = cls(manager, channel, output, limits)
        try:
            await kernel._come_up()
        except BaseException:
            await kernel.close()
            raise
        return kernel

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and not self._output.has_ended

    @property
    def connection_file(self) -> Path:
        """With this, any Jupyter client on this machine can attach to the live session."""
        return Path(self._manager.connection_file)

    async def execute(self, source: str) -> ExecResult:
        """Run one cell; one at a time.

        Raises KernelDiedError if the kernel is gone although it has run nothing yet, and after a result that said so.
        A death between two cells is the doing of the first one, and the second one's result.
        """
        if self._is_closed or (self._output.has_ended and not self._has_run):
            raise KernelDiedError("the kernel is gone, and its state with it; take a new session")
        self._has_run = True
        started = time.monotonic()
        reply = asyncio.create_task(self._channel.request("execute_request", _request(source)))
        try:
            status, content = await self._race(reply)
        finally:
            reply.cancel()
        result = self._result(status, content, time.monotonic() - started)
        if result.state_lost:
            await self.close()
        return result

    async def close(self) -> None:
        """Kill the kernel with everything that it started, and wait until all of it is gone."""
        if self._is_closed:
            return
        self._is_closed = True
        self._channel.close()
        provisioner = self._manager.provisioner
        await provisioner.kill()
        await provisioner.wait()
        await provisioner.cleanup()
        self._manager.cleanup_connection_file()
        self._output.close()

    async def _come_up(self) -> None:
        reply = asyncio.create_task(self._channel.request("kernel_info_request", {}))
        try:
            if await self._replies(reply, self._limits.start_s):
                return
        finally:
            reply.cancel()
        ended = "ended" if self._output.has_ended else f"did not answer within {self._limits.start_s:g} s"
        printed = self._output.take()[0].strip()
        raise KernelStartError(f"a kernel {ended} as it started; it printed: {printed or 'nothing'}")

    async def _race(self, reply: asyncio.Task[dict[str, Any]]) -> tuple[ExecStatus | None, dict[str, Any]]:
        """The reply's content, and a status where the host knows better than the reply."""
        if await self._replies(reply, self._limits.line_s):
            return None, reply.result()
        if self._output.has_ended:
            return ExecStatus.KILLED, {}
        self._output.unblock()
        await self._manager.provisioner.send_signal(signal.SIGINT)
        if await self._replies(reply, self._limits.grace_s):
            return ExecStatus.TIMEOUT, reply.result()
        await self._manager.provisioner.kill()
        await asyncio.wait({self._output.ended}, timeout=self._limits.grace_s)
        return ExecStatus.KILLED, {}

    async def _replies(self, reply: asyncio.Task[dict[str, Any]], timeout_s: float) -> bool:
        either: set[asyncio.Future[Any]] = {reply, self._output.ended}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return reply.done()

    def _result(self, status: ExecStatus | None, content: dict[str, Any], duration_s: float) -> ExecResult:
        report = content.get("repl_rl", {})
        reported = ExecStatus(report.get("status", ExecStatus.KILLED))
        if status is not None and reported is not ExecStatus.KILLED:
            reported = status
        output, omitted_bytes = self._output.take()
        answer = report.get("answer")
        return ExecResult(
            status=reported,
            output=output,
            error_name=report.get("error_name"),
            compiled=report.get("compiled", True),
            answer=None if answer is None else tuple(answer),
            duration_s=duration_s,
            omitted_bytes=omitted_bytes,
        )


class _OneKernelSpec(KernelSpecManager):  # type: ignore[misc]
    """Finds our kernelspec where it lies, without a search through Jupyter's folders."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec.from_resource_dir(str(program_folder()))


def _manager(home: Home) -> AsyncKernelManager:
    register()
    connection_file = home.next_connection_file()
    return AsyncKernelManager(
        kernel_name=_KERNEL_NAME,
        kernel_spec_manager=_OneKernelSpec(),
        connection_file=str(connection_file),
        transport="ipc",
        ip=str(connection_file.with_suffix("")),
    )


def _request(source: str) -> dict[str, Any]:
    return {
        "code": source.encode("utf-8", "replace").decode(),
        "silent": False,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,
    }
