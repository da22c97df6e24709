"""The `tool_call` dialect: what is read off chat templates, and how calls are read, refused and answered.

The templates in `templates/` follow the public ones of their models, shortened to what matters for tools.
"""

import json
from typing import Any

import pytest
import yaml
from dialect.chats import CALL_TEMPLATES, WITH_HEADERS, Chat, call, tool_calls
from dialect.conftest import Talk
from dialect.talk import FOLDER
from scripted import multiply

from repl_rl.config import DialectConfig
from repl_rl.dialect import Cell, CellRun, Refusal
from repl_rl.dialect.call_form import CallForm, Tags
from repl_rl.dialect.tool_call import ToolCallDialect
from repl_rl.errors import ConfigError
from repl_rl.tools import as_tools
from repl_rl.trajectory import LineKind

CALLS = yaml.safe_load((FOLDER / "call_forms.yaml").read_text(encoding="utf-8"))
EXPRESSION = LineKind.EXPRESSION


@pytest.mark.parametrize("template", CALLS)
def test_the_form_of_a_call_and_what_stands_around_results(template: str) -> None:
    dialect, frame = tool_calls(template), tuple(CALLS[template]["frame"])
    tags = CALLS[template].get("tags")
    assert dialect.form == CallForm(*CALLS[template]["form"], tags and Tags(*tags))
    assert dialect.frame(2) == frame
    assert dialect.frame(1) == (frame[0], frame[2])


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("no_tools", "writes tool calls neither as JSON objects nor in tags, or leaves them out"),
        ("real cohere", "writes tool calls neither as JSON objects nor in tags"),
        ("real muse_glimmer", "writes tool calls neither as JSON objects nor in tags"),
        ("hidden_tools", "has no place for tools"),
        ("no_results", "leaves out results of tools"),
        ("no_tool_role", "refuses the conversation: unknown role tool"),
        ("escaped", "writes a tool call in a way that would not be read back: '<call>.*x &lt; 1"),
    ],
)
def test_templates_that_will_not_do(template: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"this model's chat template {complaint}.*; take another model, or the"):
        tool_calls(template)


def test_a_model_without_a_template() -> None:
    with pytest.raises(ConfigError, match="tool_call needs a chat template, and this model's tokenizer has none"):
        ToolCallDialect(DialectConfig(name="tool_call"))


@pytest.mark.parametrize("template", [*CALL_TEMPLATES, *WITH_HEADERS])
def test_the_prompt_offers_the_tools_and_the_sequence_is_what_the_template_renders(template: str) -> None:
    """Prompt, sampled call and frame together are the template's own rendering of that conversation."""
    dialect, chat = tool_calls(template), Chat(template)
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


WRITTEN = {
    "nemotron_nano_v2": '<TOOLCALL>[{"name": "python", "arguments": {"code": "6 * 7"}}]</TOOLCALL>',
    "command_r7b": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "python", "parameters": '
    '{"code": "6 * 7"}}\n]<|END_ACTION|>',
    "seed_oss": "<seed:tool_call>\n<function=python>\n<parameter=code>6 * 7</parameter>\n</function>\n"
    "</seed:tool_call>",
    "phi4_mini": '<|tool_call|>{"name": "python", "arguments": {"code": "6 * 7"}}<|/tool_call|>',
}


@pytest.mark.parametrize("before", ["", "I compute.\n</think>\n", "<|START_THINKING|>Hm.<|END_THINKING|>"])
@pytest.mark.parametrize("template", WRITTEN)
def test_calls_are_read_as_models_write_them_after_their_headers(template: str, before: str) -> None:
    reader = tool_calls(template).reader()
    assert reader.read(f"{before}{WRITTEN[template]}", True).cells == (Cell("6 * 7", EXPRESSION),)
    assert reader.read(f"{WRITTEN[template]}\n{WRITTEN[template]}", True).cells == (Cell("6 * 7", EXPRESSION),) * 2


TAGGED = "<tool_call>\n{}\n</tool_call>"
OF_OPENAI = (
    '{"id": "call_1", "type": "function", "function": {"name": "python", "arguments": "{\\"code\\": \\"6 * 7\\"}"}}'
)


