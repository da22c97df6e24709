"""The question is found in the prompt of every dialect that ships, and the family in every id that tells one."""

from __future__ import annotations

import pytest

from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect
from repl_rl.view.viewer.index import family_of, question_of

QUESTION = "What is 2 + 2?\n\nSay it # twice."


@pytest.mark.parametrize("name", ["python", "ipython", "fenced", "inline", "text"])
@pytest.mark.parametrize("examples", [0, 1])
def test_a_dialect_s_prompt_gives_the_question_back(name: str, examples: int) -> None:
    if name == "ipython":
        examples = 0
    prompt = make_dialect(DialectConfig(name=name, examples=examples)).completion_prompt(QUESTION)
    assert question_of(prompt) == QUESTION


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        ("<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\n>>>", "How?"),
        ("<bos><start_of_turn>user\nHow?\nWhy?<end_of_turn>\n<start_of_turn>model\n", "How?\nWhy?"),
        ("<s>[INST] How? [/INST]>>>", "How?"),
        (">>>", ">>>"),
        ("", ""),
        ("x" * 500, "…" + "x" * 400),
        ("no comment\n>>>", "no comment\n>>>"),
    ],
)
def test_other_prompts(prompt: str, question: str) -> None:
    assert question_of(prompt) == question


@pytest.mark.parametrize(
    ("task_id", "family"),
    [
        ("gcd-train-12-18", "gcd"),
        ("sum-range-heldout-1", "sum-range"),
        ("task-3", "task"),
        ("a-b-3-4", "a-b"),
        ("plain", ""),
        ("", ""),
        ("-train-3", "-train"),
    ],
)
def test_families(task_id: str, family: str) -> None:
    assert family_of(task_id) == family
