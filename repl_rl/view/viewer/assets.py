"""The files of the page: what lies in `page/`, and plotly's script from its package. Nothing comes from the network."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from repl_rl.errors import DependencyError

PLOTLY = "plotly.js"
INDEX = "index.html"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


def page_folder() -> Path:
    return Path(str(files("repl_rl.view.viewer"))) / "page"


def asset(name: str) -> Path | None:
    """The file that the page calls `name`; None if it has none. A name that is a path is none."""
    if name == PLOTLY:
        return plotly_path()
    path = page_folder() / name
    return path if _NAME.fullmatch(name) and path.is_file() else None


def plotly_path() -> Path:
    """Plotly's script, found without importing plotly. Raises DependencyError if the package lacks it."""
    spec = find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    raise DependencyError("the script that draws the charts is missing; bring it with: pip install -I plotly")
