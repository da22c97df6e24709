"""Why an answer was right or wrong: how each side was read, in a sentence, and that no sentence changes a verdict."""

from pathlib import Path

import pytest
import yaml

from repl_rl.tasks import Verdict, judge_many
from repl_rl.tasks.grading import EQUAL
from repl_rl.trajectory import Task
from repl_rl.utils.confined import Call, Confined

CASES = yaml.safe_load(Path(__file__).with_name("reasons.yaml").read_text(encoding="utf-8"))


def test_a_verdict_says_how_both_sides_were_read() -> None:
    """Asked once more, it says the same: it is remembered."""
    tasks = [
        Task("t", "?", case["reference"], case.get("family", ""), case.get("metadata", {})) for case in CASES.values()
    ]
    answers = [case["answer"] for case in CASES.values()]
    expected = {why: Verdict(float(case["right"]), why) for why, case in CASES.items()}
    for _ in range(2):
        assert dict(zip(CASES, judge_many(tasks, answers), strict=True)) == expected


TOLD = """
import os
class Told:
    def __init__(self, verdict): self.verdict = verdict
    def __bool__(self): return self.verdict
    @property
    def reason(self): return {reason}
"""


@pytest.mark.more
@pytest.mark.parametrize("reason", ["os._exit(1)", "os.abort()", "1 / 0", "7", "bytearray(3 << 30)", "'x' * 5000"])
def test_a_reason_that_goes_wrong_costs_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    (tmp_path / "telling.py").write_text(TOLD.replace("{reason}", reason))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checker = Confined()
    told, right = ("telling:Told", [True]), (EQUAL, ["x+1", ["1 + x"]])
    calls: list[Call] = [right, told, ("telling:Told", [False]), right, told, told, right]
    found = checker.ask(calls)
    checker.close()
    assert [verdict for verdict, _ in found] == [True, True, False, True, True, True, True]
    assert found[-1] == (True, "answer read as x + 1, reference read as x + 1: equal")


@pytest.mark.slow
def test_so_does_one_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_a_reason_that_goes_wrong_costs_no_verdict(tmp_path, monkeypatch, "next(n for n in iter(int, 1))")
