"""The readers of all dialects: what they make of the turns in `turns.jsonl`, and of any text, however it is cut."""

import json
import warnings
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from dialect.chats import CALL_TEMPLATES, Chat, tool_calls
from dialect.talk import Splits, assert_texts_are_the_bytes, cells_of, read_all, turns_of
from hypothesis import given
from hypothesis import strategies as st
from scripted import multiply

from repl_rl.config import DialectConfig
from repl_rl.dialect import Dialect, PythonReader, Reader, Turn, make_dialect
from repl_rl.dialect.prose import PlainTextDialect
from repl_rl.tools import as_tools, tool
from repl_rl.trajectory import LineKind

CASES = [json.loads(line) for line in (Path(__file__).parent / "turns.jsonl").read_text().splitlines()]
TOOL_CALLS = {f"tool_call {template}": tool_calls(template) for template in CALL_TEMPLATES}
DIALECTS: dict[str, Dialect] = TOOL_CALLS | {
    name: make_dialect(DialectConfig(name=name)) for name in ("python", "ipython", "fenced", "inline", "text")
}
CALL = '{"name": "python", "arguments": {"code": "1"}}'
PIECES = {
    "python": "x = 1|x||    y|  |# c|if x:|f(|)|'''|1 +|else:| z|\\|\n",
    "ipython": "x = 1|x|    y|# c|if x:|f(|)|'''|1 +|%time x|%%time|!ls|\n",
    "fenced": "```python|```|````|~~~|~~~py|```output|x = 1|x|    y|é€|Answer: 1|\n"
    "|<think>|</think>|Answer:|\\boxed{3}",
    "inline": "<fn>|</fn>|<|f|n>|fn>|>|\n|x|'|(1)|é€| a |Answer: 1\n|/|<think>|</think>|<answer>|</answer>",
    "text": "Answer: 1|#### 2|a||\\boxed{3}|é€|Answer:|\n|<think>|</think>|<answer>|</answer>|The answer is 4.",
    "tool_call": f"<tool_call>|</tool_call>|{CALL}|<tool_call>\n{CALL}\n</tool_call>|{{|}}|\n|[TOOL_CALLS] [|]|é"
    "|```python\n|```|~~~bash|~~~|<tools>|</tools>"
    "|<function=python>|\n<parameter=code>|</parameter>|</function>|python.call(code='1')",
}
"""Pieces of text that mean something to each dialect."""


def recorded(reader: Reader, turn: Turn) -> dict[str, Any]:
    """A turn as the file has it; of one without cells, the kind of its line."""
    cells = [
        [cell.source, cell.kind, *([cell.refusal.error_name, cell.refusal.message] if cell.refusal else [])]
        for cell in turn.cells
    ]
    return {
        "typed": turn.text,
        **({"cells": cells} if cells else {"kind": turn.idle_kind}),
        **({"answer": list(turn.answer)} if turn.answer else {}),
        **({"waits": True} if turn.waits else {}),
        **({"prompt": reader.next_prompt()} if type(reader) is PythonReader else {}),
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['dialect']}: {case['about']}")
def test_turns(case: dict[str, Any]) -> None:
    reader = DIALECTS[case["dialect"]].reader()
    for index, turn in enumerate(case["turns"], 1):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read = reader.read(turn["typed"], case.get("ends", False) and index == len(case["turns"]))
        assert recorded(reader, read) == turn


def spans_of(turns: Sequence[Turn], spaces: Sequence[int]) -> list[tuple[int, int]]:
    """Where in the text of all turns their cells were typed, not counting the characters at `spaces`."""
    spans = []
    begin = 0
    for turn in turns:
        for cell in turn.cells:
            assert cell.span is not None
            start, end = (begin + place for place in cell.span)
            spans.append(tuple(place - sum(space < place for space in spaces) for place in (start, end)))
        begin += len(turn.text)
    return spans


def texts_for(dialect: str) -> st.SearchStrategy[str]:
    pieces = [*PIECES[dialect.partition(" ")[0]].split("|"), "<|python_tag|>"]
    return st.lists(st.sampled_from(pieces), max_size=20).map("".join)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
