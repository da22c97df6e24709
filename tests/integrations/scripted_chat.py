"""A chat model of a few thousand weights whose replies follow a script, for TRL's own generation, tool loop and loss.

The model runs for every token and TRL's `generate` samples from it: only the distribution is forced, by a processor of
logits. The template is TRL's copy of Qwen3's, which its parser of tool calls and its training template know.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList, Qwen3Config, Qwen3ForCausalLM
from trl.chat_template_utils import qwen3_chat_template

from repl_rl.models.nano import NANO_PATH

END = "<|im_end|>"
Script = Callable[[int, Sequence[str]], str]
"""From the row of a batch and the tool answers that it has seen to its next reply."""


def make_tokenizer() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(NANO_PATH)
    tokenizer.add_special_tokens(
        {"eos_token": END, "pad_token": "<|pad|>", "additional_special_tokens": ["<|im_start|>"]}
    )
    tokenizer.chat_template = qwen3_chat_template
    return tokenizer


def call(code: str) -> str:
    """A reply that calls `python`, as Qwen3 writes it."""
    return f'<tool_call>\n{{"name": "python", "arguments": {json.dumps({"code": code})}}}\n</tool_call>'


class ScriptedQwen(Qwen3ForCausalLM):
    """Small, random, and told what to say."""

    tokenizer: Any
    script: Script

    def generate(self, input_ids: torch.Tensor, **settings: Any) -> torch.Tensor:
        replies = [self._reply(row, ids) for row, ids in enumerate(input_ids)]
        force = LogitsProcessorList([_Force(replies, input_ids.shape[1], self.tokenizer.pad_token_id)])
        return super().generate(input_ids=input_ids, logits_processor=force, **settings)

    def _reply(self, row: int, ids: torch.Tensor) -> list[int]:
        seen = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", self.tokenizer.decode(ids), re.DOTALL)
        return self.tokenizer.encode(self.script(row, seen) + END, add_special_tokens=False)


class _Force(LogitsProcessor):
    def __init__(self, replies: Sequence[Sequence[int]], behind: int, pad_id: int) -> None:
        self._replies, self._behind, self._pad_id = replies, behind, pad_id

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        place = input_ids.shape[1] - self._behind
        forced = torch.full_like(scores, -torch.inf)
        for row, reply in enumerate(self._replies):
            forced[row, reply[place] if place < len(reply) else self._pad_id] = 0.0
        return forced


def make_model(tokenizer: Any, script: Script) -> ScriptedQwen:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = ScriptedQwen(config)
    model.tokenizer, model.script = tokenizer, script
    return model
