"""Sessions read alike wherever Python, its packages and the project are installed."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from repl_rl.errors import SandboxError
from repl_rl.kernel import ExecStatus, KernelPool, Limits
from repl_rl.kernel import sandbox as sandbox_module
from repl_rl.kernel.limits import Profile
from repl_rl.kernel.paths import PYTHON_INSIDE, Home, Installation, find_bwrap
from repl_rl.kernel.sandbox import Sandbox

LINES = Path(__file__).with_name("installations.txt").read_text().splitlines()


def type_and_print(lines: list[str]) -> None:
    """Run in another process: what a session answers to each line, as JSON."""

    async def run() -> None:
        async with KernelPool(size=1, limits=Limits(line_s=120), sandbox="bwrap") as pool, pool.session() as kernel:
            results = [await kernel.execute(line) for line in lines]
            print(json.dumps([[result.status, result.output, result.answer, result.error_name] for result in results]))

    asyncio.run(run())


@pytest.mark.more
def test_a_session_reads_alike_on_two_installations(tmp_path: Path) -> None:
    here = Installation.current()
    root = Path(__file__).parents[2]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1] + '/tests'); sys.path.insert(0, sys.argv[1])\n"
        "from kernel.test_installations import LINES, type_and_print; type_and_print(LINES)"
    )
    other = tmp_path / "other"
    other.mkdir()
    moved = {here.prefix: other / "python-home", root: other / "checkout"}
    moved |= {folder: other / "packages" / str(n) / "site-packages" for n, folder in enumerate(here.packages)}
    binds = [word for path, place in moved.items() for word in ("--bind", str(path), str(place))]
    folders = os.pathsep.join(str(place) for place in moved.values() if place.name == "site-packages")
    elsewhere = [str(find_bwrap()), "--dev-bind", "/", "/", "--tmpfs", str(other), *binds, "--chdir", str(other)]
    python = other / "python-home" / here.executable.relative_to(here.prefix)
    printed = []
    for command, project, environment in (
        ([sys.executable], str(root), {}),
        ([*elsewhere, "--", str(python), "-S"], str(other / "checkout"), {"PYTHONPATH": folders}),
    ):
        done = subprocess.run(
            [*command, "-c", code, project],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        printed.append(json.loads(done.stdout.splitlines()[-1]))
    for one, two in zip(*printed, strict=True):
        assert one == two
    everything = json.dumps(printed[0])
    assert len(printed[0]) == len(LINES)
    assert [status for status, *_ in printed[0]].count(ExecStatus.OK) == 9
    for path in (here.prefix, root, Path(sys.prefix), Path.home()):
        assert f"{path}/" not in everything
    assert f"{PYTHON_INSIDE}/lib/python3" in everything


@pytest.mark.parametrize("what", ["home", "working"])
def test_a_folder_that_sessions_would_see_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    monkeypatch.setenv("HOME", str(secret if what == "home" else Path.home()))
    monkeypatch.chdir(secret if what == "working" else "/")
    profile = replace(Profile.load(), read_only=("/usr/bin", str(tmp_path)))
    for kind in ("bwrap", "sandlock"):
        with pytest.raises(SandboxError, match=f"the {what} folder, {secret}, lies in {tmp_path}, which sessions can"):
            Sandbox(kind, profile, Limits(), None)
    assert Sandbox("none", profile, Limits(), None).walls()


def test_a_checkout_in_what_sessions_see_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "checkout" / "repl_rl"
    (package / "configs").mkdir(parents=True)
    monkeypatch.setattr(sandbox_module, "resource_folder", lambda name: package / name)
    profile = replace(Profile.load(), read_only=(str(tmp_path),))
    with pytest.raises(SandboxError, match=f"the checkout of repl_rl, {package.parent}, lies in {tmp_path}"):
        Sandbox("bwrap", profile, Limits(), None)


def test_of_a_prefix_that_python_shares_only_its_own_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("src/app", f"lib/{version}/json", "lib/other"):
        (tmp_path / name).mkdir(parents=True)
    library = tmp_path / "lib" / f"lib{version}.so.1.0"
    library.touch()
    installation = replace(Installation.current(), prefix=tmp_path)
    everything = [(tmp_path / "lib", PYTHON_INSIDE / "lib")]
    assert installation.python_inside()[1:] == everything
    monkeypatch.setattr("repl_rl.kernel.paths._SYSTEM_PREFIXES", (tmp_path,))
    assert installation.python_inside()[1:] == [
        (tmp_path / "lib" / version, PYTHON_INSIDE / "lib" / version),
        (library, PYTHON_INSIDE / "lib" / library.name),
    ]


def test_repl_rl_is_found_in_all_folders_of_packages(tmp_path: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base, own = tmp_path / "lib" / version / "dist-packages", tmp_path / "venv" / "site-packages"
    for folder in (base, own):
        (folder / "repl_rl").mkdir(parents=True)
        (folder / "numpy").mkdir()
    installation = replace(Installation.current(), prefix=tmp_path, packages=(own,))
    assert sorted(installation.own_entries()) == sorted([base / "repl_rl", own / "repl_rl"])
    with closing(Home()) as home:
        profile = replace(Profile.load(), read_only=(str(tmp_path / "venv"),))  # as /usr/lib with system packages
        sandbox = Sandbox("bwrap", Profile.load(), Limits(), home)
        sandbox.profile, sandbox.installation = profile, installation
        words = " ".join(sandbox.walls())
    assert f"{home.covers}/folder {PYTHON_INSIDE}/lib/{version}/dist-packages" in words
    assert f"{home.covers}/folder /venv/lib/{version}/site-packages/repl_rl" in words
    assert f"{home.covers}/folder {own}/repl_rl" in words
    assert "numpy" not in words
