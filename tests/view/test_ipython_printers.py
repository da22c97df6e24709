"""What IPython makes of our objects: its own printers must not get in front of ours."""

from __future__ import annotations

from IPython.core.formatters import DisplayFormatter

from repl_rl.trajectory import Group
from tests.view.conftest import failed_trajectory, solved_trajectory


def test_a_group_prints_itself_though_ipython_has_a_printer_for_lists() -> None:
    group = Group([solved_trajectory(), failed_trajectory()])
    data, _ = DisplayFormatter().format(group)
    assert data == group._repr_mimebundle_()
    assert data["text/plain"].startswith("1 of 2 solved")


def test_a_trajectory_prints_itself() -> None:
    trajectory = solved_trajectory()
    data, _ = DisplayFormatter().format(trajectory)
    assert data == trajectory._repr_mimebundle_()
