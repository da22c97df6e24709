"""CPython's and sympy's own tests inside a session: what passes on the host passes there too, but for what is meant.

docs/threat-model.md names the exceptions.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
import zlib
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from kernel.conftest import SOAK

from repl_rl.kernel import ExecStatus, KernelPool, Limits
from repl_rl.kernel.paths import Installation

WORDS = yaml.safe_load(Path(__file__).with_name("cpython.yaml").read_text())
MODULES = [f"test_{name}" for name in WORDS["modules"].split()]
EXCEPTIONS: dict[str, list[str]] = WORDS["exceptions"]
RUN = Path(__file__).with_name("cpython_run.txt").read_text()
"""Defines functions that run the tests of a module and tell how each of them ended."""
LIMITS = Limits(line_s=3000, session_s=9000, memory_mb=3000, cpu_s=3000, open_files=1024, tmp_mb=1024, file_mb=1024)


def inside(function: str, names: list[str]) -> dict[str, str]:
    """The outcome of each test in a session."""

    async def run() -> dict[str, str]:
        found: dict[str, str] = {}
        async with KernelPool(1, LIMITS, sandbox="bwrap", memory_mb=8000) as pool, pool.session() as kernel:
            assert (await kernel.execute(RUN)).status is ExecStatus.OK
            assert (await kernel.execute("import base64, zlib")).status is ExecStatus.OK
            for name in names:
                said = f"json.dumps({function}({name!r}, '/tmp')).encode()"
                result = await kernel.execute(f"print(base64.b64encode(zlib.compress({said})).decode())")
                assert result.status is ExecStatus.OK, (name, result)
                found |= json.loads(zlib.decompress(base64.b64decode(result.output)))
        return found

    return asyncio.run(run())


def outside(python: str, function: str, names: list[str], folder: Path) -> dict[str, str]:
    """The outcome of each test on the host, with nothing of these tests' environment."""
    code = f"{RUN}\nprint(json.dumps({function}(*sys.argv[1:])))"
    found: dict[str, str] = {}
    for name in names:
        done = subprocess.run(
            [python, "-c", code, name, str(folder)],
            env={"PATH": os.defpath, "HOME": str(folder), "LANG": "C.UTF-8", "TMPDIR": str(folder), "TZ": "UTC"},
            capture_output=True,
            text=True,
            timeout=3000,
            check=True,
            cwd=folder,
        )
        found |= json.loads(done.stdout)
    return found


def lost(there: dict[str, str], here: dict[str, str]) -> list[str]:
    """What passes outside and not inside."""
    passed = sorted(name for name, outcome in there.items() if outcome == "passed")
    names = [name for name in passed if here.get(name) != "passed"]
    print(f"{len(passed):,} pass outside, {len(passed) - len(names):,} of them inside")
    return names


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(find_spec("test.test_math") is None, reason="this Python comes without its tests")
def test_what_passes_outside_passes_inside(tmp_path: Path) -> None:
    there = outside(str(Installation.current().executable), "of_cpython", MODULES, tmp_path)
    missing = lost(there, inside("of_cpython", MODULES))
    meant = [f"test.{pattern}" for patterns in EXCEPTIONS.values() for pattern in patterns]
    assert [name for name in missing if not any(fnmatchcase(name, pattern) for pattern in meant)] == []
    assert len(there) > 10_000


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("part", "least"), [("core", 1500), ("solvers", 400), ("integrals", 400)])
@pytest.mark.skipif(not SOAK, reason="a quarter of an hour each: `make test-soak`")
def test_sympys_own_tests_pass_inside(part: str, least: int, tmp_path: Path) -> None:
    there = outside(sys.executable, "of_sympy", [part], tmp_path)
    assert lost(there, inside("of_sympy", [part])) == []
    assert len(there) > least
