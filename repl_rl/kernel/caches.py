"""Caches that libraries build in a home folder when they are first used, such as matplotlib's list of fonts.

Each session has a home of its own and would build them again. A profile's code (`Profile.caches`) builds them once on
this machine instead, in a sandbox, and each session has links to them.
"""

import hashlib
import logging
import subprocess
import tarfile
import tempfile
from pathlib import Path

from repl_rl.kernel.paths import kernels_folder, make_readable
from repl_rl.kernel.sandbox import Sandbox
from repl_rl.utils.folders import cache_home, made_once

_LOG_CHARS = 2000
_log = logging.getLogger(__name__)


def home_caches(sandbox: Sandbox, code: str) -> Path | None:
    """A folder with the files that `code` leaves in a home folder; None, with a warning, if that fails.

    It is made if it is not there yet, and again for other code, another Python and other packages.
    """
    if not code.strip():
        return None
    try:
        stamps: list[object] = [code, sandbox.python]
        for folder in sandbox.installation.packages:
            if folder.exists():
                stamps.append((str(folder), folder.stat().st_mtime_ns))
        key = hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
        return made_once(cache_home() / "homes" / key, lambda folder: _make(folder, sandbox, code))
    except (OSError, RuntimeError, subprocess.SubprocessError, tarfile.TarError) as error:  # such as: there is no home
        _log.warning("what libraries build at their first use could not be built once, so each session does: %s", error)
        return None


def _make(folder: Path, sandbox: Sandbox, code: str) -> None:
    with tempfile.TemporaryFile() as archive, tempfile.TemporaryFile() as output:
        record = {"code": code, "site_packages": sandbox.packages(), "archive": archive.fileno()}
        program = (kernels_folder() / "setup" / "home_caches.py").read_text(encoding="utf-8")
        argv = ["-s", "-S", "-P", "-c", program]
        process = sandbox.launch(argv, record, output=output.fileno(), descriptors=[archive.fileno()])
        try:
            status = process.wait(sandbox.limits.start_s)
        finally:
            process.kill()
            process.wait()
        if status != 0:
            output.seek(0)
            text = output.read().decode(errors="replace").strip()
            raise OSError(text[-_LOG_CHARS:] or f"exit status {status}")
        archive.seek(0)
        with tarfile.open(fileobj=archive) as members:
            members.extractall(folder, filter="data")  # the filter refuses paths outside of `folder`, and devices
    make_readable(folder)
