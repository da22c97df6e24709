"""Where the packages of `verifiers.txt` and `verl.txt` lie, folders that are on no path; and a machine that fails."""

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from repl_rl.integrations.shared import close_shared_kernels

VERIFIERS = Path(__file__).parents[2] / ".venv" / "verifiers"
VERL = VERIFIERS.with_name("verl")


@pytest.fixture(scope="module")
def verifiers_path() -> Iterator[Path]:
    """`import verifiers` works while this is in use."""
    assert (VERIFIERS / "verifiers").is_dir(), f"{VERIFIERS} is missing; `make .venv/verifiers/.installed` brings it"
    sys.path.append(str(VERIFIERS))
    yield VERIFIERS
    sys.path.remove(str(VERIFIERS))
    close_shared_kernels()


@pytest.fixture(scope="module")
def verl_path() -> Iterator[Path]:
    """`import verl` works while this is in use, and has registered our estimators."""
    assert (VERL / "verl").is_dir(), f"{VERL} is missing; `make .venv/verl/.installed` brings it"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
        patch.setattr(sys, "path", [*sys.path, str(VERL)])
        patch.setenv("VERL_USE_EXTERNAL_MODULES", "repl_rl.integrations.verl")
        importlib.import_module("verl.trainer.ppo.ray_trainer")  # which warns of engines that are not installed
        yield VERL


def kill_the_server(sandbox: int) -> None:
    """What all kernels were forked from, and wait for the end of its sandbox, whose outer process has this id."""
    family = psutil.Process(sandbox).children(recursive=True)
    server = next(process for process in family if any("launch.py" in part for part in process.cmdline()))
    server.kill()
    gone, alive = psutil.wait_procs(family, timeout=600)
    assert (server in gone, alive) == (True, [])
