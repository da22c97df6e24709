"""Final answers in prose: the table's examples, thoughts, tags, and texts that are none."""

from collections.abc import Iterator
from typing import Any

import pytest
from dialect.chats import Chat, call, tool_calls
from dialect.talk import read_all, turns_of

from repl_rl.config import DialectConfig
from repl_rl.dialect import Dialect, PromptedReader, make_dialect
from repl_rl.dialect.answers import TABLE, AnswerReader, answer_in_line, answer_in_text, answer_of
from repl_rl.dialect.fenced import FencedDialect

DIALECTS: dict[str, Dialect] = {"tool_call": tool_calls("qwen2_5")} | {
    name: make_dialect(DialectConfig(name=name)) for name in ("fenced", "inline", "text")
}


def answers(dialect: str, text: str, before: str = "") -> list[str]:
    """The answer of a text that is typed turn by turn and then ends, in a list; with it, the session would be over."""
    reader = DIALECTS[dialect].reader()
    assert isinstance(reader, PromptedReader)
    reader.begin_after(before)
    turns = turns_of(text, DIALECTS[dialect].stops.decode())
    if text.endswith("\n"):  # the end of the text comes alone
        turns.append("")
    return [answer for turn in read_all(reader, turns, ends=True) for answer in turn.answer or ()][:1]


def examples(kind: str) -> Iterator[tuple[str, Any]]:
    for form in TABLE[kind]:
        yield from form["examples"].items()


@pytest.mark.parametrize(("line", "answer"), examples("at_once"))
def test_lines_that_end_a_session_at_once(line: str, answer: str | None) -> None:
    expected = None if answer is None else (repr(answer),)
    assert answer_in_line(line) == answer
    assert AnswerReader().read([f"{line}"], ends=False) == expected


@pytest.mark.parametrize("kind", ["last_line", "heading"])
def test_texts_that_give_an_answer_when_they_have_ended(kind: str) -> None:
    for text, answer in examples(kind):
        lines = ["6 * 7.", *text.split("\n")]
        assert (text, answer_in_text(lines)) == (text, answer)
        assert AnswerReader().read(lines, ends=False) is None


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", ["at_once", "last_line", "heading"])
def test_the_forms_are_those_of_every_dialect_with_prose(dialect: str, kind: str) -> None:
    for text, answer in examples(kind):
        if "```" in text and dialect in ("fenced", "tool_call"):  # a block, which may be code
            continue
        last = [] if answer is None else [repr(answer)]
        if answer is None and kind == "at_once":
            text += "\nand\nso on"  # which is no answer below a heading either
        assert (text, answers(dialect, text)) == (text, last)


@pytest.mark.parametrize("rule", TABLE["taken_off"], ids=lambda rule: rule["find"])
def test_what_stands_around_an_answer_is_no_part_of_it(rule: dict[str, Any]) -> None:
    for written, answer in rule["examples"].items():
        assert answer_of(written) == answer


@pytest.mark.parametrize("rule", TABLE["none"], ids=lambda rule: rule["find"])
def test_what_is_no_answer(rule: dict[str, Any]) -> None:
    for written in rule["examples"]:
        assert (written, answer_of(written)) == (written, None)
        assert answers("text", f"Answer: {written}\n<answer>{written}</answer>\nAnswer: 42\n") == ["'42'"]
        assert answers("text", f"\\boxed{{{written}}}") == []


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>42</answer>\nAnswer: 43\n", "42"),
        ("So it is <answer> $42$ </answer>.\nAnswer: 43\n", "42"),
        ("<answer>\n42\n</answer>\nAnswer: 43\n", "42"),
        ("<answer>\n6 * 7 is computed.\n\nThe answer is $42$.\n</answer>\nAnswer: 43\n", "42"),
        ("<answer>It is 6 * 7:\n\\[\\boxed{42}\\]</answer>\nAnswer: 43\n", "42"),
        ("<answer>Answer: 42</answer>\nAnswer: 43\n", "42"),
        ("<answer>\n1 2\n3 4\n</answer>\n", "1 2\n3 4"),
        ("<answer>1</answer><answer>2</answer>", "1"),
        ("Give it in <answer> and </answer>.\n<answer>42</answer>", "42"),
        ("In <answer> tags: <answer>42</answer>", "42"),
        ("<think> reasoning </think> <answer> answer here </answer>\n<answer>42</answer>", "42"),
        ("<final_answer>42</final_answer>", "42"),
        ("<SOLUTION>42</SOLUTION>", "42"),
        ("<answer>42", None),
        ("<answer>42</SOLUTION>", None),
        ("<answer></answer>", None),
    ],
)
def test_answers_in_tags(dialect: str, text: str, expected: str | None) -> None:
    assert answers(dialect, text) == ([] if expected is None else [repr(expected)])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("opening", "closing"), TABLE["thoughts"])
