"""Kernelspecs for the tests of `KernelspecBackend`: stock ipykernel and a kernel in a language that is not Python."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kernel.conftest import LIMITS

from repl_rl.kernel import ExecResult
from repl_rl.kernel.jupyter.backend import KernelspecBackend
from repl_rl.kernel.jupyter.kernel import KernelspecKernel
from repl_rl.kernel.sandbox import SandboxKind

STOCK, OWN, ECHO = "python3", "repl_rl", "echo"
SANDBOX: dict[str, SandboxKind] = {STOCK: "none", ECHO: "none", OWN: "bwrap"}
ECHO_KERNEL = """
import os, sys, time
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

class Echo(Kernel):
    implementation = banner = "echo"
    implementation_version = "1"
    language_info = {"name": "echo", "mimetype": "text/plain", "file_extension": ".txt"}

    async def do_execute(self, code, silent, *args, **kwargs):
        if code == "die":
            os._exit(3)
        if code == "hang":
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                return {"status": "error", "ename": "Interrupted", "evalue": "", "traceback": []}
        if code == "fail":
            content = {"ename": "EchoError", "evalue": "no", "traceback": []}
            self.send_response(self.iopub_socket, "error", content)
            return {"status": "error", "execution_count": 0, **content}
        self.send_response(self.iopub_socket, "stream", {"name": "stdout", "text": code + "!"})
        return {"status": "ok", "execution_count": 0, "payload": [], "user_expressions": {}}

IPKernelApp.launch_instance(kernel_class=Echo)
"""

Use = Callable[[KernelspecKernel], Awaitable[Any]]


@pytest.fixture(autouse=True)
def kernelspecs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of kernelspecs on Jupyter's path."""
    program = tmp_path / "echo.py"
    program.write_text(ECHO_KERNEL)
    add_spec(tmp_path, STOCK, [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    add_spec(tmp_path, ECHO, [sys.executable, str(program), "-f", "{connection_file}"], language="echo")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    return tmp_path


def add_spec(folder: Path, name: str, argv: list[str], language: str = "python", **more: Any) -> None:
    place = folder / "kernels" / name
    place.mkdir(parents=True)
    spec = {"argv": argv, "display_name": name, "language": language, **more}
    (place / "kernel.json").write_text(json.dumps(spec))


async def with_kernel(name: str, use: Use, **limits: Any) -> Any:
    backend = KernelspecBackend(name, dataclasses.replace(LIMITS, **limits), SANDBOX.get(name, "none"))
    await backend.open(4000)
    try:
        kernel = await backend.start()
        try:
            return await use(kernel)
        finally:
            await kernel.close()
    finally:
        await backend.close()


def typed(name: str, *cells: str, **limits: Any) -> list[ExecResult]:
    async def use(kernel: KernelspecKernel) -> list[ExecResult]:
        results = []
        for cell in cells:
            results.append(await kernel.execute(cell))
            if results[-1].state_lost:
                break
        return results

    return asyncio.run(with_kernel(name, use, **limits))
