"""How kernels of any kernelspec come up, are attached to and go; nothing of them is left."""

import asyncio
import json
import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner
from kernel.conftest import in_a_process_of_its_own, open_descriptors, running
from kernel.kernelspecs import ECHO, OWN, STOCK, TOLD, a_backend, a_kernel, add_spec, client_of, kernelspecs
from waiting import until

from repl_rl.errors import ConfigError, KernelStartError
from repl_rl.kernel import ExecStatus
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

__all__ = ["kernelspecs"]

SLEEP = f"sleep 3600.{os.getpid()}"
"""Unlike what another run of these tests leaves asleep."""
SLEEPER = f"__import__('subprocess').Popen({['setsid', *SLEEP.split()]})"


@pytest.mark.more
@pytest.mark.parametrize("name", [STOCK, OWN, ECHO])
def test_a_stock_client_attaches(name: str, loop: BackgroundLoop) -> None:
    session, shown = a_kernel(name), list[str]()
    kernel = loop.run(session.__aenter__())
    loop.run(kernel.execute("x = 20"))
    file = loop.run(kernel.open_jupyter())
    assert file == loop.run(kernel.open_jupyter())
    with client_of(file) as client:
        client.execute_interactive(
            "x += 1; print('theirs')", timeout=99, output_hook=lambda m: shown.append(m["content"].get("text") or "")
        )
    own = loop.run(kernel.execute("print(x)"))
    loop.run(session.__aexit__(None, None, None))
    assert "".join(shown) == ("x += 1; print('theirs')!" if name == ECHO else "theirs\n")
    assert own.output == {STOCK: "21\n", OWN: "21\n", ECHO: "print(x)!"}[name]


@pytest.mark.more
@pytest.mark.parametrize("name", [STOCK, OWN, ECHO, pytest.param(TOLD, marks=pytest.mark.slow)])
def test_nothing_is_left_after_the_close(name: str) -> None:
    counts = in_a_process_of_its_own(descriptors_after_each_of_three, name)
    assert counts[0] == counts[1] == counts[2]


def descriptors_after_each_of_three(name: str) -> list[int]:
    async def count() -> list[int]:
        counts: list[int] = []
        async with a_backend(name) as backend:
            folder = backend.home.path
            before = sorted(os.listdir(folder))
            for number in (1, 2, 3):
                kernel = await backend.start()
                await kernel.execute(f"{SLEEPER}." if name == TOLD else f"sleeper = {SLEEPER}")
                until(lambda: running(SLEEP) == (name != ECHO))
                assert (running(f"{folder}/{number}") > 0) is (name in (STOCK, ECHO))
                if name == TOLD:
                    kernel.kill()
                await kernel.close()
                await kernel.close()
                assert (running(SLEEP), running(f"{folder}/{number}")) == (0, 0)
                counts.append(open_descriptors())
            assert sorted(os.listdir(folder)) == before
        assert (running(str(folder)), folder.exists()) == (0, False)
        return counts

    return asyncio.run(count())


