"""`repl-rl replay`, as a user calls it."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from scripted import ScriptedEngine, rollout_of
from view.conftest import solved_trajectory
from vocabularies import nano

from repl_rl.errors import RunError
from repl_rl.kernel.limits import Limits
from repl_rl.trajectory import RecordedCell, StopReason, Task, Trajectory, read_jsonl, write_jsonl
from repl_rl.utils.threads import BackgroundLoop
from repl_rl.view.replay.notebooks import read_notebooks

Said = Callable[..., str]
GUIDE = (Path(__file__).parents[3] / "docs" / "dialects.md").read_text(encoding="utf-8")


def wrong() -> Trajectory:
    """Its record says 7 where the session says 6."""
    good = solved_trajectory("wrong/<b>")
    line = replace(good.lines[5], output="7\n>>>", cells=(RecordedCell("r", "7\n"),))
    return replace(good, lines=(*good.lines[:5], line, good.lines[6]))


def test_a_file_with_a_broken_line(tmp_path: Path, said: Said) -> None:
    """What can be read is replayed, exported and written down; the rest is a note."""
    path, notebooks, figures = tmp_path / "some.jsonl", tmp_path / "notebooks", tmp_path / "new" / "figures.json"
    write_jsonl(path, [solved_trajectory(), wrong()])
    path.write_text(path.read_text() + '{"task_id": "cut')
    shown = said("replay", str(path), "--notebooks", str(notebooks), "--json", str(figures), code=1)
    assert "note: some.jsonl: 1 line is left out (line 3: " in shown
    assert "2 notebooks, 8 cells: 1 equal, 1 differ\n" in shown
    assert "1 with an unexplained difference, 0 that could not be replayed" in shown
    names = sorted(child.name for child in notebooks.iterdir())
    assert [name.endswith(f"-some-0000{n}.ipynb") for n, name in enumerate(names)] == [True, True]
    nbformat.validate(nbformat.read(notebooks / names[0], 4))
    first, second = json.loads(figures.read_text())
    assert (first["is_equal"], first["cells"], first["task_id"]) == (True, 4, "gcd-heldout-12-18")
    [difference] = second["differences"]
    assert (difference["source"], difference["cause"], difference["lines"]) == ("r", "other", [5])
    assert (difference["expected"]["text"], difference["got"]["text"]) == ("7\n", "6\n")
    assert "1 notebook, 4 cells: 1 equal, 0 differ" in said("replay", str(notebooks / names[0]))


def test_a_run_folder_says_dialect_and_limits(tmp_path: Path) -> None:
    for folder in (tmp_path / "run" / "rollouts", tmp_path / "alone"):
        write_jsonl(folder / "step_00001.jsonl", [solved_trajectory(), solved_trajectory()])
    kernel = {"line_s": 2.5, "grace_s": 0.5, "memory_mb": 300, "size": 64}
    (tmp_path / "run" / "config.yaml").write_text(json.dumps({"dialect": {"name": "ipython"}, "kernel": kernel}))
    paths = [tmp_path / "run" / "rollouts" / "step_00001.jsonl", tmp_path / "alone" / "step_00001.jsonl"]
    sources, notes = read_notebooks(paths, first=1)
    assert notes == []
    assert [source.notebook.metadata.repl_rl.dialect for source in sources] == ["ipython", "python"]
    assert [source.limits for source in sources] == [Limits(line_s=2.5, grace_s=0.5, memory_mb=300), Limits()]
    assert [source.name for source in sources] == ["rollouts-step_00001-00000", "alone-step_00001-00000"]
    [told, _] = read_notebooks(paths, first=1, dialect="fenced")[0]
    assert told.notebook.metadata.repl_rl.dialect == "fenced"


def test_a_strangers_limits_are_not_above_ours(tmp_path: Path) -> None:
    path = tmp_path / "run" / "rollouts" / "step_00001.jsonl"
    write_jsonl(path, [solved_trajectory()])
    kernel = {"line_s": 1e9, "line_wall_s": 2e9, "grace_s": 0.5, "memory_mb": 1_000_000}
    (tmp_path / "run" / "config.yaml").write_text(json.dumps({"kernel": kernel}))
    [source], notes = read_notebooks([path])
    assert source.limits == Limits(line_wall_s=25.0, grace_s=0.5)
    assert notes == [
        "step_00001.jsonl: kernel.line_s of its run is 1e+09; it gets 5 unless you trust it (--trust)",
        "step_00001.jsonl: kernel.line_wall_s of its run is 2e+09; it gets 25 unless you trust it (--trust)",
        "step_00001.jsonl: kernel.memory_mb of its run is 1e+06; it gets 512 unless you trust it (--trust)",
    ]
    [source], notes = read_notebooks([path], trust=True)
    assert (source.limits, notes) == (Limits(line_s=1e9, line_wall_s=2e9, grace_s=0.5, memory_mb=1_000_000), [])


@pytest.mark.parametrize("config", ["dialect: 3\nkernel: 4\n", "- a list", "{", "kernel: {line_s: -1}", ""])
def test_a_config_that_says_nothing_usable_and_void_rollouts_are_left_out(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.yaml").write_text(config)
    void = replace(solved_trajectory(), stop_reason=StopReason.ABORTED, error="gone")
    write_jsonl(tmp_path / "eval" / "x.jsonl", [void, solved_trajectory()])
    [source], _ = read_notebooks([tmp_path / "eval" / "x.jsonl"])
    assert source.name == "eval-x-00001"
    assert (source.limits, source.notebook.metadata.repl_rl.dialect) == (Limits(), "python")


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    for name, text, message in (
        ("foreign.ipynb", nbformat.writes(nbformat.v4.new_notebook()), "is not an exported rollout"),
        ("broken.ipynb", "[]", "can't be read as a notebook"),
        ("unreadable.jsonl", "no\n", "holds no trajectory that can be read"),
        ("empty.jsonl", "", "nothing to replay: no session that ran in .*empty.jsonl"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(RunError, match=message):
            read_notebooks([tmp_path / name])
    with pytest.raises(RunError, match="nothing to replay at"):
        read_notebooks([tmp_path / "nowhere.jsonl"])


@pytest.mark.more
def test_a_dialect_of_ones_own_travels_with_the_rollout(
    tmp_path: Path, kernel_pools: Any, loop: BackgroundLoop, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """Outside its run folder too: with the module at hand it is read as it was written, without it nothing runs."""
    home, path = tmp_path / "home", tmp_path / "elsewhere" / "some.jsonl"
    home.mkdir()
    (home / "own_calculator.py").write_text(re.findall(r"^```python\n(.*?)^```$", GUIDE, re.M | re.S)[-1])
    monkeypatch.setattr(sys, "path", [str(home), *sys.path])
    typed = ["6 * 7\n", "7 / 0\n", "submit_final_answer(42)\n"]
    pool = kernel_pools(Limits(line_s=60))
    rollout = rollout_of(ScriptedEngine(nano(), typed), pool, dialect="own_calculator:Calculator")
    write_jsonl(path, loop.run(rollout.many([Task("t", "What is 6 * 7?", "42")])))
    [trajectory] = read_jsonl(path)
    assert (trajectory.dialect, trajectory.answer) == ("own_calculator:Calculator", ("42",))
    assert "1 notebook, 3 cells: 1 equal, 0 differ" in said("replay", str(path))
    monkeypatch.delitem(sys.modules, "own_calculator")
    assert said("replay", str(path), code=2) == (  # it may be a stranger's
        "repl-rl: task 't' was sampled in the dialect 'own_calculator:Calculator', which is code; what a record names "
        "is not imported unless you trust it (--trust, trust=True). Or name the dialect to read it with (--dialect, "
        "dialect=)\n"
    )
    assert "own_calculator" not in sys.modules
    assert "1 notebook, 3 cells: 1 equal, 0 differ" in said("replay", "--trust", str(path))
    monkeypatch.delitem(sys.modules, "own_calculator")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(home)])
    assert "dialect: own_calculator:Calculator" in said("view", str(path), "--summary")
    message = said("replay", str(path), "--trust", code=2)
    assert re.sub(r"looked in .+ and the installed packages", "looked in FOLDERS", message) == (
        "repl-rl: task 't' was sampled in the dialect 'own_calculator:Calculator', which can't be used here: "
        "dialect.name: 'own_calculator:Calculator' can't be imported (No module named 'own_calculator'): looked in "
        "FOLDERS. Run this where it can be imported (PYTHONPATH), or name the dialect to read it with (--dialect, "
        "dialect=)\n"
    )
    assert read_notebooks([path], dialect="python")[0][0].notebook.metadata.repl_rl.dialect == "python"
