"""Chat templates as tokenizers render them. Those in `templates/` follow the public ones of their models, shortened to
what matters for tools; those of `REAL` come with TRL.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trl
from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from repl_rl.config import DialectConfig
from repl_rl.dialect.tool_call import ToolCallDialect
from repl_rl.errors import ModelError

TEMPLATES = Path(__file__).parent / "templates"
CALL_TEMPLATES = ["llama3_1", "mistral", "no_end", "qwen2_5", "qwen3", "qwen3_coder"]
WITH_HEADERS = ["nemotron_nano_v2", "command_r7b", "seed_oss", "phi4_mini"]
"""Templates that have more in front of a call than its mark, or bars in the mark."""
REAL = Path(trl.__file__).parent / "chat_templates"


class Chat:
    """A chat template as a model's tokenizer renders it."""

    def __init__(self, name: str) -> None:
        folder = REAL if name.startswith("real ") else TEMPLATES
        self._source = (folder / f"{name.removeprefix('real ')}.jinja").read_text()

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


def tool_calls(template: str, tools: Sequence[Any] = ()) -> ToolCallDialect:
    """The dialect `tool_call` for a model with this template."""
    return ToolCallDialect(DialectConfig(name="tool_call"), tools, Chat(template))


def call(name: str, **arguments: str) -> str:
    """A call as Qwen2.5 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
