"""Real kernels of other languages for slow tests: R's and PARI/GP's, where they are or can be installed."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from repl_rl.kernel import KernelPool, Limits

LIMITS = Limits(
    line_s=90.0,
    grace_s=10.0,
    start_s=300.0,
    memory_mb=512,
    processes=32,
    file_mb=4,
    tmp_mb=8,
    output_bytes=10_000,
    read_mb=2,
)
"""For lines that end by themselves: a busy machine may take its time over them."""


@dataclass(frozen=True)
class RealKernel:
    """A kernelspec."""

    spec: str

    def pool(self, size: int = 2, limits: Limits = LIMITS) -> KernelPool:
        return KernelPool(size=size, limits=limits, backend=self.spec, sandbox="bwrap")


def is_installed(name: str) -> bool:
    return name in KernelSpecManager().find_kernel_specs()


def r_kernel() -> RealKernel:
    """Skips where Debian's r-cran-irkernel, or IRkernel by other means, is not installed."""
    if not is_installed("ir"):
        pytest.skip("there is no kernelspec `ir`: install R's kernel (Debian: apt-get install r-cran-irkernel)")
    return RealKernel("ir")


def pari_kernel(folder: Path, setenv: Callable[[str, str], None]) -> RealKernel:
    """The kernelspec `pari_jupyter`. Where it is not installed, it is built into `folder`, and JUPYTER_PATH names that.

    Skips where building needs what is not there (Debian: gcc, libpari-dev).
    """
    if is_installed("pari_jupyter"):
        return RealKernel("pari_jupyter")
    spec = folder / "kernels" / "pari_jupyter"
    modules = spec / "modules"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(modules), "pari-jupyter"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        said = (built.stderr.strip().splitlines() or ["nothing"])[-1]
        pytest.skip(f"PARI/GP's kernel can't be built here (Debian: apt-get install gcc libpari-dev); pip says: {said}")
    argv = ["python", "-m", "PARIKernel", "-f", "{connection_file}"]
    stanza = {"argv": argv, "display_name": "PARI/GP", "language": "gp", "env": {"PYTHONPATH": str(modules)}}
    (spec / "kernel.json").write_text(json.dumps(stanza))
    setenv("JUPYTER_PATH", str(folder))
    return RealKernel("pari_jupyter")
