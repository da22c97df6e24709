"""The chat template of `nano-conventions`: ChatML, tools as JSON schemas, calls and results in Hermes' tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'tool' %}
{{- '<tool_response>' + message.content + '</tool_response>' }}
{%- else %}
{{- message.content }}
{%- endif %}
{%- if loop.first and tools %}
{%- for tool in tools %}
{{- '\\n' + tool | tojson }}
{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
"""Tools stand at the end of the first message."""


@cache
def _renderer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=CHAT_TEMPLATE)


def render_chat(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], opens: bool) -> str:
    """A conversation as the model reads it, before there is a tokenizer."""
    text: str = _renderer().apply_chat_template(
        list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=opens
    )
    return text
