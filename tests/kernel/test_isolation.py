"""What code in a kernel can't see, reach or change. `test_ordinary_user.py` runs this a second time, without root."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from kernel.conftest import Typed

import repl_rl
from repl_rl.kernel import ExecResult, KernelPool
from repl_rl.kernel.paths import remove_tree

CHECKOUT = Path(repl_rl.__file__).resolve().parent.parent


def value(result: ExecResult) -> str:
    assert result.error_name is None, result.output
    return result.output.strip()


def test_there_is_no_network(typed: Typed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)"
        _, refused, names, unreachable = typed(
            "import socket",
            connect,
            "[name for _, name in socket.if_nameindex()]",
            "socket.create_connection(('1.1.1.1', 53), 1)",
        )
    assert refused.error_name in ("ConnectionRefusedError", "OSError")
    assert names.error_name == "OSError"
    assert unreachable.error_name == "OSError"


def test_nothing_of_home_folders_or_of_what_is_installed_by_hand_is_there(typed: Typed) -> None:
    folders = [str(Path.home()), "/root", "/home", "/opt", "/srv", "/var", "/usr/src", "/usr/local", "/usr/include"]
    _, there = typed("import os", f"[folder for folder in {folders} if os.path.exists(folder)]")
    assert value(there) == "[]"


def test_nothing_of_repl_rl_can_be_found(typed: Typed) -> None:
    name, inside, _, _, left, distribution = typed(
        "import repl_rl.trajectory",
        "from repl_rl import tasks",
        "import sys, pathlib, importlib.metadata",
        "covered = [p for d in sys.path if d for p in pathlib.Path(d).glob('*repl_rl*')]",
        "[str(p) for p in covered if (any(p.iterdir()) if p.is_dir() else p.read_bytes())]",
        "importlib.metadata.version('repl-rl')",
    )
    assert name.error_name == "ModuleNotFoundError"
    assert inside.error_name in ("ModuleNotFoundError", "ImportError")
    assert value(left) == "[]"
    assert distribution.error_name == "PackageNotFoundError" or value(distribution) == ""


def test_no_path_tells_where_the_checkout_is(typed: Typed) -> None:
    [told] = typed(
        f"any({str(CHECKOUT)!r} in text for text in (str(__import__('sys').path), open('/proc/self/maps').read()))"
    )
    assert value(told) == "False"


def test_the_environment_is_scrubbed(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_TOKEN", "s3cret")
    _, names, home = typed("import os", "sorted(os.environ)", "os.path.expanduser('~')")
    known = {"HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "MALLOC_ARENA_MAX", "MPLBACKEND", "PATH", "PWD", "TERM"}
    known |= {"TMPDIR", "TZ", "USER"}
    assert {name for name in eval(value(names)) if not name.endswith("_NUM_THREADS")} == known
    assert value(home) == "'/tmp'"


def test_code_runs_as_an_ordinary_user_without_privileges(typed: Typed) -> None:
    _, uid, status = typed(
        "import os", "os.getuid(), os.geteuid(), os.getgroups()", "print(open('/proc/self/status').read())"
    )
    real, effective, _ = eval(value(uid))
    assert real == effective != 0
    fields = dict(line.split(":\t", 1) for line in value(status).splitlines())
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == int(fields["CapAmb"], 16) == 0
    assert fields["NoNewPrivs"] == "1"


async def test_temporary_files_are_private(pool: KernelPool) -> None:
    mark = f"repl-rl-mark-{os.getpid()}"
    seen = f"import os; [os.path.exists(f + '/{mark}') for f in ('/tmp', '/dev/shm')]"
    async with pool.session() as first, pool.session() as second:
        await first.execute(f"for folder in ('/tmp', '/dev/shm'): open(folder + '/{mark}', 'w').write('x')\n")
        assert value(await first.execute(seen)) == "[True, True]"
        assert value(await second.execute(seen)) == "[False, False]"
    assert not Path("/tmp", mark).exists()
    assert not Path("/dev/shm", mark).exists()


async def test_connection_files_and_sockets_of_kernels_are_out_of_reach(pool: KernelPool) -> None:
    async with pool.session() as kernel:
        folder = (await kernel.open_jupyter()).parent
        assert folder.exists()
        await kernel.execute("import os")
        look = await kernel.execute(f"os.path.exists({str(folder)!r}), os.listdir('/tmp')")
    assert value(look) == "(False, [])"


def test_folders_that_a_session_has_locked_are_removed(tmp_path: Path) -> None:
    locked = tmp_path / "folder" / "a" / "b"
    locked.mkdir(parents=True)
    (locked / "file").touch()
    (locked / "elsewhere").symlink_to("/usr")
    for folder in (locked, locked.parent):
        folder.chmod(0o300)
    remove_tree(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


async def test_kernels_do_not_share_processes(pool: KernelPool) -> None:
    seen = "import os; sum(os.path.exists(f'/proc/{n}/exe') for n in range(1, 200))"
    async with pool.session() as first, pool.session() as second:
        await first.execute("import subprocess; child = subprocess.Popen(['sleep', '600'])")
        assert int(value(await first.execute(seen))) == int(value(await second.execute(seen))) + 1


@pytest.mark.parametrize(
    ("cells", "output"),
    [
        ("import numpy; int(numpy.arange(3).sum())", "3\n"),
        ("import sympy; sympy.factorint(2024)", "{2: 3, 11: 1, 23: 1}\n"),
        ("import subprocess; subprocess.run(['echo', 'hi'], capture_output=True).stdout", "b'hi\\n'\n"),
        ("import tempfile; f = tempfile.TemporaryFile('w+'); f.write('text')", "4\n"),
        ("import threading; t = threading.Thread(target=print, args=('x',)); t.start(); t.join()", "x\n"),
        ("import multiprocessing as m; p = m.Process(target=print, args=('x',)); p.start(); p.join()", "x\n"),
        ("import concurrent.futures as c\nlist(c.ThreadPoolExecutor(2).map(abs, [-1]))", "[1]\n"),
        (
            "import asyncio\nasync def f(): return await (await asyncio.create_subprocess_exec('false')).wait()\n\n"
            "asyncio.run(f())",
            "1\n",
        ),
        ("from concurrent.futures import *; ProcessPoolExecutor(1).submit(abs, -3).result()", "3\n"),
        ("import ctypes; ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: n + 1)(4)", "5\n"),
        ("import datetime, random, secrets, uuid, zoneinfo, sqlite3, ctypes, decimal, hashlib", ""),
        ("import sqlite3; sqlite3.connect(':memory:').execute('select 1').fetchall()", "[(1,)]\n"),
    ],
)
def test_honest_code_still_works(cells: str, output: str, typed: Typed) -> None:
    [result] = typed(cells)
    assert (result.output, result.error_name) == (output, None)
