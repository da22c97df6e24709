"""A sandbox profile of one's own: where it is found, what its keys do in sessions, and what is refused."""

import os
import re
import tempfile
from pathlib import Path
from string import Template

import pytest
import yaml
from kernel.conftest import LIMITS, in_one_session
from kernel.kernelspecs import STOCK

import repl_rl
from repl_rl.config import Config, load_config
from repl_rl.errors import ConfigError, SandboxError
from repl_rl.kernel import KernelPool, Limits, Profile, landlock
from repl_rl.kernel.jupyter.backend import KernelspecBackend
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.rollout.setup import limits_of
from repl_rl.run.folder import new_run
from repl_rl.run.resume import open_run

PACKAGE = Path(repl_rl.__file__).parent
REFUSED = yaml.safe_load(Path(__file__).with_name("profiles.yaml").read_text())
MINE = Path(__file__).with_name("mine.txt").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A profile `mine.toml`, and beside it what it shows."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "shapes.py").write_text("def area(width):\n    return 2 * width\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "table.csv").write_text("a,b\n")
    (tmp_path / "mine.toml").write_text(MINE)
    return tmp_path


async def output_of(pool: KernelPool, *cells: str) -> str:
    """Of all cells, typed into one session."""
    async with pool:
        return "".join(result.output for result in await in_one_session(pool, *cells))


@pytest.mark.parametrize(
    ("backend", "sandbox"),
    [("fork", "bwrap"), ("fork", "sandlock"), ("fork", "none"), ("repl_rl", "bwrap"), (STOCK, "none")],
)
async def test_sessions_import_own_modules_and_read_data(backend: str, sandbox: SandboxKind, folder: Path) -> None:
    if sandbox == "sandlock" and (problem := landlock.problem()):
        pytest.skip(problem)
    pool = KernelPool(1, LIMITS, backend=backend, sandbox=sandbox, profile=str(folder / "mine.toml"))
    shown = await output_of(
        pool,
        "import sys; print('shapes' in sys.modules)",
        "import shapes; print(shapes.area(4))",
        "print(open('data/table.csv').read() + open('table').read())",
        "import os; print(os.environ.get('MODE'), sorted(os.listdir()))",
    )
    is_preloaded, mode = backend == "fork", "measured" if backend != STOCK else None
    there = ["data", "table"] if backend != "fork" else [".cache", "data", "table"]
    assert shown == f"{is_preloaded}\n8\na,b\na,b\n\n{mode} {there}\n"


def test_keys_that_are_left_out_are_the_default_s(folder: Path) -> None:
    default, mine = Profile.load(), Profile.load(str(folder / "mine.toml"))
    assert mine.environment == {**default.environment, "MODE": "measured"}
    assert (mine.read_only, mine.hostname) == (default.read_only, default.hostname)
    assert (mine.preload, mine.warm_up) == (("shapes",), "")
    assert mine.limits == Limits(line_s=3.0)
    (folder / "mine.toml").write_text("")
    mine = Profile.load(str(folder / "mine.toml"))
    assert (mine.preload, mine.warm_up) == (default.preload, default.warm_up)


