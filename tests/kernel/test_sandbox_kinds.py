"""Which walls are taken: as asked for, or the best that this machine has, and what is said where there are none."""

import logging
import resource
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import AsyncKernelManager

from repl_rl.errors import ConfigError, SandboxError
from repl_rl.kernel import Profile, landlock
from repl_rl.kernel import sandbox as sandbox_module
from repl_rl.kernel.jupyter.provisioner import register
from repl_rl.kernel.limits import Limits
from repl_rl.kernel.paths import Home, Installation, program_folder
from repl_rl.kernel.pool import require_backend
from repl_rl.kernel.sandbox import Sandbox, SandboxReport, require_sandbox

TIMEOUT_S = 600
FORBIDDEN = SandboxReport(
    Path("/usr/bin/bwrap"), "bubblewrap 0.11", False, "user namespaces are forbidden", "allow them"
)


def own_kernelspec(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncKernelManager:
    """What a Jupyter front end starts our kernel with."""
    register()
    (folder / "kernels").mkdir()
    (folder / "kernels" / "repl_rl").symlink_to(program_folder())
    monkeypatch.setenv("JUPYTER_PATH", str(folder))
    return AsyncKernelManager(kernel_name="repl_rl", connection_file=str(folder / "connection.json"))


@pytest.mark.skipif(landlock.problem() is not None, reason="this machine has no Landlock")
def test_auto_is_landlock_where_namespaces_are_forbidden(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sandbox_module, "check_sandbox", lambda: FORBIDDEN)
    with caplog.at_level(logging.WARNING):
        assert require_sandbox("auto") == "sandlock"
    assert "user namespaces are forbidden; kernels are isolated by Landlock instead" in caplog.text
    with pytest.raises(SandboxError, match=r"user namespaces are forbidden\. What helps: allow them"):
        require_sandbox("bwrap")


@pytest.mark.skipif(landlock.problem() is not None, reason="this machine has no Landlock")
def test_without_either_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "check_sandbox", lambda: FORBIDDEN)
    monkeypatch.setattr(landlock, "_LEAST_ABI", 1000)
    with pytest.raises(SandboxError, match="user namespaces are forbidden"):
        require_sandbox("auto")
    with pytest.raises(
        SandboxError, match=r"Landlock can't isolate a kernel here: this kernel's Landlock is of version \d+"
    ):
        require_sandbox("sandlock")


async def test_a_jupyter_client_is_told_why_a_kernel_can_not_be_isolated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = own_kernelspec(tmp_path, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(sandbox_module, "check_sandbox", lambda: FORBIDDEN)
        with pytest.raises(SandboxError, match=r"user namespaces are forbidden\. What helps: allow them"):
            await manager.start_kernel()
    homes = list[Path]()

    def fail(sandbox: Sandbox, *arguments: Any, **options: Any) -> None:
        assert sandbox.home is not None
        homes.append(sandbox.home.path)
        raise OSError("no more processes")

    monkeypatch.setattr(Sandbox, "launch", fail)
    with pytest.raises(OSError, match="no more processes"):
        await manager.start_kernel()
    assert [home.exists() for home in homes] == [False]


async def test_a_jupyter_client_starts_a_kernel_again_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By TCP, as front ends do: the client stays connected to the ports of the first kernel."""
    manager = own_kernelspec(tmp_path, monkeypatch)
    await manager.start_kernel()
    client, said = manager.client(), list[str]()
    client.start_channels()

    def hear(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    homes = []
    try:
        for is_now in (True, False, None):
            await client.wait_for_ready(timeout=TIMEOUT_S)
            await client.execute_interactive("x = 'x' in dir(); print(x)", timeout=TIMEOUT_S, output_hook=hear)
            homes.append(manager.provisioner._home.path)
            if is_now is not None:
                await manager.restart_kernel(now=is_now)
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
    assert said == ["False\n"] * 3
    assert len(set(homes)) == 1
    assert not homes[0].exists()


def test_a_missing_sandlock_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sandlock", None)
    assert "pip install sandlock" in (landlock.problem() or "")


def test_none_is_said_loudly(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert require_sandbox("none") == "none"
    assert "WITHOUT a sandbox" in caplog.text


def test_auto_is_bwrap_where_it_works_and_a_backend_that_cannot_be_had_is_said_before_anything_starts() -> None:
    assert require_sandbox("auto") == "bwrap"
    require_backend("fork", "auto")
    with pytest.raises(ConfigError, match="there is no kernelspec 'pyton3'"):
        require_backend("pyton3", "none")


def test_landlock_hides_repl_rl_and_nothing_else(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "site-packages"
    for name in ("repl_rl", "repl_rl-0.1.0.dist-info", "numpy", "six.py"):
        (packages / name).mkdir(parents=True)
    installation = replace(Installation.current(), packages=(packages,))
    with closing(Home()) as home:
        readable = landlock.readable(["/usr", "/no/such/folder"], installation, home)
        [links] = home.linked_packages(installation)
        assert sorted(path.name for path in links.iterdir()) == ["numpy", "six.py"]
        assert {str(packages / "numpy"), str(packages / "six.py"), "/usr", str(links)} <= set(readable)
        assert not any("repl_rl" in Path(path).name for path in readable)
        assert "/no/such/folder" not in readable


def test_landlock_refuses_where_repl_rl_lies_in_what_must_be_readable(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / f"python{__import__('sys').version_info.major}" / "site-packages"
    (packages / "repl_rl").mkdir(parents=True)
    installation = replace(Installation.current(), prefix=tmp_path, packages=(packages,))
    needs = "install repl_rl into a virtual environment, or use bwrap"
    with closing(Home()) as home, pytest.raises(SandboxError, match=needs):
        landlock.readable([], installation, home)


@pytest.mark.parametrize(
    ("name", "most", "message"),
    [
        ("RLIMIT_FSIZE", 40960, "67,108,864, and this process may have 40,960 at most (`ulimit -Hf`); raise that hard"),
        ("RLIMIT_CPU", 20, "300, and this process may have 20 at most (`ulimit -Ht`); raise that hard limit, or lower"),
    ],
)
def test_a_hard_limit_below_one_of_a_session_is_named(
    name: str, most: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = resource.getrlimit
    low = getattr(resource, name)
    monkeypatch.setattr(resource, "getrlimit", lambda number: (most, most) if number == low else there(number))
    with closing(Home()) as home, pytest.raises(SandboxError) as caught:
        Sandbox("none", Profile.load(), Limits(), home)
    assert f"a session's {name} is {message}" in str(caught.value)


def test_processes_are_only_counted_where_they_can_be() -> None:
    counted = {
        kind: "RLIMIT_NPROC" in Sandbox(kind, Profile.load(), Limits(), None).rlimits() for kind in ("bwrap", "none")
    }
    assert counted == {"bwrap": True, "none": False}