def test_where_turns_are_cut_changes_no_cell_and_no_answer(dialect: str, data: st.DataObject) -> None:
    """Tokens decide where a turn ends: right after its stop, or with the beginning of the next line typed ahead."""
    text, has_prompts = data.draw(texts_for(dialect)), dialect in ("python", "ipython")
    stops = DIALECTS[dialect].stops.decode()
    turns = turns_of(text, stops, lambda left: data.draw(st.integers(0, left))) or [""]
    spaces = []
    if has_prompts:  # the space after each prompt is the model's
        after_prompt = [True, *(turn.endswith("\n") for turn in turns[:-1])]
        turns = [" " * space + turn for turn, space in zip(turns, after_prompt, strict=True)]
        begins = accumulate(map(len, turns[:-1]), initial=0)
        spaces = [begin for begin, space in zip(begins, after_prompt, strict=True) if space]
        text = f" {text}"
    whole = cells_of(DIALECTS[dialect].reader(), [text], ends=True)
    read = read_all(DIALECTS[dialect].reader(), turns, ends=True)
    assert [cell for turn in read for cell in turn.cells] == whole
    spans = [cell.span for cell in whole]
    assert spans_of(read, spaces) == spans_of([Turn(text, tuple(whole), LineKind.BLANK)], spaces[:1])
    for cell, (start, end) in zip(whole, spans, strict=True):
        alone = " " * (has_prompts and start > 0) + text[start:end]
        assert cell in cells_of(DIALECTS[dialect].reader(), [alone], ends=True)
    if dialect in ("text", "inline", "fenced"):
        cut, uncut = (
            [turn.answer for turn in read_all(DIALECTS[dialect].reader(), each, True) if turn.answer]
            for each in (turns, [text])
        )
        assert uncut == cut[:1]


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data(), cuts=Splits, ends=st.booleans())
def test_no_text_is_lost_and_nothing_raises(dialect: str, data: st.DataObject, cuts: list[int], ends: bool) -> None:
    odd = st.text(" x1#:('\\\n\r\f\t\x00@%!?;,\x1c\x85\u2028{`~<>")
    typed = data.draw(st.binary() | st.one_of(odd, texts_for(dialect)).map(str.encode))
    assert_texts_are_the_bytes(DIALECTS[dialect].reader(), typed, cuts, ends)


def test_a_call_too_deep_for_json_is_refused() -> None:
    reader = TOOL_CALLS["tool_call qwen2_5"].reader()
    [cell] = reader.read("<tool_call>" + "[" * 100_000 + "</tool_call>", end_of_input=True).cells
    assert cell.refusal is not None
    assert cell.refusal.message.startswith("JSONDecodeError: the call is not JSON")


def test_code_nested_too_deep_for_the_parser_is_a_cell_that_says_so() -> None:
    [cell] = PythonReader().read(" " + "(" * 300 + "\n").cells
    assert cell.kind == "syntax_error"


@pytest.mark.parametrize("dialect", ["python", "ipython"])
@pytest.mark.parametrize(
    ("typed", "kinds"),
    [
        ("del " + "(a:=" * 190, []),
        ("x = " + "(" * 90 + "1" + ")" * 90, ["statement"]),
        ("(" * 90 + "1" + ")" * 90, ["statement"]),
        ("(" * 50 + "1" + ")" * 50, ["expression"]),
        ("f('" + "(" * 90 + "')", ["expression"]),
        ("f(f'{" + "(" * 90 + "1" + ")" * 90 + "}')", ["statement"]),
    ],
)
def test_what_is_nested_too_deep_to_be_parsed_here_is_read_by_its_brackets(
    dialect: str, typed: str, kinds: list[str]
) -> None:
    reader = DIALECTS[dialect].reader()
    assert [cell.kind for cell in reader.read(f"{typed}\n").cells] == kinds
    [rest] = reader.read(")" * 200 + "\n").cells
    assert rest.kind == ("syntax_error" if kinds else "statement")


@pytest.mark.more
def test_ipython_is_not_asked_about_hundreds_of_magics_in_one_cell() -> None:
    reader = DIALECTS["ipython"].reader()
    lines = ["if 1:\n", *["    x = !ls\n"] * 60]
    assert [reader.read(line).cells for line in lines] == [()] * 61
    assert len(reader.read("    x = !ls\n").cells) == 1


def test_in_plain_text_nothing_is_shown_and_no_kernel_needed() -> None:
    dialect = PlainTextDialect()
    reader = dialect.reader()
    reader.read("```python\n1 / 0\n```\n<fn>1</fn>\n")
    assert reader.show((), goes_on=True) == ()
    assert (dialect.needs_kernel, dialect.setup) == (False, "")


@tool(ends=True)
def pay(euros: int) -> int:
    """Pay, and leave."""
    return euros


@tool(ends=True)
def leave() -> None:
    """Leave."""


@pytest.mark.parametrize("dialect", ["python", "ipython", "fenced", "inline", "tool_call"])
def test_which_tools_end_the_session_is_told_before_it_begins(dialect: str) -> None:
    config, told = (
        DialectConfig(name=dialect),
        "A call of pay or leave ends the session, and what it returns is the final",
    )
    made = make_dialect(config, as_tools([multiply, pay, leave]), Chat("qwen2_5"))
    system = made.chat_prompt("What?").messages[0]
    assert (system["role"], told in system["content"]) == ("system", True)
    if dialect != "tool_call":
        assert told in made.completion_prompt("What?")
    without = make_dialect(config, as_tools([multiply]), Chat("qwen2_5"))
    assert "ends the session, and what it returns" not in str(without.chat_prompt("What?").messages)


def test_no_tools_are_presented_where_nothing_could_call_them() -> None:
    with_tools = PlainTextDialect(tools=as_tools([multiply, pay]))
    assert with_tools.completion_prompt("What?") == PlainTextDialect().completion_prompt("What?")
    assert with_tools.chat_prompt("What?") == PlainTextDialect().chat_prompt("What?")
