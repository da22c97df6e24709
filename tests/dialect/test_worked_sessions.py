"""The worked sessions that models are shown: each is what its dialect and a real kernel make of what is typed in it."""

import re

import pytest
from dialect.chats import tool_calls
from dialect.conftest import Talk
from dialect.talk import turns_of

from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect

OUTPUTS = {
    "python": r"(?m)^(?!>>>|\.\.\.).*\n|^(?:>>>|\.\.\.)",
    "ipython": r"(?m)^(?!In \[\d+\]:| *\.\.\.:).*\n|^(?:In \[\d+\]:| *\.\.\.:)",
    "fenced": r"```output\n(?s:.*?)```\n",
    "inline": r"<fn_results>.*?</fn_results>",
}
"""What stands in a session without having been typed."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_worked_session_is_what_the_interpreter_shows(name: str, talked: Talk) -> None:
    dialect = make_dialect(DialectConfig(name=name))
    for example in dialect.texts["examples"]:  # type: ignore[attr-defined]
        typed = re.sub(OUTPUTS[name], "", example["session"])
        text, rans = talked(dialect, turns_of(typed, dialect.stops.decode()))
        opened = getattr(dialect, "first_prompt", "")
        assert opened + text == example["session"]
        assert rans[-1].answer is not None or "Answer: " in typed


def test_the_calls_in_a_worked_session_are_written_as_the_template_does(talked: Talk) -> None:
    dialect = tool_calls("qwen2_5")
    dialect.texts["examples"].append('{"name": "no call"}\n{"name": broken}')
    assert dialect.shown_examples().endswith('\n{"name": "no call"}\n{"name": broken}')
    del dialect.texts["examples"][1:]
    shown = dialect.shown_examples()
    call, result, submission = re.split(r"\nThe result is (.*)\.\n", shown.partition("\n<tool_call>")[2])
    text, [ran] = talked(dialect, [f"<tool_call>{call}"], True)
    assert f"\n{result}\n" in text
    assert ran.error_name is None
    assert talked(dialect, [submission], True)[1][0].answer == (repr(result),)


@pytest.mark.parametrize("name", [*OUTPUTS, "text"])
def test_chat_models_are_shown_all_of_them_and_base_models_none(name: str) -> None:
    """Unless a number is given; and never in the assistant's turn, which would begin with somebody else's problem."""
    dialect = make_dialect(DialectConfig(name=name))
    questions = [example["question"] for example in dialect.texts["examples"]]  # type: ignore[attr-defined]
    chat = dialect.chat_prompt("Six?")
    assert [question in chat.messages[0]["content"] for question in questions] == [True] * len(questions)
    assert not any(question in chat.prefill or question in dialect.completion_prompt("Six?") for question in questions)
    assert (
        questions[0]
        not in make_dialect(DialectConfig(name=name, examples=0)).chat_prompt("Six?").messages[0]["content"]
    )
    assert questions[0] in make_dialect(DialectConfig(name=name, examples=1)).completion_prompt("Six?")
