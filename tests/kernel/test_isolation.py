"""What code in a kernel can't see, reach or change. `test_ordinary_user.py` runs this a second time, without root."""

from pathlib import Path
from typing import Any

import pytest
from kernel.conftest import Typed, sessions, told, typed_in

import repl_rl
from repl_rl.kernel import ExecResult, KernelPool

CHECKOUT = Path(repl_rl.__file__).resolve().parent.parent


def value(result: ExecResult) -> str:
    assert result.error_name is None, result.output
    return result.output.strip()


def test_nothing_of_home_folders_or_of_what_is_installed_by_hand_is_there(typed: Typed) -> None:
    folders = [str(Path.home()), "/root", "/home", "/opt", "/srv", "/var", "/usr/src", "/usr/local", "/usr/include"]
    _, there = typed("import os", f"[folder for folder in {folders} if os.path.exists(folder)]")
    assert value(there) == "[]"


def test_nothing_of_repl_rl_can_be_found(typed: Typed) -> None:
    _, _, left, distribution = typed(
        "import sys, pathlib, importlib.metadata",
        "covered = [p for d in sys.path if d for p in pathlib.Path(d).glob('*repl_rl*')]",
        "[str(p) for p in covered if (any(p.iterdir()) if p.is_dir() else p.read_bytes())]",
        "importlib.metadata.version('repl-rl')",
    )
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
    known |= {"JE_ARROW_MALLOC_CONF", "TMPDIR", "TZ", "USER"}
    assert {name for name in eval(value(names)) if not name.endswith("_NUM_THREADS")} == known
    assert value(home) == "'/tmp'"


async def test_connection_files_and_sockets_of_kernels_are_out_of_reach(pool: KernelPool) -> None:
    async with pool.session() as kernel:
        folder = (await kernel.open_jupyter()).parent
        assert folder.exists()
        await kernel.execute("import os")
        look = await kernel.execute(f"os.path.exists({str(folder)!r}), os.listdir('/tmp')")
    assert value(look) == "(False, ['.cache'])"


@pytest.mark.parametrize("cells", sessions("isolation", "honest"))
def test_honest_code_still_works(cells: list[Any], typed: Typed) -> None:
    told(cells, typed(*typed_in(cells)))
