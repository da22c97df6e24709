"""Kernels of any kernelspec behind bwrap: a kernel in a language of its own, what it sees, and how it goes."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec
from kernel.conftest import LIMITS
from kernel.kernelspecs import OWN, STOCK, TOLD, TOLD_KERNEL, a_backend, a_kernel, add_spec, kernelspecs

from repl_rl.errors import ConfigError, SandboxError
from repl_rl.kernel import ExecStatus, Profile
from repl_rl.kernel.jupyter.guest import Guest, files_of

__all__ = ["kernelspecs"]


async def test_it_runs_over_ipc_and_sees_nothing_of_the_host(
    kernelspecs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_HOST", "a secret")
    looks = (
        "sorted(os.environ.items()).",
        "sorted(os.listdir('/')).",
        "sorted(os.listdir('/tmp')).",
        f"[os.path.exists(path) for path in {(str(kernelspecs), str(Path.home()), os.getcwd(), '/etc/shadow')}].",
        "os.getuid(), open('/proc/self/status').read().count('CapEff:\\t0000000000000000').",
        "len([name for name in os.listdir('/proc') if name.isdigit()]) < 5.",
        "open('/kernelspec/told.py', 'a').",
    )

    async with a_kernel(TOLD, "bwrap") as kernel:
        assert json.loads((await kernel.open_jupyter()).read_text())["transport"] == "ipc"
        results = [await kernel.execute(look) for look in looks]
    environment, root, own, paths, user, processes, written = [result.output for result in results]
    assert "('OF_SPEC', 'user of /tmp')" in environment
    assert "secret" not in environment
    assert "MPLBACKEND" not in environment
    assert not {"root", "home", "work", "sys", "run", "var"} & set(json.loads(root.replace("'", '"')))
    assert own == "['.ipython', '.jupyter-kernel']\n"
    assert paths == "[False, False, False, False]\n"
    assert user == "(1000, 1)\n"
    assert processes == "True\n"
    # Which of the two walls an attempt meets first depends on whether root runs this.
    assert (written, results[-1].status) == ("", ExecStatus.ERROR)
    assert results[-1].error_name in ("OSError", "PermissionError")


async def test_what_it_says_of_a_source_is_passed_on() -> None:
    async with a_kernel(TOLD, "bwrap") as kernel:
        said = [await kernel.is_complete(source) for source in ("1.", "1", "1\n+ 1.", "!", "\ud800.")]
        invalid = await kernel.execute("!")
    assert said == ["complete", "incomplete", "complete", "invalid", "complete"]
    assert (invalid.status, invalid.output, invalid.error_name) == (ExecStatus.ERROR, "Unreadable: !\n", "Unreadable")


@pytest.mark.slow
async def test_stock_python_runs_behind_the_walls(kernelspecs: Path) -> None:
    add_spec(kernelspecs, "stock", [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    cells = ("x = 20", "while True: pass", "x + 1", "import repl_rl.errors", "submit_final_answer(x)", "exit()")
    async with a_kernel("stock", "bwrap", line_s=5.0) as kernel:
        _, endless, kept, hidden, answer, gone = [await kernel.execute(cell) for cell in cells]
        assert not kernel.is_alive
    assert (endless.status, endless.error_name) == (ExecStatus.TIMEOUT, "KeyboardInterrupt")
    assert kept.output == "21\n"
    assert hidden.error_name == "ModuleNotFoundError"
    assert answer.answer == ("20",)
    assert gone.status is ExecStatus.KILLED


@pytest.mark.slow
async def test_a_kernel_that_stops_answering_is_not_waited_for() -> None:
    async with a_kernel(TOLD, "bwrap", line_s=1.0) as kernel:
        assert await kernel.is_complete("mute") == "unknown"


@pytest.mark.slow
async def test_memory_processes_and_files_are_limited() -> None:
    cells = {
        "len(bytearray(10 ** 9)).": "MemoryError",
        "[os.fork() == 0 and time.sleep(60) for _ in range(100)].": "BlockingIOError",
        "len([open('/dev/null') for _ in range(100)]).": "OSError: [Errno 24] Too many open files: '/dev/null'",
        "open('/tmp/x', 'wb').write(bytes(64 << 20)).": "OSError: [Errno 27] File too large",
    }
    async with a_kernel(TOLD, "bwrap") as kernel:
        for cell, message in cells.items():
            assert ((await kernel.execute(cell)).error_message or "").startswith(message)
        assert (await kernel.execute("6 * 7.")).output == "42\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        "[self.send_response(self.iopub_socket, 'stream', {'text': 'x' * 900_000}) for _ in range(9)].",
        "self.send_response(self.iopub_socket, 'stream', {'text': 'x' * 3_000_000}).",
        "self.send_response(self.iopub_socket, 'stream', {'text': [0] * 300_000}).",
        "self.iopub_thread.send_multipart([b''] * 200_000).",
        "self.iopub_thread.send_multipart([b'', self.session.delim, b'no', b'signature']).",
    ],
    ids=["a-flood", "too-long", "too-many-parts", "too-many-frames", "not-a-message"],
)
async def test_hostile_messages_cost_the_session_alone(cell: str) -> None:
    async with a_backend(TOLD, "bwrap", read_mb=1, line_s=4.0, line_wall_s=4.0) as backend:
        hostile, sibling = await backend.start(), await backend.start()
        attack = await hostile.execute(cell)
        held = await sibling.execute("6 * 7.")
        await hostile.close()
        await sibling.close()
    assert (held.status, held.output) == (ExecStatus.OK, "42\n")
    assert attack.answer is None
    assert len(attack.output) < 2 * LIMITS.output_bytes


async def test_a_program_that_is_not_there_is_refused_by_name(kernelspecs: Path) -> None:
    add_spec(kernelspecs, "bad", ["no-such-program", "{connection_file}"])
    with pytest.raises(ConfigError, match=r"kernelspec 'bad' is installed, and its program 'no-such-program' is not"):
        await a_backend("bad", "bwrap").__aenter__()


async def test_a_program_in_the_temporary_folder_is_refused(kernelspecs: Path) -> None:
    program = kernelspecs / "bin" / "kernel"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    add_spec(kernelspecs, "bad", [str(program), "{connection_file}"])
    with pytest.raises(ConfigError, match=r"kernelspec 'bad' needs .*, and sessions have a /tmp of their own"):
        await a_backend("bad", "bwrap").__aenter__()


@pytest.mark.slow
async def test_a_kernel_that_cannot_say_is_told_of_once(kernelspecs: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    text = TOLD_KERNEL.replace('{"status": "invalid" if', '{"status": "unknown" if 1 else "invalid" if')
    (kernelspecs / "kernels" / TOLD / "told.py").write_text(text)
    async with a_kernel(TOLD, "bwrap") as kernel:
        await kernel.execute("1.")
    assert "'told' does not say when a cell of told is complete: each line runs as a cell of its own" in caplog.text


def guest(argv: list[str], **more: Any) -> Guest:
    return Guest.of("spec", KernelSpec(argv=argv, **more), Profile.load())


def test_of_the_system_only_what_belongs_to_the_program_is_shown() -> None:
    shown = {str(path) for path, _ in guest(["/bin/sh", "-c", "true"], language="dpkg").shown}
    assert shown == {path for path in ("/usr/share/dpkg", "/usr/libexec/dpkg", "/etc/dpkg") if os.path.isdir(path)}


def test_a_shared_prefix_is_not_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "local"
    for file in ("bin/told-kernel", "share/told-kernel/library", "share/keyrings/secret"):
        (shared / file).parent.mkdir(parents=True, exist_ok=True)
        (shared / file).touch(0o755)
    monkeypatch.setattr("repl_rl.kernel.jupyter.guest._SHARED_PREFIXES", (shared,))
    found = files_of(shared / "bin" / "told-kernel", "../keyrings", Profile.load())
    assert sorted(found) == [shared / "bin" / "told-kernel", shared / "share" / "told-kernel"]
    monkeypatch.setattr("repl_rl.kernel.jupyter.guest._SHARED_PREFIXES", ())
    assert files_of(shared / "bin" / "told-kernel", "told", Profile.load()) == [shared]


def test_a_python_of_this_environment_is_ours() -> None:
    found = guest([sys.executable, "-m", "x"], language="python")
    assert found.argv[0] == f"/python/bin/python3.{sys.version_info.minor}"
    assert found.shown == ()
    assert found.installation.packages


async def test_the_home_folder_is_not_shown_whole(kernelspecs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(kernelspecs / "ipython"))
    monkeypatch.setenv("HOME", "/usr/share/dpkg")
    add_spec(kernelspecs, "bad", ["/bin/sh", "{connection_file}"], language="dpkg")
    if os.path.isdir("/usr/share/dpkg"):
        with pytest.raises(SandboxError, match="the home folder, /usr/share/dpkg, lies in /usr/share/dpkg"):
            await a_backend("bad", "bwrap").__aenter__()


def test_a_profile_shows_more_than_the_default(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('also_read_only = ["/usr/share/dpkg"]\n')
    assert Profile.load(str(file)).read_only == (*Profile.load().read_only, "/usr/share/dpkg")


@pytest.mark.more
@pytest.mark.parametrize(("name", "status"), [(STOCK, ExecStatus.KILLED), (OWN, ExecStatus.TIMEOUT)])
async def test_more_than_a_cell_may_print_ends_it(name: str, status: ExecStatus) -> None:
    """The session too where what it printed came as one message that is too long to be read."""
    async with a_kernel(name, "bwrap", read_mb=1, line_s=3.0, line_wall_s=3.0) as kernel:
        assert (await kernel.execute("x = 1")).status is ExecStatus.OK
        late = await kernel.execute("print('x' * 3_000_000)")
        assert (late.status, kernel.is_alive) == (status, status is ExecStatus.TIMEOUT)
