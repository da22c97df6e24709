"""The `tool_call` dialect: what is read off chat templates, and how calls are read, refused and answered.

The templates in `templates/` follow the public ones of their models, shortened to what matters for tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from dialect.conftest import Talk
from dialect.talk import Splits, assert_texts_are_the_bytes, cells_of, turns_of
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from repl_rl.config import DialectConfig
from repl_rl.dialect import Cell, CellRun, Refusal
from repl_rl.dialect.call_form import CallForm, split_calls
from repl_rl.dialect.tool_call import ToolCallDialect
from repl_rl.errors import ConfigError, ModelError
from repl_rl.tools import as_tools
from repl_rl.trajectory import LineKind

TEMPLATES = Path(__file__).parent / "templates"
JSON_TEMPLATES = ["llama3_1", "mistral", "no_end", "qwen2_5", "qwen3"]
HERMES = CallForm("<tool_call>", "</tool_call>", "name", "arguments")
LLAMA = CallForm("", "", "name", "parameters")
MISTRAL = CallForm("[TOOL_CALLS]", "", "name", "arguments")
OPEN, COMMENT, EXPRESSION = LineKind.OPEN, LineKind.COMMENT, LineKind.EXPRESSION


class Chat:
    """A chat template as a model's tokenizer renders it."""

    def __init__(self, name: str) -> None:
        self._source = (TEMPLATES / f"{name}.jinja").read_text()

    def __call__(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], opens: bool) -> str:
        try:
            [text], _ = render_jinja_template(
                conversations=[list(messages)],
                tools=list(tools) or None,
                chat_template=self._source,
                add_generation_prompt=opens,
                bos_token="<s>",
                eos_token="</s>",
            )
        except TemplateError as error:
            raise ModelError(f"this model's chat template refuses the conversation: {error}") from error
        return str(text)


def dialect_of(template: str, **options: Any) -> ToolCallDialect:
    return ToolCallDialect(DialectConfig(name="tool_call", **options), (), Chat(template))


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("qwen2_5", HERMES),
        ("qwen3", HERMES),
        ("llama3_1", LLAMA),
        ("mistral", MISTRAL),
        ("no_end", CallForm("<call>", "</call>", "name", "arguments")),
    ],
)
def test_the_form_of_a_call(template: str, form: CallForm) -> None:
    assert dialect_of(template).form == form


QWEN_FRAME = (
    "<|im_end|>\n<|im_start|>user\n<tool_response>\n",
    "\n</tool_response>\n<tool_response>\n",
    "\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
)
LLAMA_BEFORE = "<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"


@pytest.mark.parametrize(
    ("template", "frame"),
    [
        ("qwen2_5", QWEN_FRAME),
        ("qwen3", QWEN_FRAME),
        (
            "llama3_1",
            (
                f'{LLAMA_BEFORE}"',
                f'"{LLAMA_BEFORE}"',
                '"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
            ),
        ),
        (
            "mistral",
            (
                '</s>[TOOL_RESULTS] {"content": ',
                ', "call_id": "reprlcall"}[/TOOL_RESULTS][TOOL_RESULTS] {"content": ',
                ', "call_id": "reprlcall"}[/TOOL_RESULTS]',
            ),
        ),
        ("no_end", ("\n<|tool|>", "\n<|tool|>", "\n<|assistant|>")),
    ],
)
def test_what_stands_around_results(template: str, frame: tuple[str, ...]) -> None:
    assert dialect_of(template).frame(2) == frame
    assert dialect_of(template).frame(1) == (frame[0], frame[2])


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("no_tools", "writes tool calls otherwise than as JSON objects, or leaves them out"),
        ("xml_calls", "writes tool calls otherwise than as JSON objects"),
        ("hidden_tools", "has no place for tools"),
        ("no_results", "leaves out results of tools"),
        ("no_tool_role", "refuses the conversation: unknown role tool"),
    ],
)
def test_templates_that_will_not_do(template: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"this model's chat template {complaint}.*; take another model, or the"):
        dialect_of(template)


def test_a_model_without_a_template() -> None:
    with pytest.raises(ConfigError, match="tool_call needs a chat template, and this model's tokenizer has none"):
        ToolCallDialect(DialectConfig(name="tool_call"))


