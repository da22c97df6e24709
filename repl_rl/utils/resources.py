"""Where the folders that travel with the package lie, in a checkout and in an installed wheel."""

from pathlib import Path

from repl_rl.errors import DependencyError

_PACKAGE = Path(__file__).resolve().parents[1]


def resource_folder(name: str) -> Path:
    """The folder `name` ("prompts", "configs", ...): inside the package in a wheel, beside it in a checkout.

    Raises DependencyError if it is in neither place, which means a broken installation.
    """
    for parent in (_PACKAGE, _PACKAGE.parent):
        if (parent / name).is_dir():
            return parent / name
    raise DependencyError(f"the folder {name!r} of repl_rl is missing from {_PACKAGE}; reinstall the package")
