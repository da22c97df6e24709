"""Attacks on what an own profile shows: changing it, and getting from it to what lies beside it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kernel.attacks.arena import BOTH, BWRAP, FROM_FORKS, GONE, OK, SECRET, Arena
from kernel.attacks.conftest import Arenas

from repl_rl.kernel import landlock
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

ATTACKS = yaml.safe_load(Path(__file__).with_name("mounts.yaml").read_text())
NAMES = (
    "data, modules = os.path.realpath('data'), os.path.dirname(__import__('shapes').__file__); "
    "file, beside = data + '/table.csv', {beside!r}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile with a module and data to show, and what must stay hidden beside them."""
    folder = tmp_path_factory.mktemp("profile")
    for shown in (folder / "modules", folder / "data"):
        shown.mkdir(mode=0o755)
    (folder / "modules" / "shapes.py").write_text("sides = 4\n")
    (folder / "data" / "table.csv").write_text("a,b\n")
    (folder / "data" / "way_out").symlink_to(folder / "secret")
    (folder / "data" / "way_up").symlink_to(folder)
    (folder / "secret").write_text(SECRET)
    mounts = 'mounts = {data = "data", table = "data/table.csv"}\n'
    (folder / "mine.toml").write_text(f'python_path = ["modules"]\n{mounts}')
    return folder


@pytest.fixture(scope="module")
def arenas(loop: BackgroundLoop, folder: Path) -> Iterator[Arenas]:
    kinds: tuple[SandboxKind, ...] = BWRAP if FROM_FORKS or landlock.problem() else BOTH
    opened = {kind: Arena(loop, kind, profile=str(folder / "mine.toml")) for kind in kinds}
    for arena in opened.values():
        arena.begin()

    def arena_of(kind: SandboxKind) -> Arena:
        if kind not in opened:
            pytest.skip(f"{landlock.problem() or 'sessions under sandlock can not be forked'}")
        return opened[kind]

    yield arena_of
    for arena in opened.values():
        arena.end(0)
        arena.close()


def assert_refused(arena: Arena, folder: Path, attacks: list[str]) -> None:
    """Each attack, all of them in one session."""
    named, *results = arena.attack(
        NAMES.format(beside=str(folder)), *(f"tried(lambda: {attack})" for attack in attacks)
    )
    assert named.status is OK
    done = {attack: result.output for attack, result in zip(attacks, results, strict=True)}
    assert {attack: output for attack, output in done.items() if not re.fullmatch(GONE, output.strip())} == {}


def state(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Of all that lies there: when it was changed, its mode, its size."""
    found = {path: path.lstat() for path in folder.rglob("*")}
    return {path: (one.st_mtime_ns, one.st_mode, one.st_size) for path, one in found.items()}


@pytest.mark.parametrize("kind", BOTH)
def test_what_is_shown_can_not_be_changed(kind: SandboxKind, arenas: Arenas, folder: Path) -> None:
    before = state(folder)
    assert_refused(arenas(kind), folder, ATTACKS["writes"])
    assert state(folder) == before
    [shown] = arenas(kind).fresh("open('data/table.csv').read() + open('table').read(), __import__('shapes').sides")
    assert shown.output == "('a,b\\na,b\\n', 4)\n"


@pytest.mark.parametrize("kind", BOTH)
def test_nothing_beside_it_becomes_visible(kind: SandboxKind, arenas: Arenas, folder: Path) -> None:
    assert_refused(arenas(kind), folder, ATTACKS["looks"])


def test_the_walls_of_bwrap_hold_mounts_and_modules_only(arenas: Arenas) -> None:
    mounts, modules = arenas("bwrap").attack("sorted(os.listdir('/mounts'))", "os.listdir('/modules')")
    assert (mounts.output, modules.output) == ("['data', 'table']\n", "['1']\n")


@pytest.mark.more
@pytest.mark.parametrize("kind", BOTH)
def test_a_link_is_the_session_s_own(kind: SandboxKind, arenas: Arenas) -> None:
    """Under Landlock it may remove it: the next session has one again."""
    arenas(kind).attack("tried(os.remove, 'data'); tried(os.symlink, '/', 'data')")
    assert arenas(kind).fresh("open('data/table.csv').read()")[0].output == "'a,b\\n'\n"