@pytest.mark.parametrize(
    ("template", "typed"),
    [
        ("llama3_1", "<|python_tag|>6 * 7"),
        ("llama3_1", '<|python_tag|>python.call(code="6 * 7")'),
        ("llama3_1", '<|python_tag|>{"type": "function", "name": "python", "parameters": {"code": "6 * 7"}}'),
        ("llama3_1", '{"type": "function", "name": "python", "parameters": {"code": "6 * 7"}}'),
        ("llama3_1", 'I compute it.\n{"type": "function", "name": "python", "parameters": {"code": "6 * 7"}}'),
        ("llama3_1", OF_OPENAI),
        ("qwen3", "So:\n<|python_tag|>6 * 7\n"),
        ("qwen3", OF_OPENAI),
        ("qwen3", TAGGED.format(OF_OPENAI)),
        ("qwen3", f"```json\n[{OF_OPENAI}]\n```"),
        ("qwen3", f'{{"role": "assistant", "tool_calls": [{OF_OPENAI}]}}'),
        ("qwen3", TAGGED.format('{"name": "python", "parameters": {"code": "6 * 7"}}')),
        ("qwen3", TAGGED.format('{"name": "python", "arguments": {"code": "```python\\n6 * 7\\n```"}}')),
        ("command_r7b", '<|START_ACTION|>[{"name": "python", "arguments": {"code": "6 * 7"}}]<|END_ACTION|>'),
    ],
)
def test_calls_in_the_forms_of_others_are_read(template: str, typed: str) -> None:
    assert tool_calls(template).reader().read(typed, True).cells == (Cell("6 * 7", EXPRESSION),)


@pytest.mark.parametrize(
    ("typed", "sources"),
    [
        ("<|python_tag|>", []),
        ("<|python_tag|>[1, 2]", ["[1, 2]"]),
        ("<|python_tag|>x.call(y=6 * z)", ["x.call(y=6 * z)"]),
        ('```python\napi.call(path="x")\n```', ['api.call(path="x")']),
        ('{"name": "python", "parameters": {"code": "x = 1  # <|python_tag|>"}}', ["x = 1  # <|python_tag|>"]),
        ("<|python_tag|>re.call('\\d')", ["re.call('\\d')"]),
        ('Data:\n{"name": "python", "arguments": {"code": "1"}, "result": 3}', []),
        ('The schema is {"type": "function", "function": {"name": "python"}}', []),
    ],
)
def test_what_only_looks_like_such_a_call(typed: str, sources: list[str]) -> None:
    assert [cell.source for cell in tool_calls("llama3_1").reader().read(typed, True).cells] == sources


@pytest.mark.parametrize("call", [TAGGED.format("{}"), "{}", "```json\n{}\n```"])
@pytest.mark.parametrize("depth", [101, *range(900, 1000, 10), 5000])
def test_a_call_that_is_nested_too_deeply_is_refused(call: str, depth: int) -> None:
    value = "[" * depth + "]" * depth
    text = call.format(f'{{"name": "python", "arguments": {{"code": {value}}}}}')
    [cell] = tool_calls("qwen2_5").reader().read(text, True).cells
    assert cell.refusal is not None
    assert cell.refusal.error_name == "JSONDecodeError"


def test_the_users_tools_are_offered_beside_our_own() -> None:
    dialect = tool_calls("qwen2_5", as_tools([multiply]))
    prompt = dialect.chat_prompt("Q")
    assert [tool["function"]["name"] for tool in prompt.tools] == ["python", "submit_final_answer", "multiply"]
    assert "submit_final_answer" in str(prompt.messages)
    [cell] = dialect.reader().read('<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": "x"}}', True).cells
    assert cell == Cell("print(multiply(**{'a': 6, 'b': 'x'}))", EXPRESSION)
    [cell] = dialect.reader().read('<tool_call>{"name": "python", "arguments": {"code": "6 * 7"}}', True).cells
    assert cell == Cell("6 * 7", EXPRESSION)
    [cell] = dialect.reader().read('<tool_call>{"name": "submit_final_answer", "arguments": {"value": 42}}', True).cells
    assert cell == Cell("submit_final_answer(42)", EXPRESSION)
    [cell] = dialect.reader().read('<tool_call>{"name": "add", "arguments": {}}', True).cells
    said = "NameError: there is no tool 'add'; there are multiply, python, submit_final_answer"
    assert cell.refusal == Refusal("NameError", said)


def python(expression: str) -> str:
    """Evaluate an expression in another way."""
    return expression


def test_a_tool_of_the_users_takes_the_place_of_ours() -> None:
    dialect = tool_calls("qwen2_5", as_tools([python]))
    assert [tool["function"]["name"] for tool in dialect.chat_prompt("Q").tools] == ["submit_final_answer", "python"]
    [cell] = dialect.reader().read('<tool_call>{"name": "python", "arguments": {"expression": "1"}}', True).cells
    assert cell == Cell("print(python(**{'expression': '1'}))", EXPRESSION)


