"""`make test-newest`, but for what it downloads."""

import tomllib
from pathlib import Path

import pytest
from newest.__main__ import PACKAGES, Outcome, unmet_in
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def test_each_is_a_package_that_comes_with_ours_and_its_tests_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    held = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
    asked = {Requirement(text).name for text in [*project["dependencies"], *extras, *held]}
    for name, settings in PACKAGES.items():
        assert {name, settings.get("held", name)} <= asked, name
        assert all((ROOT / path).exists() for path in settings["tests"]), name


def package(folder: Path, name: str, *requires: str) -> None:
    info = folder / f"{name}-2.0.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 2.0", *(f"Requires-Dist: {text}" for text in requires)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


def test_what_a_newer_package_needs_newer_is_found_beside_it_or_in_the_environment(tmp_path: Path) -> None:
    needs = ["packaging>=1", "packaging>=99", "not-installed-here", "other==2", "other==3", "extra; extra == 'x'"]
    package(tmp_path, "one", *needs, "windows; sys_platform == 'win32'")
    package(tmp_path, "other")
    assert [str(requirement) for requirement in unmet_in(tmp_path)] == [
        "packaging>=99",
        "not-installed-here",
        "other==3",
    ]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ([], "one 2.0 (held: 1.0): 0 tests passed, 0 failed"),
        (["a", "b", "a"], "one 2.0 (held: 1.0): 0 tests passed, 3 failed\n    2 times: a\n    1 times: b"),
    ],
)
def test_failures_are_told_by_what_was_said(said: list[str], text: str) -> None:
    outcome = Outcome("one", "2.0", "1.0")
    outcome.failures.update(said)
    assert str(outcome) == text
    assert str(Outcome("one", "1.0", "1.0")) == "one 1.0 is what is held"
