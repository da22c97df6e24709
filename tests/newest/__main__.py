"""`make test-newest`: the newest version of each package that we build on, tried beside the versions that are held.

One package at a time, so that what breaks has one cause: its newest version is installed into .venv/newest/NAME, with
newer versions of what it needs, and the tests that use it (`packages.yaml`) run with that folder before the
environment. Says which version it was and what failed, and ends with 1 if anything did.

    python tests/newest [NAME ...]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv" / "newest"
PACKAGES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("packages.yaml").read_text("utf-8"))
HELD = {"torch"}
"""Where a package wants another version of it, that is said: it takes gigabytes, and vLLM wants one version exactly."""
MOST_CHARS = 160


@dataclass
class Outcome:
    """What came of a package."""

    name: str
    newest: str
    here: str
    wants: list[str] = field(default_factory=list)
    """Of what is held, in other versions."""
    passed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """By what was said."""

    def __str__(self) -> str:
        text = f"{self.name} {self.newest}"
        if self.newest == self.here:
            return f"{text} is what is held"
        text += f" (held: {self.here}): {self.passed} tests passed, {self.failures.total()} failed"
        if self.wants:
            text += f"; it wants {', '.join(self.wants)}"
        return "\n    ".join([text, *(f"{count} times: {said}" for said, count in self.failures.most_common())])


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"pip {' '.join(arguments)} failed")
    return done.stdout


def newest_of(name: str) -> str:
    """The newest version that pip finds for this Python."""
    report = pip("install", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", name)
    found: str = json.loads(report)["install"][0]["metadata"]["version"]
    return found


def install(folder: Path, name: str, is_alone: bool) -> list[str]:
    """Install a package's newest version, and newer ones of what it needs. With `is_alone`, it takes what is here.
    Returns what it wants of what is held."""
    shutil.rmtree(folder, ignore_errors=True)
    pip("install", "--no-deps", "--target", str(folder), name)
    wants: list[str] = []
    asked: set[str] = set()
    while unmet := [requirement for requirement in unmet_in(folder) if str(requirement) not in asked]:
        for requirement in unmet:
            asked.add(str(requirement))
            if requirement.name in HELD:
                wants.append(f"{requirement.name}{requirement.specifier}, held is {version(requirement.name)}")
            elif not is_alone:
                pip("install", "--no-deps", "--upgrade", "--target", str(folder), str(requirement))
    return wants


def installed(folder: Path) -> dict[str, Distribution]:
    """All packages by name: those in the folder are found before those of the environment."""
    found: dict[str, Distribution] = {}
    for distribution in distributions(path=[str(folder), *sys.path]):
        found.setdefault(canonicalize_name(distribution.name), distribution)
    return found


def unmet_in(folder: Path) -> Iterator[Requirement]:
    """What packages in the folder need in another version than there is, or need and do not have."""
    everything = installed(folder)
    for distribution in distributions(path=[str(folder)]):
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                has = everything.get(canonicalize_name(requirement.name))
                if has is None or Version(has.version) not in requirement.specifier:
                    yield requirement


def tried(name: str, settings: dict[str, Any]) -> Outcome:
    held = version(settings.get("held", name))
    outcome = Outcome(name, newest_of(name), held)
    if outcome.newest == held:
        return outcome
    folder = FOLDER / name
    outcome.wants = install(folder, name, settings.get("alone", False))
    report = FOLDER / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not slow", f"--junit-xml={report}"]
    command += [option for text in settings.get("ignored", ()) for option in ("-W", f"ignore:{text}")]
    if "leaves_out" in settings:
        command += ["-k", f"not ({' or '.join(settings['leaves_out'])})"]
    environment = os.environ | settings.get("environment", {}) | {"PYTHONPATH": str(folder)}
    subprocess.run([*command, *settings["tests"]], cwd=ROOT, env=environment, check=False)
    if not report.exists():
        outcome.failures["pytest did not get to an end"] += 1
        return outcome
    for case in ElementTree.parse(report).iter("testcase"):
        problem = case.find("failure")
        if problem is None:
            problem = case.find("error")
        if problem is not None:
            outcome.failures[problem.get("message", "").partition("\n")[0][:MOST_CHARS]] += 1
        elif case.find("skipped") is None:
            outcome.passed += 1
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PACKAGES)} (default: all)")
    names = parser.parse_args().names or list(PACKAGES)
    unknown = set(names) - set(PACKAGES)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not in packages.yaml, which has {', '.join(PACKAGES)}")
    outcomes = [tried(name, PACKAGES[name]) for name in names]
    print("", *outcomes, sep="\n")
    return int(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