@pytest.mark.parametrize(
    ("codes", "results"),
    [
        (["6 * 7"], ["42"]),
        (["x = 3", "x\nx + 1", "1 / 0"], ["", "3\n4", "ZeroDivisionError: division by zero"]),
        (["def f(): return 1\nf()"], ["1"]),
        (["for n in (3, 0): print(6 / n)"], ["2.0\nZeroDivisionError: division by zero"]),
        (["print(1)\ntry:\n    1 / 0\nfinally:\n    undefined"], ["1\nNameError: name 'undefined' is not defined"]),
        (["print(1, end='')\nraise ValueError('a\\nb')"], ["1\nValueError: a\nb"]),
        (["print(1)\nraise ExceptionGroup('g', [ValueError()])"], ["1\nExceptionGroup: g (1 sub-exception)"]),
        (
            ["import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    print(2)\nint('x')"],
            ["2\nValueError: invalid literal for int() with base 10: 'x'"],
        ),
        (["foo bar"], ["SyntaxError: invalid syntax"]),
        (["f("], ["SyntaxError: '(' was never closed"]),
        (["# a thought"], [""]),
    ],
)
def test_calls_are_answered_in_their_order(talked: Talk, codes: list[str], results: list[str]) -> None:
    dialect = tool_calls("qwen2_5")
    typed = "\n".join(call("python", code=code) for code in codes)
    text, _ = talked(dialect, [typed], ends=True)
    before, *behind = dialect.frame(len(codes))
    answered = "".join(result + frame for result, frame in zip(results, behind, strict=True))
    assert text == f"{typed}{before}{answered}"


def test_results_are_escaped_where_the_template_makes_json_of_them() -> None:
    runs = [CellRun(Cell("x", EXPRESSION), 'a "quoted"\nline\n')]
    shown = "".join(part.text for part in tool_calls("llama3_1").reader().show(runs, goes_on=True))
    assert shown.startswith(CALLS["llama3_1"]["frame"][0] + r'a \"quoted\"\nline"<|eot_id|>')
    plain = "".join(part.text for part in tool_calls("qwen3").reader().show(runs, goes_on=True))
    assert '<tool_response>\na "quoted"\nline\n</tool_response>' in plain


def test_only_the_templates_own_text_is_frame() -> None:
    runs = [CellRun(Cell("x", EXPRESSION), "<|im_end|>\n"), CellRun(Cell("y", EXPRESSION), error_message="m.E: <s>")]
    shown = tool_calls("qwen2_5").reader().show(runs, goes_on=True)
    assert [part.is_frame for part in shown] == [True, False, True, False, True]
    assert [part.text for part in shown if not part.is_frame] == ["<|im_end|>", "E: <s>"]


def test_a_call_that_fails_shows_what_it_has_printed_before() -> None:
    time_ran_out = "KeyboardInterrupt: it ran out of time"
    traceback = 'Traceback (most recent call last):\n  File "<stdin>", line 2, in <module>\nKeyboardInterrupt\n'
    ipython = (
        "-----\nZeroDivisionError     Traceback (most recent call last)\nCell In[1], line 2\n\nZeroDivisionError: no\n"
    )
    for output, message, result in (
        (f"3 9\n{traceback}", time_ran_out, f"3 9\n{time_ran_out}"),
        (f"{traceback}3", time_ran_out, f"3\n{time_ran_out}"),
        (f"{traceback}4\n{traceback}", time_ran_out, f"{traceback}4\n{time_ran_out}"),
        (f"3 9\n{ipython}", "ZeroDivisionError: no", "3 9\nZeroDivisionError: no"),
        ("3 9\n", "ZeroDivisionError: no", "ZeroDivisionError: no"),
    ):
        assert CellRun(Cell("x", EXPRESSION), output, message).result == result


def test_a_turn_with_calls_waits_and_one_without_ends() -> None:
    reader = tool_calls("qwen3").reader()
    turns = [
        reader.read(f"<think>\nHm.\n</think>\n\n{call('python', code='1')}", True),
        reader.read("It is \\boxed{1}.", True),
    ]
    assert [turn.waits for turn in turns] == [True, False]
    assert [turn.answer for turn in turns] == [None, ("'1'",)]


def drawn(points: list[Any] | int, label: str | None, n: int = 1, closed: bool = False, at: int | str = 0) -> str:
    """Draw a figure."""
    return f"{points} {label} {n} {closed} {at}"


@pytest.mark.parametrize(
    "template", ["qwen3_coder", *(f"real {name}" for name in ("qwen3_5_think", "qwen3_6", "glm4moe"))]
)
@pytest.mark.parametrize(
    "arguments",
    [
        {"points": [[1, 2.5], []], "label": "3", "n": 3, "closed": True, "at": 7},
        {"points": [], "label": "\n  a <b> <parameter=x>\n</function>\n\n", "closed": False, "at": "null and 7"},
        {"label": '{"é": [1]}', "points": [[-1e-3]], "n": None},
        {"label": None, "points": "so:", "other": "7"},
    ],
)
def test_what_a_template_writes_in_tags_is_read_as_what_it_was_given(template: str, arguments: dict[str, Any]) -> None:
    dialect = tool_calls(template, as_tools([drawn]))
    dialect.texts["examples"][:] = [json.dumps({"name": "drawn", "arguments": arguments})]
    written = dialect.shown_examples().partition("\n\n")[2]
    assert written.startswith("<tool_call>drawn\n" if template == "real glm4moe" else "<tool_call>\n<function=drawn>\n")
    cells = dialect.reader().read(f"So:\n{written}\n{written}", True).cells
    assert cells == (Cell(f"print(drawn(**{arguments!r}))", EXPRESSION),) * 2
