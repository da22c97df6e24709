"""matplotlib's backend in sessions: it keeps what `show` shows, as PNG files, and closes the figures that were shown.

MPLBACKEND (kernels/profiles/default.toml) names this module, and matplotlib asks it for its canvas as the first figure
is made. Nothing of matplotlib is imported before. `take` hands out the files since it was last called, up to 8 and
2 MiB; the host checks them (repl_rl/kernel/results.py).

Not covered: figures that are never shown, and backends that a session chooses itself.
"""

from __future__ import annotations

import base64
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST, _MOST_BYTES = 8, 2 << 20
_kept = []  # type: list[bytes]


def take() -> list[str]:
    """The files that were kept since the last call, each as base64."""
    files = [base64.b64encode(file).decode() for file in _kept]
    _kept.clear()
    return files


def _keep(figure: Any) -> None:
    import io
    import warnings

    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # a warning would name this file, as if the session had written it
        figure.savefig(file, format="png")
    if len(_kept) < _MOST and sum(map(len, _kept)) + file.tell() <= _MOST_BYTES:
        _kept.append(file.getvalue())


def __getattr__(name: str) -> Any:
    """The canvas, made as it is asked for: `FigureCanvas` and its manager."""
    if name != "FigureCanvas":
        raise AttributeError(name)
    from matplotlib._pylab_helpers import Gcf
    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class FigureManager(FigureManagerBase):
        def show(self) -> None:
            _keep(self.canvas.figure)

        @classmethod
        def pyplot_show(cls, *, block: bool | None = None) -> None:
            """As if each window had been looked at and closed."""
            try:
                for manager in Gcf.get_all_fig_managers():
                    manager.show()
            finally:  # a figure that can't be drawn would come up again in each later `show`
                Gcf.destroy_all()

    class FigureCanvas(FigureCanvasAgg):  # type: ignore[misc]  # untyped
        manager_class = FigureManager

    setattr(sys.modules[__name__], name, FigureCanvas)
    return FigureCanvas
