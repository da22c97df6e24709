"""Training that ends by the clock, and training that has nothing to learn from."""

import io
import math
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from transformers import TrainerControl, TrainerState, TrainingArguments

from repl_rl.run import progress
from repl_rl.run.callbacks import StopEarly, TellOfPasses, WarnOnce, flat_groups, missing_trees
from repl_rl.run.progress import Progress

WARNING = (
    "note: up to step {0}, {2} steps in a row: nothing to learn from, as all rollouts of a problem had the same "
    "outcome, for all 2 problems of the step ({3} solved). Ways out: {1} problems (tasks), more rollouts of each "
    "(train.group_size), or a higher sampling.temperature; rewards for lines alone teach nothing about the answer\n"
)


@pytest.mark.parametrize(
    ("limit_s", "asked", "lost"),
    [(0.0, False, False), (math.inf, False, False), (math.inf, True, False), (math.inf, False, True)],
)
def test_training_ends_with_a_checkpoint_after_the_step_in_which_time_is_over_or_it_was_asked_to_or_its_folder_went(
    tmp_path: Path, limit_s: float, asked: bool, lost: bool
) -> None:
    arguments, state = TrainingArguments(output_dir=str(tmp_path), use_cpu=True), TrainerState()
    callback = StopEarly(limit_s, lambda: lost)
    callback.on_train_begin(arguments, state, TrainerControl())
    if asked:
        callback.request()
    control = callback.on_step_end(arguments, state, TrainerControl())
    ends = asked or lost or limit_s == 0
    assert (control.should_training_stop, control.should_save) == (ends, ends)
    assert (callback.is_over, callback.is_homeless) == (limit_s == 0, lost)


@pytest.mark.parametrize(
    ("steps", "flat", "solved", "warned"),
    [
        (9, [2, 2, 2, 2, 2, 2], 0.0, (3, "easier", 3, "0.0%")),
        (9, [1, 2, 2, 2, 1, 2], 1.0, (4, "harder", 3, "100.0%")),
        (2, [2, 2], 0.5, (2, "easier or harder", 2, "50.0%")),
        (9, [2, 2, 1, 2, 2, 1], 0.0, None),
    ],
)
def test_a_run_in_which_every_group_is_flat_is_warned_about_once_with_the_ways_out(
    steps: int, flat: list[int], solved: float, warned: tuple[int, str, int, str] | None
) -> None:
    file = io.StringIO()
    warning = WarnOnce(partial(flat_groups, groups=2), steps, Progress(Console(file=file)))
    for step, count in enumerate(flat, 1):
        warning.step({"step": step, "credit/groups_without_variance": float(count), "solve_rate": solved})
        warning.step({"step": step})
    assert file.getvalue() == ("" if warned is None else WARNING.format(*warned))


@pytest.mark.parametrize(
    ("shares", "warned"), [([0.9, 0.9, 0.9, 0.9], 3), ([0.9, 0.9, 0.4, 0.9], None), ([None] * 4, None)]
)
def test_trees_whose_branches_begin_at_the_prompt_are_told_about_once(
    shares: list[float | None], warned: int | None
) -> None:
    file = io.StringIO()
    warning = WarnOnce(missing_trees, 9, Progress(Console(file=file)))
    for step, share in enumerate(shares, 1):
        row = {"step": step, "lines_per_trajectory": 2.5} | ({} if share is None else {"branches/anew": share})
        warning.step(row)
    said = f"note: up to step {warned}, 3 steps in a row: 90% of the branches began at the prompt, and are no part of a"
    assert file.getvalue().startswith(said) if warned else not file.getvalue()
    assert file.getvalue().count("2.5 lines, so set branch.within to less") == bool(warned)


def test_a_step_is_one_line_however_narrow_the_console() -> None:
    file = io.StringIO()
    row = {"step": 12, "solve_rate": 0.5, "reward": 0.4, "lines_per_trajectory": 3.0, "error_rate": 0.25}
    Progress(Console(file=file, width=40)).step({**row, "tokens_per_s": 1234.5, "seconds": 9.0})
    assert file.getvalue() == (
        "step   12  solved  50.0%  reward +0.400  lines  3.0  errors 25.0%   1234 tok/s     9.0 s\n"
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_part_says_how_far_it_is(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    file = io.StringIO()
    shown = Progress(Console(file=file, force_terminal=is_terminal, width=100))
    with shown.steps(9), shown.part("sessions", 9) as one_more:
        for _ in range(4):
            one_more()
        if is_terminal:
            shown._bar.refresh()  # type: ignore[union-attr]
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    if is_terminal:
        assert re.search("sessions 4/9 ━+", said)
        return
    first, second, third, fourth = said.splitlines()
    assert [first, second] == ["  sessions: 1 of 9", "  sessions: 2 of 9"]
    assert re.fullmatch("  sessions: 3 of 9, about .* left", third)
    assert re.fullmatch("  sessions: 4 of 9, about .* left", fourth)


@pytest.mark.parametrize(("done", "of", "says"), [(2, 60, False), (3, 60, True), (49, 1000, False), (50, 1000, True)])
def test_the_time_left_is_said_once_enough_is_done(done: int, of: int, says: bool) -> None:
    """The first of many ends soonest, and would promise too much."""
    assert progress._says_much(done, of) is says


def test_passes_of_a_step_are_counted_after_the_first_which_waits_for_rollouts() -> None:
    file = io.StringIO()
    told = TellOfPasses(Progress(Console(file=file, force_terminal=True, width=100)))
    for passes in (1, 4):
        arguments = SimpleNamespace(gradient_accumulation_steps=passes)
        assert not file.getvalue()
        for _ in range(passes - 1):
            told.on_substep_end(arguments, None, None)  # type: ignore[arg-type]
        told.on_step_end(arguments, None, None)
    assert "further passes of the step" in file.getvalue()
    assert "2/3" in file.getvalue()
