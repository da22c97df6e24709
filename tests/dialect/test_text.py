"""The `text` dialect, and how an answer in prose is found in all dialects that have prose."""

from __future__ import annotations

from scripted import multiply

from repl_rl.dialect.prose import PlainTextDialect
from repl_rl.tools import as_tools


def test_nothing_is_shown_and_no_kernel_needed() -> None:
    dialect = PlainTextDialect()
    reader = dialect.reader()
    reader.read("```python\n1 / 0\n```\n<fn>1</fn>\n")
    assert reader.show((), goes_on=True) == ()
    assert (dialect.needs_kernel, dialect.setup) == (False, "")


def test_no_tools_are_presented_where_nothing_could_call_them() -> None:
    with_tools = PlainTextDialect(tools=as_tools([multiply]))
    assert with_tools.completion_prompt("What?") == PlainTextDialect().completion_prompt("What?")
    assert with_tools.chat_prompt("What?") == PlainTextDialect().chat_prompt("What?")
