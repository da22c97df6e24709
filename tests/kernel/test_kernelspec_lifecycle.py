"""How kernels of any kernelspec come up, are attached to and go; nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import BlockingKernelClient
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner
from kernel.conftest import LIMITS, in_a_process_of_its_own, open_descriptors
from kernel.kernelspecs import ECHO, OWN, SANDBOX, STOCK, add_spec, kernelspecs, typed, with_kernel

from repl_rl.errors import ConfigError, KernelStartError
from repl_rl.kernel import ExecResult, ExecStatus, Limits
from repl_rl.kernel.jupyter.backend import KernelspecBackend
from repl_rl.kernel.jupyter.kernel import KernelspecKernel
from repl_rl.kernel.results import Backend
from repl_rl.utils.threads import BackgroundLoop

__all__ = ["kernelspecs"]

OWNER = """
import asyncio, sys
from repl_rl.kernel import Limits
from repl_rl.kernel.jupyter.backend import KernelspecBackend

async def main():
    backend = KernelspecBackend(sys.argv[1], Limits(), sys.argv[2])
    await backend.open(4000)
    kernel = await backend.start()
    await kernel.execute(sys.argv[3])
    print(await kernel.open_jupyter(), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
SLEEP = f"sleep 3600.{os.getpid()}"
"""Unlike what another run of these tests leaves asleep."""
SLEEPER = f"import subprocess; sleeper = subprocess.Popen({['setsid', *SLEEP.split()]})"


@pytest.mark.parametrize("name", [STOCK, OWN, ECHO])
def test_a_stock_client_attaches(name: str, loop: BackgroundLoop) -> None:
    backend = KernelspecBackend(name, LIMITS, SANDBOX[name])
    loop.run(backend.open(4000))
    kernel = loop.run(backend.start())
    loop.run(kernel.execute("x = 20"))
    connection_file = loop.run(kernel.open_jupyter())
    assert connection_file == loop.run(kernel.open_jupyter())
    shown = attached(connection_file, "x += 1; print('theirs')")
    own: ExecResult = loop.run(kernel.execute("print(x)"))
    loop.run(kernel.close())
    loop.run(backend.close())
    assert shown == ("x += 1; print('theirs')!" if name == ECHO else "theirs\n")
    # What our own kernel prints to its terminal is a terminal's: it shows what an attached client made it print.
    assert own.output == {STOCK: "21\n", OWN: "theirs\n21\n", ECHO: "print(x)!"}[name]


def attached(connection_file: Path, cell: str) -> str:
    client = BlockingKernelClient(connection_file=str(connection_file))
    client.load_connection_file()
    client.hb_channel.time_to_dead = 60.0  # a busy machine takes more than the usual second for a heartbeat
    client.start_channels()
    shown: list[str] = []
    try:
        client.wait_for_ready(timeout=600)
        client.execute_interactive(cell, timeout=99, output_hook=lambda m: shown.append(m["content"].get("text") or ""))
    finally:
        client.stop_channels()
        client.context.term()
    return "".join(shown)


@pytest.mark.parametrize("name", [STOCK, OWN, ECHO])
def test_nothing_is_left_after_the_close(name: str) -> None:
    counts = in_a_process_of_its_own(descriptors_after_each_of_three, name)
    assert counts[0] == counts[1] == counts[2]


def descriptors_after_each_of_three(name: str) -> list[int]:
    counts: list[int] = []

    async def use() -> tuple[list[str], list[str], Path]:
        backend = KernelspecBackend(name, LIMITS, SANDBOX[name])
        await backend.open(4000)
        folder = backend.home.path
        before = sorted(os.listdir(folder))
        for number in (1, 2, 3):
            kernel = await backend.start()
            await kernel.execute(SLEEPER)
            assert eventually(lambda: running(SLEEP) == (name != ECHO))
            assert (running(f"{folder}/{number}") > 0) is (name != OWN)
            await kernel.close()
            await kernel.close()
            assert (running(SLEEP), running(f"{folder}/{number}")) == (0, 0)
            counts.append(open_descriptors())
        after = sorted(os.listdir(folder))
        await backend.close()
        return before, after, folder

    before, after, folder = asyncio.run(use())
    assert before == after
    assert (running(str(folder)), folder.exists()) == (0, False)
    return counts


@pytest.mark.parametrize(
    ("name", "sandbox"), [(STOCK, "none"), (OWN, "bwrap"), pytest.param(STOCK, "bwrap", marks=pytest.mark.slow)]
)
def test_nothing_outlives_the_owner(name: str, sandbox: str) -> None:
    command = [sys.executable, "-c", OWNER, name, sandbox, SLEEPER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        try:
            assert owner.stdout is not None
            folder = Path(owner.stdout.readline().strip()).parent
            assert folder.is_dir()
            assert eventually(lambda: running(SLEEP) == 1)
        finally:
            owner.send_signal(signal.SIGKILL)
    assert eventually(lambda: (running(SLEEP), running(str(folder)), folder.exists()) == (0, 0, False))


def eventually(condition: Callable[[], bool], seconds: float = 300.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (is_met := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return is_met


def running(text: str) -> int:
    """Processes whose command line holds `text`."""
    return sum(text in line for line in command_lines())


def command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if not line.startswith("/bin/sh -c"):  # the reaper and the guard
            yield line


def test_an_unknown_kernelspec_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        ConfigError, match=r"no kernelspec 'pyton3'; did you mean 'python3'\? Installed are echo, .*repl_"
    ):
        asyncio.run(KernelspecBackend("pyton3", LIMITS, "none").open(4000))


def test_a_kernelspec_without_its_provisioner_is_refused(kernelspecs: Path) -> None:
    metadata = {"kernel_provisioner": {"provisioner_name": "far-away"}}
    add_spec(kernelspecs, "far", ["far"], metadata=metadata)
    with pytest.raises(ConfigError, match="'far' needs a kernel provisioner that is not installed"):
        asyncio.run(KernelspecBackend("far", LIMITS, "none").open(4000))


def test_a_kernel_without_walls_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        typed(ECHO, "x")
    assert "WITHOUT a sandbox" in caplog.text


def test_a_kernelspec_with_its_own_provisioner_needs_a_user_who_wants_no_sandbox(
    kernelspecs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("elsewhere", f"{__name__}:Elsewhere", KernelProvisionerFactory.GROUP_NAME)
    monkeypatch.setitem(KernelProvisionerFactory.instance().provisioners, "elsewhere", entry)
    add_spec(kernelspecs, "remote", ["far"], metadata={"kernel_provisioner": {"provisioner_name": "elsewhere"}})
    with pytest.raises(ConfigError, match=r"'remote' is launched by its own provisioner 'elsewhere'.*sandbox: none`"):
        asyncio.run(KernelspecBackend("remote", LIMITS).open(4000))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('no licence')", "'bad' ended as it started; it printed: no licence"),
        ("print('thinking', flush=True); import time; time.sleep(60)", "'bad' did not answer within 5 s.*thinking"),
        (None, "'bad' could not be launched: .*nowhere"),
    ],
)
def test_a_kernel_that_does_not_start_says_why(program: str | None, message: str, kernelspecs: Path) -> None:
    argv = ["/nowhere/kernel"] if program is None else [sys.executable, "-c", program]
    add_spec(kernelspecs, "bad", [*argv, "{connection_file}"])

    async def start() -> list[str]:
        backend = KernelspecBackend("bad", Limits(start_s=5.0), "none")
        await backend.open(4000)
        try:
            with pytest.raises(KernelStartError, match=message):
                await backend.start()
            return [name for name in os.listdir(backend.home.path) if name.startswith("1")]
        finally:
            await backend.close()

    assert asyncio.run(start()) == []


def test_our_own_kernel_is_held_to_the_limits() -> None:
    [result] = typed(OWN, "x = bytearray(10 ** 9)")
    assert (result.status, result.error_name) == (ExecStatus.ERROR, "MemoryError")


@pytest.mark.parametrize(("name", "transport"), [(STOCK, "ipc"), (OWN, "ipc"), (ECHO, "tcp")])
def test_ports_are_for_those_that_may_not_know_sockets(name: str, transport: str) -> None:
    async def use(kernel: KernelspecKernel) -> str:
        return str(json.loads((await kernel.open_jupyter()).read_text())["transport"])

    assert asyncio.run(with_kernel(name, use)) == transport


def test_many_kernels_come_up_at_once() -> None:
    async def use() -> list[str]:
        backend: Backend = KernelspecBackend(OWN, LIMITS)
        await backend.open(4000)
        kernels = await asyncio.gather(*(backend.start() for _ in range(4)))
        results = await asyncio.gather(*(kernel.execute(f"{n} + 1") for n, kernel in enumerate(kernels)))
        await asyncio.gather(*(kernel.close() for kernel in kernels))
        await backend.close()
        return [result.output for result in results]

    assert asyncio.run(use()) == ["1\n", "2\n", "3\n", "4\n"]


class Elsewhere(LocalProvisioner):  # type: ignore[misc]
    """Stands for one that launches kernels on other machines."""

    launched: list[dict[str, Any]] = []  # noqa: RUF012

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        self.launched.append(kwargs)
        return dict(await super().launch_kernel(cmd, **kwargs))


def test_a_kernelspecs_own_provisioner_launches_and_ends_its_kernels(
    kernelspecs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("elsewhere", f"{__name__}:Elsewhere", KernelProvisionerFactory.GROUP_NAME)
    monkeypatch.setitem(KernelProvisionerFactory.instance().provisioners, "elsewhere", entry)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    add_spec(kernelspecs, "remote", argv, metadata={"kernel_provisioner": {"provisioner_name": "elsewhere"}})
    folders: list[str] = []

    async def use(kernel: KernelspecKernel) -> list[ExecResult]:
        folders.append(str((await kernel.open_jupyter()).parent))
        cells = "submit_final_answer(1 + 1)", "while True: pass", "import os; os._exit(0)"
        return [await kernel.execute(cell) for cell in cells]

    results = asyncio.run(with_kernel("remote", use, line_s=2.0))
    assert [(result.status, result.answer) for result in results] == [
        (ExecStatus.OK, ("2",)),
        (ExecStatus.TIMEOUT, None),
        (ExecStatus.KILLED, None),
    ]
    [words] = Elsewhere.launched
    assert not {"cwd", "stdout", "stderr"} & words.keys()
    assert running(folders[0]) == 0
