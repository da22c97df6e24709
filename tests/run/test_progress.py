"""A training step is one line, however narrow the console."""

from __future__ import annotations

import io

from rich.console import Console

from repl_rl.run.progress import Progress


def test_a_step_is_one_line_where_there_is_no_terminal() -> None:
    file = io.StringIO()
    row = {
        "step": 12,
        "solve_rate": 0.5,
        "reward": 0.4,
        "lines_per_trajectory": 3.0,
        "error_rate": 0.25,
        "seconds": 9.0,
    }
    Progress(Console(file=file, width=40)).step({**row, "tokens_per_s": 1234.5, "seconds": 9.0})
    assert file.getvalue() == (
        "step   12  solved  50.0%  reward +0.400  lines  3.0  errors 25.0%   1234 tok/s     9.0 s\n"
    )
