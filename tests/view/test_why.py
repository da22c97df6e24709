"""Why an answer was right or wrong, and what a reward is made of: in files, terminal, notebooks, and for the page.

In a real browser: `browser/test_page_why.py`.
"""

import json
from pathlib import Path

from repl_rl.config import RewardsConfig
from repl_rl.rewards import RewardTable
from repl_rl.rollout import score
from repl_rl.tasks import grade
from repl_rl.trajectory import Task, Trajectory, read_jsonl, write_jsonl
from repl_rl.view.display import trajectory_html
from repl_rl.view.transcript import trajectory_text
from tests.view.conftest import failed_trajectory, indexed
from tests.view.fragments import Fragment

REFERENCE = r"\frac{12}{2}"
WHY = "answer read as 12, reference read as 6: not equal"
PARTS = [[{"source": "exceptions.NameError", "amount": -0.05, "earned": -0.5, "limits": [["caps", -0.05]]}], []]


def explained() -> Trajectory:
    """A session that answers 12, after a NameError that costs 0.5, with a cap of 0.05."""
    table = RewardTable(RewardsConfig(exceptions={"NameError": -0.5}, shaping={"caps": {"loss": 0.05}}))
    [scored] = score([Task("t", "?", REFERENCE)], [failed_trajectory()], grade, table)
    return scored.trajectory


def test_the_transcript_ends_with_the_reason() -> None:
    ends = [
        rf"stopped: answer  answer: 12  reference: {REFERENCE}  reward -0.05  2 lines, 6 tokens, 0.3 s",
        f"graded 0: {WHY}",
    ]
    assert trajectory_text(explained()).split("\n")[-2:] == ends
    assert " ".join(str(explained()).split()).endswith(" ".join(" ".join(ends).split()))


def test_a_notebook_shows_reference_and_reason() -> None:
    words = Fragment(trajectory_html(explained())).words
    assert f"answer 12 reference {REFERENCE} graded 0 why {WHY} reward -0.05" in words


def test_files_hold_it_and_those_without_it_are_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_jsonl(path, [explained()])
    assert list(read_jsonl(path)) == [explained()]
    record = json.loads(path.read_text())
    assert (record.pop("reference"), record.pop("grade_reason")) == (REFERENCE, WHY)
    assert [line.pop("reward_parts", []) for line in record["lines"]] == PARTS
    path.write_text(json.dumps(record))
    [before] = read_jsonl(path)
    assert (before.reference, before.grade_reason, before.lines[0].reward_parts) == (None, None, ())
    assert str(before).splitlines()[-1].startswith("stopped: answer  answer: 12  graded 0  reward -0.05")


def test_the_page_is_told(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", [explained()])
    api = indexed(tmp_path / "x.jsonl")
    told = api.trajectory(api.rows({})["rows"][0]["id"])
    assert (told["reference"], told["grade_reason"]) == (REFERENCE, WHY)
    assert [told["lines"][index].get("reward_parts", []) for index in "01"] == PARTS
