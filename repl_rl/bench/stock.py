"""The peer: stock Jupyter kernels, one ipykernel process each, driven by jupyter_client as its users drive it.

`StockKernels` is a `KernelSource`, so what is measured with a pool of ours is measured here by the same code. Starting
is `start_kernel` and `wait_for_ready`, which ends by listening for 0.2 s; a line is done once its reply has come on the
shell channel and `idle` on iopub. The kernels have no sandbox and no limits. History goes into a folder that is removed
at the end.

Not covered: a kernel that dies, other than by an error after a long wait.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import zmq.asyncio
from jupyter_client import AsyncKernelClient, AsyncKernelManager
from jupyter_client.kernelspec import NATIVE_KERNEL_NAME

from repl_rl.errors import KernelDiedError, KernelStartError
from repl_rl.kernel import ExecResult, ExecStatus, HostCalls

_PATIENCE_S = 120.0
_SOCKETS_PER_KERNEL = 8


class StockKernel:
    """A kernel that is up, seen through its client."""

    def __init__(self, client: AsyncKernelClient) -> None:
        self._client = client

    async def prepare(self, source: str) -> None:
        raise KernelStartError("tools are no part of this measurement")

    async def execute(self, source: str, host: HostCalls | None = None) -> ExecResult:
        """Run one cell. Raises KernelDiedError if no answer comes."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                request = self._client.execute(source)
                output = await self._output(request)
                reply = await self._reply(request)
        except TimeoutError as error:
            raise KernelDiedError(f"a stock kernel did not answer {source!r} within {_PATIENCE_S:g} s") from error
        status = ExecStatus.OK if reply["status"] == "ok" else ExecStatus.ERROR
        return ExecResult(status, output, reply.get("ename"), duration_s=time.monotonic() - began)

    async def _output(self, request: str) -> str:
        shown: list[str] = []
        while True:
            message = await self._client.get_iopub_msg()
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return "".join(shown)
            shown.append(_text(message["msg_type"], message["content"]))

    async def _reply(self, request: str) -> dict[str, Any]:
        while True:
            message = await self._client.get_shell_msg()
            if message["parent_header"].get("msg_id") == request:
                content: dict[str, Any] = message["content"]
                return content


class StockKernels:
    """A `KernelSource` of stock kernels, at most `size` at a time. Nothing is started ahead of need."""

    def __init__(self, size: int) -> None:
        self._size = size

    async def __aenter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="repl-rl-bench-")
        self._context = zmq.asyncio.Context()
        self._context.max_sockets = max(1023, _SOCKETS_PER_KERNEL * self._size)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._context.destroy(linger=0)
        self._folder.cleanup()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[StockKernel]:
        """A fresh kernel, killed at exit. Raises KernelStartError if it does not come up."""
        manager = AsyncKernelManager(kernel_name=NATIVE_KERNEL_NAME, context=self._context)
        environment = os.environ | {"IPYTHONDIR": self._folder.name}
        await manager.start_kernel(env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = manager.client()
        client.start_channels()
        try:
            await _ready(client)
            yield StockKernel(client)
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)


async def _ready(client: AsyncKernelClient) -> None:
    try:
        await client.wait_for_ready(timeout=_PATIENCE_S)
    except RuntimeError as error:
        raise KernelStartError(f"a stock kernel did not come up: {error}") from error


def _text(kind: str, content: dict[str, Any]) -> str:
    """What a terminal would show of a message on iopub."""
    match kind:
        case "stream":
            return str(content["text"])
        case "execute_result" | "display_data":
            return f"{content['data'].get('text/plain', '')}\n"
        case "error":
            return "".join(f"{line}\n" for line in content["traceback"])
    return ""