def test_a_path_is_looked_up_in_the_working_folder_then_beside_the_yaml(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one.yaml", "other.yaml"):
        (folder / name).write_text(f"kernel: {{profile: {'./' if name == 'one.yaml' else ''}mine.toml}}")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    for name in ("one.yaml", "other.yaml"):
        kernel = load_config(str(folder / name)).kernel
        assert kernel.profile == str(folder / "mine.toml")
        assert limits_of(kernel).line_s == 3.0
    (elsewhere / "mine.toml").write_text("limits = {line_s = 7}")
    assert limits_of(load_config(str(folder / "one.yaml")).kernel).line_s == 7


def test_a_run_with_a_relative_path_resumes_from_anywhere(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    config = load_config("quickstart", ("kernel.profile=./mine.toml",))
    run = new_run(config, folder / "runs")
    assert open_run(run.path, load_config("quickstart", ("kernel.profile=mine.toml",)))[1] == config
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    resumed: Config = open_run(run.path, None)[1]
    assert limits_of(resumed.kernel).line_s == 3.0


@pytest.mark.parametrize("case", REFUSED["not_shown"], ids=lambda case: case["text"])
def test_what_can_not_be_shown_is_refused(case: dict[str, str], folder: Path) -> None:
    known = {"folder": folder, "package": PACKAGE, "checkout": PACKAGE.parent}
    text, message = (Template(case[name]).substitute(known) for name in ("text", "message"))
    (folder / "mine.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        KernelPool(profile=str(folder / "mine.toml"))
    assert str(caught.value) == f"sandbox profile {folder}/mine.toml: {message}"


def test_the_folder_of_the_sessions_own_files_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder / "modules" / "temporary"))
    with pytest.raises(ConfigError) as caught:
        Profile.load(str(folder / "mine.toml"))
    assert str(caught.value) == (
        f"sandbox profile {folder}/mine.toml: python_path names 'modules', where the sessions' own files lie; "
        "name a folder in it"
    )


@pytest.mark.parametrize("name", ["../data", "/data", ".", "a b", ""])
def test_a_mount_is_found_by_one_plain_name(name: str, folder: Path) -> None:
    (folder / "mine.toml").write_text(f'mounts = {{"{name}" = "data"}}')
    message = (
        f"{name!r} is not a name for a mount; take letters, digits, '_', '-' and '.': sessions find it under that name "
        "in their working folder"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        Profile.load(str(folder / "mine.toml"))


@pytest.mark.parametrize("case", REFUSED["broken"], ids=lambda case: case["text"])
def test_a_profile_that_is_not_one_is_refused(case: dict[str, str], folder: Path) -> None:
    (folder / "mine.toml").write_text(case["text"])
    with pytest.raises(ConfigError) as caught:
        Profile.load(str(folder / "mine.toml"))
    assert str(caught.value) == f"sandbox profile {folder}/mine.toml{case['message']}"


@pytest.mark.skipif(os.geteuid() != 0, reason="sessions of an ordinary user may read what this user may")
async def test_what_is_closed_to_the_sessions_users_is_refused(folder: Path) -> None:
    (folder / "data").chmod(0o700)
    with pytest.raises(SandboxError) as caught:
        await output_of(KernelPool(1, sandbox="bwrap", profile=str(folder / "mine.toml")))
    assert str(caught.value) == (
        f"{folder}/data can't be read in sessions, which run as users of their own; "
        f"let all users read it (`chmod -R a+rX {folder}/data`)"
    )


async def test_a_profile_s_library_path_comes_after_ours(folder: Path) -> None:
    (folder / "mine.toml").write_text("preload = []\nenvironment = {LD_LIBRARY_PATH = '/usr/lib/mine'}")
    pool = KernelPool(1, LIMITS, sandbox="bwrap", profile=str(folder / "mine.toml"))
    shown = await output_of(pool, "import os; os.environ['LD_LIBRARY_PATH']")
    assert shown == "'/python/lib:/usr/lib/mine'\n"


@pytest.mark.skipif(not os.access("/srv", os.W_OK), reason="a folder outside of /tmp has to be made")
async def test_further_system_paths_are_there_also_by_a_link(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/srv") as name:
        Path(name).chmod(0o755)
        (Path(name) / "real").mkdir()
        (Path(name) / "real" / "file").write_text("there")
        (Path(name) / "link").symlink_to(f"{name}/real")
        (folder / "mine.toml").write_text(f"preload = []\nalso_read_only = ['{name}/link']")
        profile = str(folder / "mine.toml")
        look = f"import os; print(open('{name}/link/file').read(), os.listdir('{name}'))"
        assert await output_of(KernelPool(1, LIMITS, sandbox="bwrap", profile=profile), look) == "there ['link']\n"
        if os.geteuid() == 0:
            (Path(name) / "real").chmod(0o700)
            with pytest.raises(SandboxError, match="real can't be read in sessions"):
                await output_of(KernelPool(1, LIMITS, sandbox="bwrap", profile=profile))


async def test_what_the_session_s_own_tmp_covers_is_refused(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        (folder / "mine.toml").write_text(f"also_read_only = ['{file.name}']")
        pool = KernelPool(1, LIMITS, sandbox="bwrap", profile=str(folder / "mine.toml"))
        with pytest.raises(SandboxError, match=f"{file.name} where it is, and sessions have a /tmp of their own"):
            await output_of(pool)


async def test_kernels_that_could_not_find_what_is_shown_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = Profile.load(str(folder / "mine.toml"))
    with pytest.raises(ConfigError) as caught:
        await KernelspecBackend("repl_rl", LIMITS, "none", profile=profile).open(4000)
    assert str(caught.value) == (
        f"sandbox profile {folder}/mine.toml has mounts, and without a sandbox kernels of 'repl_rl' have no folder of "
        "their own to find them in; take `kernel.backend: fork`"
    )
    monkeypatch.setattr("repl_rl.kernel.jupyter.backend._LOCAL", "another-provisioner")
    with pytest.raises(ConfigError) as caught:
        await KernelspecBackend(STOCK, LIMITS, "none", profile=profile).open(4000)
    assert str(caught.value) == (
        f"sandbox profile {folder}/mine.toml has mounts or python_path, and kernels of '{STOCK}' may run on another "
        "machine, where these folders are not; take another profile"
    )
