"""Real kernels of other languages for slow tests: R's and PARI/GP's, where they are or can be installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

from repl_rl.kernel import KernelPool, Limits

LIMITS = Limits(
    line_s=90.0, grace_s=10.0, start_s=300.0, memory_mb=512, processes=32, file_mb=4, tmp_mb=8, output_bytes=10_000,
    read_mb=2,
)  # fmt: skip
"""For lines that end by themselves: a busy machine may take its time over them."""


@dataclass(frozen=True)
class RealKernel:
    """A kernelspec, and the sandbox profile that shows what it needs."""

    spec: str
    profile: str = "default"

    def pool(self, size: int = 2, limits: Limits = LIMITS) -> KernelPool:
        return KernelPool(size=size, limits=limits, backend=self.spec, sandbox="bwrap", profile=self.profile)


def r_kernel() -> RealKernel:
    """Skips where Debian's r-cran-irkernel, or IRkernel by other means, is not installed."""
    try:
        KernelSpecManager().get_kernel_spec("ir")
    except NoSuchKernel:
        pytest.skip("there is no kernelspec `ir`: install R's kernel (Debian: apt-get install r-cran-irkernel)")
    return RealKernel("ir")


def pari_kernel(folder: Path, setenv: Callable[[str, str], None]) -> RealKernel:
    """Builds pari-jupyter into `folder`; skips where that needs what is not there (Debian: gcc, libpari-dev)."""
    modules = folder / "modules"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(modules), "pari-jupyter"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        said = (built.stderr.strip().splitlines() or ["nothing"])[-1]
        pytest.skip(f"PARI/GP's kernel can't be built here (Debian: apt-get install gcc libpari-dev); pip says: {said}")
    spec = folder / "kernels" / "pari"
    spec.mkdir(parents=True)
    argv = ["python", "-m", "PARIKernel", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "PARI/GP", "language": "gp"}))
    setenv("JUPYTER_PATH", str(folder))
    profile = folder / "pari.toml"
    profile.write_text(f"python_path = [{str(modules)!r}]\n")
    return RealKernel("pari", str(profile))
