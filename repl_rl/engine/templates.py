"""Conversations of all shapes in a stranger's chat template, as transformers renders them.

It loads transformers, and is only called in a confined process (`repl_rl.engine.strangers`).
"""

from itertools import product
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

_CODE = "x = 1\nprint(x)\n"
_LONG = _CODE * 500
_TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run code.",
        "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    },
}
_SYSTEM = {"role": "system", "content": "Be brief."}
_USER = {"role": "user", "content": "What is 1+2?"}
_CALL = {"type": "function", "function": {"name": "run", "arguments": {"code": _CODE}}}
_CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [_USER],
    [_SYSTEM, _USER],
    [_SYSTEM, _USER, {"role": "assistant", "content": _CODE}, _USER],
    [_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, {"role": "tool", "content": "3\n"}],
    [{"role": "user", "content": _LONG}, {"role": "assistant", "content": _LONG}],
)


def render(template: str, variables: dict[str, Any]) -> None:
    """Render all conversations, with and without tools. `variables` are special tokens and a user's template arguments.

    A conversation that the template refuses is passed over: no rollout would get to render it.
    """
    for conversation, tools, opens in product(_CONVERSATIONS, (None, [_TOOL]), (True, False)):
        try:
            render_jinja_template([conversation], tools, None, template, False, False, opens, **variables)
        except MemoryError:  # the process's limit, which fails the trial
            raise
        except Exception:  # noqa: BLE001 - templates raise all sorts
            continue
