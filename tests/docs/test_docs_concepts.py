"""The worked example of docs/concepts.md is the trajectory beside it, and the still in the README is drawn from it."""

import re
import runpy

import pytest
from credit.groups import Typed, of_lines
from pages import ROOT

from repl_rl.config import CreditConfig
from repl_rl.credit import line_advantages
from repl_rl.trajectory import Trajectory, read_jsonl

IMAGES = ROOT / "docs" / "images"
PAGE = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")


@pytest.fixture
def trajectory() -> Trajectory:
    [only] = read_jsonl(IMAGES / "rollout.jsonl")
    return only


def test_the_still_is_what_its_script_draws_and_fetches_nothing() -> None:
    svg = (IMAGES / "rollout.svg").read_text(encoding="utf-8")
    assert svg == runpy.run_path(str(IMAGES / "rollout.py"))["still"](), "python docs/images/rollout.py"
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", svg)
    assert "@font-face" not in svg
    assert "NameError" in svg


def test_the_table_of_lines_and_the_counts(trajectory: Trajectory) -> None:
    rows = re.findall(r"^\| (\d) \| (\d+) to (\d+) \| `([^`]+)` \| `(\w+)`", PAGE, re.MULTILINE)
    told = [(int(first), int(last) + 1, f" {text}\n", kind) for _, first, last, text, kind in rows]
    assert told == [(line.start, line.end, line.text, str(line.kind)) for line in trajectory.lines]
    assert "prompt, 382 tokens," in PAGE
    assert "What follows is 77 tokens, of which the model typed 40" in PAGE
    counts = len(trajectory.prompt_ids), len(trajectory.completion_ids), trajectory.sampled_tokens
    assert counts == (382, 77, 40)


def test_the_advantages_are_those_of_the_formula(trajectory: Trajectory) -> None:
    own = [-0.02, 0, 0, 1]
    assert [line.reward for line in trajectory.lines] == own
    wrong = [[0] * 4, [0] * 14, [0, -0.05, *[-0.02] * 6, *[0] * 8], [0] * 5, [-0.05, *[0] * 4], [-0.02, *[0] * 5]]
    rewards = [own, own, *wrong]
    group = [of_lines([Typed()] * len(values)) for values in rewards]
    expected, *_ = line_advantages(group, rewards, CreditConfig())
    assert [line.advantage for line in trajectory.lines] == pytest.approx(expected)
    assert ", ".join(f"{value:.3f}" for value in expected) in PAGE
