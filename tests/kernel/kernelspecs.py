"""Kernelspecs for the tests of `KernelspecBackend`: stock ipykernel, and kernels in languages that are not Python."""

import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import BlockingKernelClient
from kernel.conftest import LIMITS, typed_into

from repl_rl.kernel import ExecResult
from repl_rl.kernel.jupyter.backend import KernelspecBackend
from repl_rl.kernel.jupyter.kernel import KernelspecKernel
from repl_rl.kernel.sandbox import SandboxKind

STOCK, OWN, ECHO, TOLD = "python3", "repl_rl", "echo", "told"
SANDBOX: dict[str, SandboxKind] = {STOCK: "none", ECHO: "none", OWN: "bwrap", TOLD: "bwrap"}
REAL: dict[str, tuple[str, SandboxKind]] = {
    "bwrap": ("fork", "bwrap"),
    "sandlock": ("fork", "sandlock"),
    "no sandbox": ("fork", "none"),
    "own kernelspec": (OWN, "bwrap"),
    "stock ipykernel": (STOCK, "none"),
}
"""Backends and sandboxes of real sessions."""
SOURCES = [
    "fake",
    "bwrap",
    *(pytest.param(name, marks=pytest.mark.more) for name in ("sandlock", "no sandbox", "own kernelspec")),
    pytest.param("stock ipykernel", marks=pytest.mark.slow),
]
ECHO_KERNEL, TOLD_KERNEL = (Path(__file__).with_name(f"{name}_kernel.txt").read_text() for name in (ECHO, TOLD))


@pytest.fixture(autouse=True)
def kernelspecs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of kernelspecs on Jupyter's path."""
    program = tmp_path / "echo.py"
    program.write_text(ECHO_KERNEL)
    add_spec(tmp_path, STOCK, [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    add_spec(tmp_path, ECHO, [sys.executable, str(program), "-f", "{connection_file}"], language="echo")
    argv = ["python", "{resource_dir}/told.py", "-f", "{connection_file}"]
    add_spec(tmp_path, TOLD, argv, language="told", env={"OF_SPEC": "${USER} of $HOME"})
    (tmp_path / "kernels" / TOLD / "told.py").write_text(TOLD_KERNEL)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    return tmp_path


def add_spec(folder: Path, name: str, argv: list[str], language: str = "python", **more: Any) -> None:
    spec_folder = folder / "kernels" / name
    spec_folder.mkdir(parents=True)
    spec = {"argv": argv, "display_name": name, "language": language, **more}
    (spec_folder / "kernel.json").write_text(json.dumps(spec))


@asynccontextmanager
async def a_backend(name: str, sandbox: SandboxKind | None = None, **limits: Any) -> AsyncIterator[KernelspecBackend]:
    kind = sandbox or SANDBOX.get(name, "none")
    backend = KernelspecBackend(name, dataclasses.replace(LIMITS, **limits), kind)
    await backend.open(4000)
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def a_kernel(name: str, sandbox: SandboxKind | None = None, **limits: Any) -> AsyncIterator[KernelspecKernel]:
    async with a_backend(name, sandbox, **limits) as backend:
        kernel = await backend.start()
        try:
            yield kernel
        finally:
            await kernel.close()


@contextmanager
def client_of(file: Path) -> Iterator[BlockingKernelClient]:
    """Jupyter's own client, attached to a live session."""
    client = BlockingKernelClient(connection_file=str(file))
    client.load_connection_file()
    client.hb_channel.time_to_dead = 60.0  # a busy machine takes more than the usual second for a heartbeat
    client.start_channels()
    try:
        client.wait_for_ready(timeout=600)
        yield client
    finally:
        client.stop_channels()
        client.context.term()


async def typed(name: str, *cells: str, **limits: Any) -> list[ExecResult]:
    """The results of `cells` in a kernel of its own."""
    async with a_kernel(name, **limits) as kernel:
        return await typed_into(kernel, *cells)
