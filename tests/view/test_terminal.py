import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from repl_rl.trajectory import LineKind, SubCall, write_jsonl
from repl_rl.view import before_after_table, print_trajectory
from repl_rl.view.command import view
from repl_rl.view.words import duration, signed
from tests.view.conftest import SESSIONS, eval_row, failed_trajectory, make_trajectory, solved_trajectory


def console(width: int = 120, colour: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=colour, color_system="standard" if colour else None)


def written(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def shown(target: Console) -> list[str]:
    return [" ".join(row.split()) for row in written(target).splitlines() if row.strip()]


def test_a_trajectory_with_its_marks_and_worth() -> None:
    screen = console()
    print_trajectory(screen, failed_trajectory())
    assert shown(screen) == SESSIONS["failed in a terminal"]


def test_a_long_prompt_is_folded_around_its_middle() -> None:
    made, screen = failed_trajectory(), console()
    system = "".join(f"rule {number}\n" for number in range(40))
    print_trajectory(screen, replace(made, prompt=system + made.prompt))
    rows = shown(screen)
    assert [row for row in rows if "rule" in row][:4] == [f"¶ rule {number}" for number in range(4)]
    assert rows[5].startswith("¶ … ")
    assert "rows of the prompt" in rows[5]
    assert rows[-len(SESSIONS["failed in a terminal"]) + 1 :] == SESSIONS["failed in a terminal"][1:]
    unfolded = console()
    print_trajectory(unfolded, replace(made, prompt="".join(f"rule {number}\n" for number in range(9)) + made.prompt))
    assert sum("rule" in row for row in shown(unfolded)) == 9


def test_what_a_line_asked_follows_it_with_the_answers() -> None:
    made, screen = failed_trajectory(), console()
    calls = (
        SubCall("Count\x1b[2J", "4\n5", tokens=12),
        SubCall("why", "[no answer: used up]", error_name="calls"),
        *[SubCall("more", "yes", tokens=1)] * 20,
    )
    print_trajectory(screen, replace(made, lines=(replace(made.lines[0], subcalls=calls), made.lines[1])))
    rows = shown(screen)
    assert rows[3] == "› >>> math.gcd(12, 18) NameError -0.10 -0.75"
    assert "\x1b" not in rows[4]
    assert rows[4].startswith("? Count")
    assert rows[4].endswith("→ 4⏎5 12 tokens")
    assert rows[5] == "? why → [no answer: used up] no answer: calls"
    assert rows[6:25] == [*["? more → yes 1 token"] * 18, "? and 2 more questions"]
    assert rows[25] == "‹ Traceback (most recent call last):"


def test_print_shows_the_transcript_and_repr_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text wherever it is printed: no colours, and one width."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    trajectory, screen = failed_trajectory(), console(width=100)
    print_trajectory(screen, trajectory)
    assert str(trajectory) == "\n".join(row.rstrip() for row in written(screen).rstrip().split("\n"))
    assert repr(trajectory) == "<Trajectory of task 'gcd-heldout-12-18': 2 lines, stopped: answer>"
    assert "\x1b" not in str(make_trajectory("\x1b[2J", "\x1b[2J", [(" \x1b[2J\n", LineKind.COMMENT, None, "\x1b]0;")]))


def test_markup_and_escapes_in_a_trajectory_are_only_text() -> None:
    screen = console(colour=True)
    typed = [(" [red]x[/red]\x1b[2J\n", LineKind.EXCEPTION, "[bold]E\x1b]0;t\x07", "\udc80[/]\x1b[2J")]
    print_trajectory(screen, make_trajectory("[blink]", "[/oops]", typed, answer=("\x1b[2J",)))
    text = written(screen)
    text.encode("utf-8")
    for harmful in ("\x1b[2J", "\x1b]0", "\x07"):
        assert harmful not in text
    for kept in ("[red]x[/red]\\x1b[2J", "[blink]", "[/oops]", "\\udc80[/]"):
        assert kept in text


def test_the_table_counts_where_it_can() -> None:
    counts = {"binomial": 60, "gcd": 60, "modular_power": 60}
    before = {**eval_row(0, (0.2, 0.3, 0.45, 0.7)), "family_problems": counts}
    after = {**eval_row(40, (0.85, 0.95, 0.9, 1.0)), "family_problems": counts}
    screen = console()
    screen.print(before_after_table(before, after))
    rows = [row.replace("│ ", "").replace(" │", "").strip("│ ") for row in shown(screen)]
    assert "binomial 60 12 (20.0%; 12 to 32) 51 (85.0%; 74 to 92) +65 pt" in rows
    assert "product – 70.0% 100.0% +30 pt" in rows
    assert "all 240 99 (41.2%; 35 to 48) 222 (92.5%; 88 to 95) +51 pt" in rows


def test_numbers_and_times_in_words() -> None:
    assert [signed(value) for value in (None, 0.0, -0.0, 1.0, -0.126)] == ["–", "0", "0", "+1.00", "-0.13"]
    assert [duration(s) for s in (8.44, 192.0, 7500.0, math.inf)] == ["8.4 s", "3 min 12 s", "2 h 05 min", "–"]


def test_viewing_a_file_that_was_cut_off_prints_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_jsonl(path, [solved_trajectory(), solved_trajectory()])
    path.write_text(path.read_text()[:-30])
    screen = console(width=300)
    view(path, screen)
    assert shown(screen)[-2].startswith("note: x.jsonl: 1 line is left out (line 2: ")
    assert shown(screen)[-1] == "1 trajectories, 1 of 1 graded ones solved"
