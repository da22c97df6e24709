"""What a newcomer types in the first two hours, with the built wheel in an empty folder: by README and
docs/quickstart.md, then a problem file of one's own (docs/tasks.md) and several runs together (docs/runs.md).

Every command of the first two pages runs, in their order, but for the training of a real model. Only sizes change:
fewer steps and problems. The viewer's page, which would be served until Ctrl-C, is printed as a summary.
"""

import json
import shlex
from pathlib import Path

import pytest
from installed import run
from pages import ROOT, blocks, commands, heredocs

from repl_rl import read_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

README = (ROOT / "README.md").read_text(encoding="utf-8")
TASKS = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
SMALLER = ("--set", "train.steps=2", "--set", "eval.problems=8")


@pytest.fixture(scope="module")
def hour(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder after the hour, and what each command printed."""
    folder = tmp_path_factory.mktemp("hour")
    (folder / "my.yaml").write_text(heredocs(README)[0])
    lines = ["repl-rl doctor", "repl-rl train quickstart", *commands(README), *commands(QUICKSTART)]  # `make train`
    printed: dict[str, str] = {}
    for line in dict.fromkeys(lines):
        if "qwen-coder-0.5b" in line:  # it takes 40 minutes, a gigabyte of weights and packages that README names
            continue
        words = shlex.split(line.replace(".venv/bin/", ""))
        assert words[0] == "repl-rl", line
        printed[shlex.join(words)] = run(installed / "repl-rl", *shortened(words[1:]), cwd=folder, typed="\n")
    (own,) = [block for block in blocks(TASKS, "json") if block.count("\n") > 4]
    (folder / "problems.jsonl").write_text(own)
    (folder / "own.yaml").write_text(next(block for block in blocks(TASKS, "yaml") if "problems.jsonl" in block))
    for line in (
        "repl-rl train own.yaml --dry-run",
        "repl-rl play own.yaml --task 'What is 6 * 7?' --answer 42",
        "repl-rl train own.yaml",
        "repl-rl view runs/quickstart runs/thoughts --export both.html",
        "repl-rl view runs/quickstart runs/own-problems",
    ):
        typed = "submit_final_answer(6 * 7)\n" if "play" in line else ""
        printed[line] = run(installed / "repl-rl", *shortened(shlex.split(line)[1:]), cwd=folder, typed=typed)
    extended = "repl-rl train --resume runs/quickstart --set train.steps=3"
    printed[extended] = run(installed / "repl-rl", *shlex.split(extended)[1:], cwd=folder)
    for line in hindsight(folder):
        typed = "# another line\nsubmit_final_answer(6 * 7)\n" if "play" in line else ""
        printed[line] = run(installed / "repl-rl", *shlex.split(line)[1:], cwd=folder, typed=typed)
    return folder, printed


FARMED = "repl-rl rescore runs/quickstart --set rewards.kinds.expression=9 --set rewards.shaping.caps.gain=null"
MENDED = "repl-rl rescore runs/quickstart --set rewards.kinds.expression=9 --set rewards.shaping.caps.gain=0.3"


def hindsight(folder: Path) -> list[str]:
    """By docs/hindsight.md: a price that turns wrong over right, a cap that mends it, and the second line of the first
    session that has one, typed by hand, by the model, and valued."""
    file = Path("runs/quickstart/rollouts/step_00001.jsonl")
    sessions = list(read_jsonl(folder / file))
    number = next(index for index, session in enumerate(sessions) if len(session.lines) > 1)
    return [
        "repl-rl rescore runs/quickstart",
        f"{FARMED} --out rescored",
        MENDED,
        "repl-rl view rescored --export rescored.html",
        f"repl-rl play --from {file}#{number} --line 1 --out typed.jsonl",
        f"repl-rl rollout --from {file}#{number} --line 1 -n 4 --out other.jsonl",
        f"repl-rl value {file}#{number} -n 2 --out values.jsonl",
        "repl-rl view other.jsonl values.jsonl --export other.html",
    ]


def shortened(words: list[str]) -> list[str]:
    """The words of a command that does the same at a smaller size."""
    if words[0] == "train" and "--dry-run" not in words:
        return [*words, *SMALLER]
    if words[0] == "eval":
        return [*words, "--problems", "4"]
    if words[0] == "view" and not words[1].endswith(".jsonl") and "--export" not in words:
        return [*words, "--summary"]
    return words


def test_the_commands_that_the_pages_name_have_run(hour: tuple[Path, dict[str, str]]) -> None:
    _, printed = hour
    kinds = [line.split()[1] for line in printed]
    assert {"doctor", "train", "view", "rollout", "eval", "play", "rescore", "value"} == set(kinds)
    assert len(printed) >= 14


def test_they_leave_what_the_pages_promise(hour: tuple[Path, dict[str, str]]) -> None:
    folder, printed = hour
    for name, steps in (("quickstart", 3), ("thoughts", 2)):
        run_folder = folder / "runs" / name
        promised = "config.yaml metrics.jsonl rollouts eval checkpoints model report.html"
        assert [part for part in promised.split() if not (run_folder / part).exists()] == []
        rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, steps + 1))
        assert {row["step"] for row in rows if row["kind"] == "eval"} >= {0, steps}
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["own-problems", "quickstart", "thoughts"]
    assert (folder / "both.html").stat().st_size > 100_000
    assert "; over the first: " in printed["repl-rl view runs/quickstart runs/thoughts"]
    assert "42" in printed["repl-rl play own.yaml --task 'What is 6 * 7?' --answer 42"]
    assert len(list(read_jsonl(folder / "x.jsonl"))) == 4
    assert "jupyter console --existing" in "".join(text for line, text in printed.items() if "--attach" in line)


def test_what_is_printed_without_a_terminal_has_one_line_for_a_step(hour: tuple[Path, dict[str, str]]) -> None:
    _, printed = hour
    steps = [line for line in printed["repl-rl train my.yaml"].splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["1", "2"]
    assert all(line.endswith(" s") for line in steps)


def test_a_price_is_tried_on_what_was_recorded_and_another_line_is_typed(hour: tuple[Path, dict[str, str]]) -> None:
    folder, printed = hour
    assert "every session comes out as it was recorded" in printed["repl-rl rescore runs/quickstart"]
    farmed = next(text for line, text in printed.items() if line.startswith(FARMED))
    assert "a hole: " in farmed
    assert "no wrong session earns more than a right one of its group" in printed[MENDED]
    for command in ("play", "rollout --from"):
        text = next(text for line, text in printed.items() if line.startswith(f"repl-rl {command}") and "#" in line)
        assert "its first 1 line came out as recorded" in text
    recorded, typed = read_jsonl(folder / "typed.jsonl")
    assert typed.branch is not None
    assert [line.text for line in typed.lines] == ["# another line\n", "submit_final_answer(6 * 7)\n"]
    assert len(list(read_jsonl(folder / "other.jsonl"))) == 5
    first, *others = read_jsonl(folder / "values.jsonl")
    assert first == recorded
    assert len(others) >= 2
    assert (folder / "other.html").stat().st_size > 100_000
