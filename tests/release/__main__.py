"""`make release`: build wheel and sdist, and try them as strangers would, each in an empty folder and an empty venv.

A stranger's path (`paths/NAME.sh`) is a script from `pip install` to a result, and fails if the result is another one.
Nothing is published: what is left to do is said at the end.

    python tests/release [--python PYTHON ... --] [NAME ...]
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path
from shutil import rmtree

import yaml

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
PATHS = {path.stem: path for path in sorted(Path(__file__).parent.glob("paths/*.sh"))}


def version() -> str:
    """The version, which three files have to agree on. Ends the program if they don't."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"]
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert heading is not None
    if not project == citation == heading[1]:
        sys.exit(f"pyproject.toml says {project}, CITATION.cff {citation}, and CHANGELOG.md {heading[1]}")
    return str(project)


def build(folder: Path, *options: str) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it. Ends the program if that fails."""
    command = [sys.executable, "-m", "build", *options, "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    [sdist] = folder.glob("*.tar.gz")
    [wheel] = folder.glob("*.whl")
    return sdist, wheel


def differences(sdist: Path, wheel: Path) -> list[str]:
    """Tracked files that the sdist lacks, files of the package that the wheel lacks or has otherwise, and files in the
    wheel that are not tracked."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tracked = [name for name in listed.split("\0") if name and not name.startswith(".ci/")]
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    found = [f"{name} is not in the sdist" for name in tracked if name not in packed]
    with zipfile.ZipFile(wheel) as archive:
        built = set(archive.namelist())
        expected = set()
        for name in tracked:
            top = name.partition("/")[0]
            if top in ("repl_rl", "kernels", "prompts"):
                inside = name if top == "repl_rl" else f"repl_rl/{name}"
                expected.add(inside)
                if inside not in built or archive.read(inside) != (ROOT / name).read_bytes():
                    found.append(f"{inside} is not in the wheel as it is here")
    for name in sorted(built - expected):
        if ".dist-info/" not in name:
            found.append(f"{name} is in the wheel, and not tracked here")
    return found


def left_to_do(number: str) -> list[str]:
    """What still stands between these files and a release, in order."""
    steps = []
    if f"## {number} (unreleased)" in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        steps.append(f"write the date in the place of (unreleased) in CHANGELOG.md, under {number}")
    status = ["git", "status", "--porcelain"]
    if subprocess.run(status, cwd=ROOT, check=True, capture_output=True, text=True).stdout:
        steps.append("commit what git status shows, and build again: the tag would be of something else")
    return [*steps, f"git tag v{number} && git push --tags && twine upload {DIST.name}/*"]


def walk(name: str, python: str, sdist: Path, wheel: Path) -> bool:
    """Whether a path ends well with this Python. What it prints is kept beside the wheel."""
    log = DIST / f"{name}-{Path(python).name}.log"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stranger-") as folder, open(log, "wb") as output:
        subprocess.run([python, "-m", "venv", f"{folder}/venv"], check=True)
        work = Path(folder, "work")
        work.mkdir()
        known = ("HOME", "LANG", "TMPDIR", "PIP_")
        environment = {key: value for key, value in os.environ.items() if key.startswith(known)}
        environment |= {
            "PATH": f"{folder}/venv/bin:{os.environ['PATH']}",
            "WHEEL": str(wheel),
            "SDIST": str(sdist),
            "CHECKOUT": str(ROOT),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        command = ["bash", "-euxo", "pipefail", str(PATHS[name])]
        code = subprocess.run(
            command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ).returncode
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    said = "ends well" if code == 0 else f"FAILED ({code})"
    print(f"{name} with {python} {said} after {minutes} min {seconds} s: {log.relative_to(ROOT)}", flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PATHS)} (default: all)")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters (default: this one)")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(PATHS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such path; there are {', '.join(PATHS)}")
    number = version()
    rmtree(DIST, ignore_errors=True)
    sdist, wheel = build(DIST)
    problems = differences(sdist, wheel)
    print(f"{sdist.name} and {wheel.name} are built", *problems, sep="\n", flush=True)
    pairs = [(name, python) for python in arguments.python for name in arguments.names or PATHS]
    outcomes = [walk(name, python, sdist, wheel) for name, python in pairs]
    if problems or not all(outcomes):
        return 1
    print("left to do:", *left_to_do(number), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
