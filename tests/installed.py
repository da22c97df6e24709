"""The wheel, and a virtual environment that holds it and nothing else of ours."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path, timeout_s: float = 600, typed: str = "") -> str:
    """Standard output of a command that has to succeed, in an environment that knows nothing of the checkout.

    `typed` is its standard input.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, input=typed, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """The wheel of the checkout, built in `folder`."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, CHECKOUT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def install(wheel: Path, venv: Path) -> Path:
    """The bin folder of a fresh venv with the wheel; dependencies are looked up in the outer one."""
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv)
    packages = next(venv.glob("lib/python3*/site-packages"))
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", venv / "bin" / "python"]
    run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=venv)
    return venv / "bin"