def test_what_stands_in_a_thought_is_no_answer(dialect: str, opening: str, closing: str) -> None:
    guess = "A first guess:\nAnswer: 41\n#### 41\n<answer>41</answer>\nSo \\boxed{41}.\nThe answer is 41."
    for text in (
        f"{opening}\n{guess}\n{closing}\n",
        f"Hm.{opening}{guess}{closing}",
        f"{opening}{guess}{closing}\n{opening}\n{guess}\n{closing}\n",
        f"{opening.upper()}{guess}{closing.upper()}",
    ):
        assert answers(dialect, f"{text}Answer: 42\n") == ["'42'"]
        assert answers(dialect, f"{text}\\boxed{{42}}") == ["'42'"]
        assert answers(dialect, f"{text}\nThe answer is 42") == ["'42'"]
        assert answers(dialect, f"{text}<answer>\n42\n</answer>") == ["'42'"]
        assert answers(dialect, text) == []
    assert answers(dialect, f"{opening}\n{guess}\n") == []
    assert answers(dialect, f"{opening}\n{guess}\nAnswer: 42\n") == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_thought_that_the_prompt_opens_goes_on(dialect: str) -> None:
    opened, text = "<|im_start|>assistant\n<think>\n", "Perhaps\nAnswer: 41\n</think>\n\nAnswer: 42\n"
    assert answers(dialect, text, opened) == ["'42'"]
    assert answers(dialect, "Answer: 41\n", opened) == []
    assert answers(dialect, "Answer: 42\n", "Think in <think> </think>.\n<think>\n\n</think>\n\n") == ["'42'"]
    assert answers(dialect, "Answer: 42\n", "Begin with <think>.\nWhat is 6 * 7?") == ["'42'"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_comes_before_a_closing_tag_was_a_thought(dialect: str) -> None:
    assert answers(dialect, "So \\boxed{41}.\nAnswer:\n\n41</think>") == []
    assert answers(dialect, "<answer>\n41\n</think>\n<answer>42</answer>") == ["'42'"]
    assert answers(dialect, "Answer: 41</think>Answer: 42\n") == ["'42'"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_only_its_own_tag_closes_a_thought(dialect: str) -> None:
    text = "<think>\nOne thinks in <thinking> and <think>,\n</thinking>\nAnswer: 41\n</think>\nAnswer: 42\n"
    assert answers(dialect, text) == ["'42'"]


def test_the_channels_of_gpt_oss_and_gemma() -> None:
    final = "<|end|><|start|>assistant<|channel|>final<|message|>Answer: 42"
    analysis = "<|channel|>analysis<|message|>Maybe.\nAnswer: 41\nNo."
    commentary = "<|end|><|start|>assistant<|channel|>commentary<|message|>So.\nAnswer: 40\n"
    assert answers("text", analysis + final) == ["'42'"]
    assert answers("text", analysis + commentary + final) == ["'42'"]
    assert answers("text", analysis) == []
    assert answers("text", "<|channel>thought\nAnswer: 41\nNo.\n<channel|>Answer: 42") == ["'42'"]
    assert answers("text", "Answer: 41\nNo.\n<channel|>Answer: 42", "<|channel>thought\n") == ["'42'"]


def test_code_in_a_thought_runs() -> None:
    """As it did before anything knew of thoughts."""
    for dialect, code in (
        ("fenced", "```python\n6 * 7\n```\n"),
        ("inline", "<fn>6 * 7</fn>\n"),
        ("tool_call", call("python", code="6 * 7")),
    ):
        turns = read_all(DIALECTS[dialect].reader(), [f"<think>\n{code}"], ends=True)
        assert [cell.source for turn in turns for cell in turn.cells] == ["6 * 7"]


def test_a_tag_in_code_opens_no_thought() -> None:
    assert answers("fenced", "```python\nprint('<think>')\n```\nAnswer: 42\n") == ["'42'"]
    assert answers("inline", "<fn>'<think>'</fn>\nAnswer: 42\n") == ["'42'"]


@pytest.mark.parametrize("is_opened", [False, True])
def test_a_thought_ends_with_its_message_and_a_frame_may_open_another(is_opened: bool) -> None:
    """A template may open a thought wherever a message of the model's begins."""
    chat = Chat("qwen2_5")

    def template(messages: Any, tools: Any, opens: bool) -> str:
        return chat(messages, tools, opens) + ("<think>\n" if is_opened and opens else "")

    fenced = FencedDialect(DialectConfig(name="fenced"), template=template)
    calls = type(tool_calls("qwen2_5"))(DialectConfig(name="tool_call"), (), template)
    for dialect, code in ((fenced, "```python\n1\n```"), (calls, call("python", code="1")), (fenced, ""), (calls, "")):
        reader = dialect.reader()
        reader.begin_after("")
        assert reader.read(f"<think>\nHm.\n{code}", end_of_input=True).waits
        answer = reader.read("Answer: 41\n").answer
        assert answer == (None if is_opened else ("'41'",))
        assert reader.read("</think>Answer: 42\n").answer == ("'42'",)


def test_a_box_in_a_block_without_a_label() -> None:
    assert answers("fenced", "```\n\\boxed{42}\n```\n") == ["'42'"]
    assert answers("fenced", "```\nSo it is <answer>42</answer>.\n```\nHm.") == ["'42'"]
    assert answers("fenced", "```\nSo it is \\boxed{41}.\n```\nRather \\boxed{42}.") == ["'42'"]
    assert answers("fenced", "```\nx = '\\boxed{41}'\n```\nHm.") == []
    assert answers("fenced", "```python\n\\boxed{41}\n```\nHm.") == []
    assert answers("fenced", "<think>\n```\n\\boxed{41}\n```\n</think>\n") == []


def test_boxes_come_before_last_lines_and_these_before_headings() -> None:
    assert answers("text", "\\boxed{1}\nAnswer:\n2\n\nThe answer is 3.") == ["'1'"]
    assert answers("text", "So \\fbox{1}.\n") == ["'1'"]
    assert answers("text", "Answer:\n2\n\nThe answer is 3.") == ["'3'"]
    assert answers("text", "Answer:\n2\n\nThe answer is not 3.") == ["'2'"]
    assert answers("text", "The answer is 3.\nSo much for that.") == []


@pytest.mark.parametrize("character", [" ", "*", "_", "#", ">", "✅", ",", ".", "1. ", "a", "a ", "$", "`", "?", "("])
def test_long_lines_take_no_longer_than_they_are_long(character: str) -> None:
    """Each would take hours if a pattern tried again what it has tried."""
    run = character * 100_000
    for line in (
        run,
        f"Answer: {run}",
        f"Answer: 1{run}x",
        f"{run}Answer: 1",
        f"So the answer is {run}x",
        f"Answer: 1{run}since",
        f"1{run}. A",
    ):
        AnswerReader().read([line, "Answer:", line], ends=True)
    tags = ["<answer>", *["</SOLUTION>", "<think>", "</think>"] * 10_000]
    assert AnswerReader().read(tags, ends=True) is None
