"""What `make release` builds and runs, but for the paths themselves: they install gigabytes."""

import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from installed import CHECKOUT
from release.__main__ import PATHS, build, differences, left_to_do, version

from repl_rl import __version__


def test_all_say_the_same_version() -> None:
    assert version() == __version__


def test_what_is_left_to_do_is_said_in_order() -> None:
    *before, last = left_to_do(version())
    assert last.startswith(f"git tag v{__version__} && ")
    is_unreleased = "(unreleased)" in (CHECKOUT / "CHANGELOG.md").read_text("utf-8").partition("\n- ")[0]
    assert [step for step in before if "CHANGELOG.md" in step] == before[:is_unreleased]


@pytest.mark.slow
def test_sdist_and_wheel_have_all_that_is_tracked(tmp_path: Path) -> None:
    sdist, wheel = build(tmp_path, "--no-isolation")
    assert differences(sdist, wheel) == []
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(other, "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, "" if name == "repl_rl/cli.py" else archive.read(name))
        changed.writestr("repl_rl/scratch.py", "")
    assert differences(sdist, other) == [
        "repl_rl/cli.py is not in the wheel as it is here",
        "repl_rl/scratch.py is in the wheel, and not tracked here",
    ]


@pytest.mark.parametrize("name", PATHS)
def test_a_path_is_a_script_that_installs_the_wheel(name: str) -> None:
    text = PATHS[name].read_text("utf-8")
    subprocess.run(["bash", "-n", str(PATHS[name])], check=True)
    assert text.startswith("# ")
    assert re.search(r'^pip install .*"\$(WHEEL|SDIST)', text, re.MULTILINE)
    assert "assert " in text


def test_pages_that_a_path_follows_are_there() -> None:
    for path in PATHS.values():
        for page in re.findall(r"docs/[\w/.-]*\w", path.read_text("utf-8").partition("\n")[0]):
            assert (CHECKOUT / page).exists(), page
