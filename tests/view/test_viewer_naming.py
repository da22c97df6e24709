"""The question is found in the prompt of every dialect that ships, and the family in every id that tells one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect
from repl_rl.view.viewer.index import family_of, question_of

CASES = yaml.safe_load(Path(__file__).with_name("names.yaml").read_text(encoding="utf-8"))
QUESTION = "What is 2 + 2?\n\nSay it # twice."


@pytest.mark.parametrize("name", ["python", "ipython", "fenced", "inline", "text"])
@pytest.mark.parametrize("examples", [0, 1])
def test_a_dialect_s_prompt_gives_the_question_back(name: str, examples: int) -> None:
    examples *= name != "ipython"
    prompt = make_dialect(DialectConfig(name=name, examples=examples)).completion_prompt(QUESTION)
    assert question_of(prompt) == QUESTION


@pytest.mark.parametrize(("prompt", "question"), CASES["questions"].items())
def test_other_prompts(prompt: str, question: str) -> None:
    assert question_of(prompt) == question


def test_a_long_prompt_without_a_question_is_cut() -> None:
    assert question_of("x" * 500) == "…" + "x" * 400


@pytest.mark.parametrize(("task_id", "family"), CASES["families"].items())
def test_families(task_id: str, family: str) -> None:
    assert family_of(task_id) == family