FAR = {"metadata": {"kernel_provisioner": {"provisioner_name": "elsewhere"}}}
REFUSED = {
    "pyton3": r"no kernelspec 'pyton3'; did you mean 'python3'\?",
    "far": "'far' needs a kernel provisioner that is not installed",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_kernelspec_that_can_not_be_had_is_refused(name: str, kernelspecs: Path) -> None:
    add_spec(kernelspecs, "far", ["far"], **FAR)
    with pytest.raises(ConfigError, match=REFUSED[name]):
        await a_backend(name).__aenter__()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provisioner of another package is installed."""
    entry = EntryPoint("elsewhere", f"{__name__}:Elsewhere", KernelProvisionerFactory.GROUP_NAME)
    monkeypatch.setitem(KernelProvisionerFactory.instance().provisioners, "elsewhere", entry)


@pytest.mark.usefixtures("elsewhere")
async def test_a_kernelspec_with_its_own_provisioner_needs_a_user_who_wants_no_sandbox(kernelspecs: Path) -> None:
    add_spec(kernelspecs, "remote", ["far"], **FAR)
    with pytest.raises(ConfigError, match=r"'remote' is launched by its own provisioner 'elsewhere'.*sandbox: none`"):
        await a_backend("remote", "auto").__aenter__()


NO_LICENCE = "import sys; sys.exit('no licence')"
THINKING = "print('thinking', flush=True); import time; time.sleep(60)"
INTERNET = "import socket; socket.socket(socket.AF_INET)"


@pytest.mark.parametrize(
    ("sandbox", "argv", "message"),
    [
        (
            "bwrap",
            ["python", "-c", NO_LICENCE],
            "'bad' ended as it started; it printed: no licence.*docs/kernelspecs.md",
        ),
        ("bwrap", ["python", "-c", INTERNET], "'bad' ended as it started.*Address family not supported"),
        *(
            pytest.param("none", *each, marks=pytest.mark.slow)
            for each in (
                (["python", "-c", THINKING], "'bad' did not answer within 5 s.*thinking"),
                (["/nowhere/kernel"], "'bad' could not be launched: .*nowhere"),
            )
        ),
    ],
)
async def test_a_kernel_that_does_not_start_says_why(
    sandbox: SandboxKind, argv: list[str], message: str, kernelspecs: Path
) -> None:
    add_spec(kernelspecs, "bad", [*argv, "{connection_file}"])
    async with a_backend("bad", sandbox, start_s=5.0 if THINKING in argv else 60.0) as backend:
        with pytest.raises(KernelStartError, match=f"(?s){message}"):
            await backend.start()
        assert [name for name in os.listdir(backend.home.path) if name.startswith("1")] == []


async def test_our_own_kernel_is_held_to_the_limits_and_many_come_up_at_once() -> None:
    async with a_backend(OWN) as backend:
        kernels = await asyncio.gather(*(backend.start() for _ in range(4)))
        results = await asyncio.gather(*(kernel.execute(f"{n} + 1") for n, kernel in enumerate(kernels)))
        assert [result.output for result in results] == ["1\n", "2\n", "3\n", "4\n"]
        assert (await kernels[0].execute("x = bytearray(10 ** 9)")).error_name == "MemoryError"
        await asyncio.gather(*(kernel.close() for kernel in kernels))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "transport"), [(STOCK, "ipc"), (OWN, "ipc"), (ECHO, "tcp")])
async def test_ports_are_for_those_that_may_not_know_sockets(name: str, transport: str) -> None:
    async with a_kernel(name) as kernel:
        assert json.loads((await kernel.open_jupyter()).read_text())["transport"] == transport


class Elsewhere(LocalProvisioner):  # type: ignore[misc]
    """Stands for one that launches kernels on other machines."""

    launched: list[dict[str, Any]] = []  # noqa: RUF012

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        self.launched.append(kwargs)
        return dict(await super().launch_kernel(cmd, **kwargs))


@pytest.mark.more
@pytest.mark.usefixtures("elsewhere")
async def test_a_kernelspecs_own_provisioner_launches_and_ends_its_kernels(kernelspecs: Path) -> None:
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    add_spec(kernelspecs, "remote", argv, **FAR)
    cells = "submit_final_answer(1 + 1)", "while True: pass", "import os; os._exit(0)"
    async with a_kernel("remote", line_s=10.0) as kernel:
        folder = (await kernel.open_jupyter()).parent
        results = [await kernel.execute(cell) for cell in cells]
    assert [(result.status, result.answer) for result in results] == [
        (ExecStatus.OK, ("2",)),
        (ExecStatus.TIMEOUT, None),
        (ExecStatus.KILLED, None),
    ]
    [words] = Elsewhere.launched
    assert not {"cwd", "stdout", "stderr"} & words.keys()
    assert running(str(folder)) == 0