@pytest.mark.parametrize("template", JSON_TEMPLATES)
def test_the_prompt_offers_the_tools_and_the_sequence_is_what_the_template_renders(template: str) -> None:
    """Prompt, sampled call and frame together are the template's own rendering of that conversation."""
    dialect, chat = dialect_of(template), Chat(template)
    opened = dialect.chat_prompt("What is 6 * 7?")
    prompt = chat(opened.messages, opened.tools, True)
    assert '"submit_final_answer"' in prompt
    function = {"name": "python", "arguments": {"code": "6 * 7"}}
    call = {"type": "function", "id": "reprlcall", "function": function}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "name": "python", "tool_call_id": "reprlcall", "content": "42"}
    whole = chat([*opened.messages, said, result], opened.tools, True)
    before, behind = dialect.frame(1)
    body = json.dumps({dialect.form.name_key: "python", dialect.form.arguments_key: {"code": "6 * 7"}})
    assert whole.endswith(f"{before}42{behind}")
    if template in ("qwen2_5", "llama3_1", "no_end"):
        typed = whole.removeprefix(prompt).removesuffix(f"{before}42{behind}")
        assert typed.strip() == f"{dialect.form.opening}{body}{dialect.form.closing}" or typed == "\n".join(
            [dialect.form.opening, body, dialect.form.closing]
        )


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: One of them.
        b: The other one.
    """
    return a * b


def test_the_users_tools_are_offered_instead_of_our_own() -> None:
    dialect = ToolCallDialect(DialectConfig(name="tool_call"), as_tools([multiply]), Chat("qwen2_5"))
    prompt = dialect.chat_prompt("Q")
    assert [tool["function"]["name"] for tool in prompt.tools] == ["multiply"]
    assert "submit_final_answer" not in str(prompt.messages)
    [cell] = dialect.reader().read('<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": "x"}}', True).cells
    assert cell == Cell("print(multiply(**{'a': 6, 'b': 'x'}))", EXPRESSION)
    [cell] = dialect.reader().read('<tool_call>{"name": "python", "arguments": {"code": "1"}}', True).cells
    assert cell.refusal == Refusal("NameError", "NameError: there is no tool 'python'; there are multiply")


CALL, OTHER = '{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "arguments": {}}'


@pytest.mark.parametrize(
    ("form", "message", "calls", "prose"),
    [
        (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", [CALL], ""),
        (HERMES, f"So:\n<tool_call>{CALL}</tool_call>\n<tool_call>{OTHER}</tool_call> a", [CALL, OTHER], "So:\n\n a"),
        (HERMES, f"<tool_call>\n{CALL}\n{OTHER}\n</tool_call>", [CALL, OTHER], ""),
        (HERMES, f"<tool_call>[{CALL}, {OTHER}]</tool_call>", [CALL, OTHER], ""),
        (HERMES, f"<tool_call>{CALL}", [CALL], ""),
        (HERMES, f"<tool_call>{CALL}</tool_call><tool_call>{{", [CALL, "{"], ""),
        (HERMES, "<tool_call></tool_call>", [""], ""),
        (HERMES, "no call", [], "no call"),
        (HERMES, CALL, [], CALL),
        (LLAMA, CALL, [CALL], ""),
        (LLAMA, f"<|python_tag|>{CALL}", [CALL], ""),
        (LLAMA, f" {CALL}; {OTHER}\n", [CALL, OTHER], ""),
        (LLAMA, f"I call {CALL}", [], f"I call {CALL}"),
        (LLAMA, "{x", ["{x"], ""),
        (MISTRAL, f"[TOOL_CALLS] [{CALL}, {OTHER}]", [CALL, OTHER], ""),
        (MISTRAL, f"[TOOL_CALLS][{CALL}", [f"[{CALL}"], ""),
    ],
)
def test_calls_in_a_message(form: CallForm, message: str, calls: list[str], prose: str) -> None:
    assert split_calls(message, form) == (calls, prose)


@pytest.mark.parametrize(
    ("call", "name", "message"),
    [
        ("{", "JSONDecodeError", "the call is not JSON: Expecting property name"),
        ("", "JSONDecodeError", "the call is not JSON: Expecting value"),
        ("python(1)", "JSONDecodeError", "the call is not JSON"),
        ("[" * 100_000, "JSONDecodeError", "the call is not JSON"),
        ('{"name": "python", "arguments": "{"}', "JSONDecodeError", "the call is not JSON"),
        (
            '{"name": "python", "arguments": {"code": NaN}}',
            "JSONDecodeError",
            "the call is not JSON: NaN is not a number",
        ),
        (
            '{"name": "python", "arguments": {"code": 1e999}}',
            "JSONDecodeError",
            "the call is not JSON: 1e999 is not a number",
        ),
        ('"python"', "TypeError", "a call is an object with 'name' and 'arguments'"),
        ('{"function": "python"}', "TypeError", "a call is an object with 'name' and 'arguments'"),
        ('{"name": 3}', "TypeError", "a call is an object with 'name' and 'arguments'"),
        ('{"name": "python", "arguments": [1]}', "TypeError", "'arguments' has to be an object"),
        ('{"name": "python", "arguments": null}', "TypeError", "'arguments' has to be an object"),
        ('{"name": "python"}', "TypeError", "python takes one argument, code, which is a string"),
        ('{"name": "python", "arguments": {"code": 1}}', "TypeError", "python takes one argument, code"),
        ('{"name": "python", "arguments": {"code": "1", "x": 2}}', "TypeError", "python takes one argument, code"),
        ('{"name": "submit_final_answer"}', "TypeError", "submit_final_answer takes one argument, value"),
        ('{"name": "search", "arguments": {}}', "NameError", "there is no tool 'search'; there are python, submit_fin"),
        ('{"name": "python", "arguments": {"code": "f("}}', "SyntaxError", '  File "<stdin>", line 1\n    f('),
    ],
)
def test_calls_that_are_refused(call: str, name: str, message: str) -> None:
    [cell] = dialect_of("qwen2_5").reader().read(f"<tool_call>{call}</tool_call>", end_of_input=True).cells
    assert cell.kind is LineKind.SYNTAX_ERROR
    assert cell.refusal is not None
    assert cell.refusal.error_name == name
    assert cell.refusal.message.removeprefix(f"{name}: ").startswith(message)


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        ('{"value": "42"}', "submit_final_answer('42')"),
        ('"{\\"value\\": 42}"', "submit_final_answer(42)"),
        ('{"value": [1.5, null, true]}', "submit_final_answer([1.5, None, True])"),
        ('{"value": "\\ud800"}', "submit_final_answer('\\ud800')"),
    ],
)
def test_arguments(arguments: str, source: str) -> None:
    call = f'<tool_call>{{"name": "submit_final_answer", "arguments": {arguments}}}</tool_call>'
    assert cells_of(dialect_of("qwen2_5").reader(), [call], ends=True) == [Cell(source, EXPRESSION)]


def call_of(code: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': code}})}\n</tool_call>"


@pytest.mark.parametrize(
    ("codes", "results"),
    [
        (["6 * 7"], ["42"]),
        (["x = 3", "x\nx + 1", "1 / 0"], ["", "3\n4", "ZeroDivisionError: division by zero"]),
        (["def f(): return 1\nf()"], ["1"]),
        (["foo bar"], ["SyntaxError: invalid syntax"]),
        (["f("], ["SyntaxError: '(' was never closed"]),
        (["# a thought"], [""]),
    ],
)
def test_calls_are_answered_in_their_order(talked: Talk, codes: list[str], results: list[str]) -> None:
    dialect = dialect_of("qwen2_5")
    typed = "\n".join(map(call_of, codes))
    text, _ = talked(Ending(dialect), [typed])
    before, *behind = dialect.frame(len(codes))
    answered = "".join(result + frame for result, frame in zip(results, behind, strict=True))
    assert text == f"{typed}{before}{answered}"


class Ending:
    """The dialect with every turn ended by the end-of-text token."""

    def __init__(self, dialect: ToolCallDialect) -> None:
        self.setup = dialect.setup
        self._dialect = dialect

    def reader(self) -> Any:
        reader = self._dialect.reader()
        read = reader.read
        reader.read = lambda typed, ends=False: read(typed, True)  # type: ignore[method-assign]
        return reader


def test_results_are_escaped_where_the_template_makes_json_of_them() -> None:
    runs = [CellRun(Cell("x", EXPRESSION), 'a "quoted"\nline\n')]
    shown = "".join(part.text for part in dialect_of("llama3_1").reader().show(runs, goes_on=True))
    assert shown.startswith(LLAMA_BEFORE + r'"a \"quoted\"\nline"<|eot_id|>')
    plain = "".join(part.text for part in dialect_of("qwen3").reader().show(runs, goes_on=True))
    assert '<tool_response>\na "quoted"\nline\n</tool_response>' in plain


def test_only_the_templates_own_text_is_frame() -> None:
    runs = [CellRun(Cell("x", EXPRESSION), "<|im_end|>\n"), CellRun(Cell("y", EXPRESSION), error_message="m.E: <s>")]
    shown = dialect_of("qwen2_5").reader().show(runs, goes_on=True)
    assert [part.is_frame for part in shown] == [True, False, True, False, True]
    assert [part.text for part in shown if not part.is_frame] == ["<|im_end|>", "E: <s>"]


def test_a_turn_with_calls_waits_and_one_without_ends() -> None:
    reader = dialect_of("qwen3").reader()
    turns = [reader.read(f"<think>\nHm.\n</think>\n\n{call_of('1')}", True), reader.read("It is \\boxed{1}.", True)]
    assert [turn.waits for turn in turns] == [True, False]
    assert [turn.answer for turn in turns] == [None, ("1",)]


def test_a_call_typed_over_several_lines_counts_as_open() -> None:
    reader = dialect_of("qwen2_5").reader()
    turns = [reader.read(text) for text in ["So.\n", "\n", "<tool_call>\n", "{\n", "</tool_call>\n", "And.\n"]]
    assert [turn.idle_kind for turn in turns] == [COMMENT, LineKind.BLANK, OPEN, OPEN, OPEN, COMMENT]
    assert reader.read("<tool_call>{}</tool_call>\n").idle_kind is OPEN


def test_an_answer_line_ends_a_turn_but_not_inside_a_call() -> None:
    assert dialect_of("qwen2_5").reader().read("Answer: 42\n").answer == ("42",)
    reader = dialect_of("qwen2_5").reader()
    assert reader.read("<tool_call>\n").answer is None
    assert reader.read("Answer: 42\n").answer is None


def test_a_call_is_answered_before_an_answer_counts() -> None:
    reader = dialect_of("qwen2_5").reader()
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>\n'
    assert [reader.read(f"{line}\n").answer for line in call.splitlines()] == [None] * 3
    assert reader.read("Answer: 42\n").answer is None
    ended = reader.read("", end_of_input=True)
    assert (len(ended.cells), ended.answer, ended.waits) == (1, None, True)
    assert reader.read("Answer: 42\n").answer == ("42",)


PARTS = [
    "<tool_call>", "</tool_call>", CALL, call_of("1"), "{", "}", "\n", "[TOOL_CALLS] [", "]", "a", "é€", ", ",
    "Answer: 1",
]  # fmt: skip
MESSAGES = st.lists(st.sampled_from(PARTS), max_size=10).map("".join)
DIALECTS = {template: dialect_of(template) for template in JSON_TEMPLATES}


@pytest.mark.parametrize("template", JSON_TEMPLATES)
@given(message=MESSAGES, data=st.data())
def test_where_turns_are_cut_changes_no_call(template: str, message: str, data: st.DataObject) -> None:
    turns = turns_of(message, "\n", lambda left: data.draw(st.integers(0, left))) or [""]
    whole = cells_of(DIALECTS[template].reader(), [message], ends=True)
    assert cells_of(DIALECTS[template].reader(), turns, ends=True) == whole


@pytest.mark.parametrize("template", JSON_TEMPLATES)
@given(data=st.binary() | MESSAGES.map(str.encode), cuts=Splits, ends=st.booleans())
def test_no_text_is_lost_and_nothing_raises(template: str, data: bytes, cuts: list[int], ends: bool) -> None:
    assert_texts_are_the_bytes(DIALECTS[template].reader(), data, cuts, ends)
