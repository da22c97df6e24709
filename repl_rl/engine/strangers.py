"""Tokenizers and chat templates that strangers wrote: tried in a confined process before they run in this one.

A tokenizer of 15 kB can spell a token in gigabytes, or panic; a template can loop for ever. The trial does what
rollouts do: it spells each token, encodes and decodes text, and renders conversations of the usual shapes, one of them
long. An ordinary exception does not fail the trial: the caller meets it again, and its libraries describe it better.

Not covered: a template that does what this one does not try, such as a loop at the fifth turn alone. It still ends with
the command that renders it (`repl_rl.utils.processes`).
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from repl_rl.engine.token_bytes import bytes_of_tokens
from repl_rl.errors import ModelError
from repl_rl.files import read_file
from repl_rl.utils.confined import compute

TOKENIZER_CPU_S = 30
"""A vocabulary of 262,000 tokens takes two or three."""
TEMPLATE_CPU_S = 5
"""Templates take milliseconds."""
_CODE = 'x = f("a")\n\nfor i in y:\n    pass\n'
_LONG = _CODE * 400


def require_tame(tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> None:
    """Try a loaded tokenizer of transformers and its chat templates.

    Raises ModelError if one of them takes too much time or memory, or panics.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        trial = compute(f"{__name__}:spelled", [backend.to_str(), True], TOKENIZER_CPU_S)
        if trial.is_ended:
            raise ModelError(f"this model's tokenizer can't be used: {trial.problem}; take another checkpoint")

    templates = tokenizer.chat_template or {}
    if not isinstance(templates, dict):
        templates = {"default": templates}
    variables = {**tokenizer.special_tokens_map, **(template_kwargs or {})}
    for template in templates.values():
        trial = compute("repl_rl.engine.templates:render", [template, variables], TEMPLATE_CPU_S)
        if trial.is_ended:
            raise ModelError(f"this model's chat template can't be used: {trial.problem}; take another checkpoint")


def spelled_file(path: str) -> list[str]:
    """Called in the confined process: the text of each id of the vocabulary in a `tokenizer.json`."""
    return spelled(read_file(Path(path)).decode("utf-8"), False)


def spelled(data: str, encodes: bool) -> list[str]:
    """Called in the confined process: the text of each id of a tokenizer that is written in JSON.

    With `encodes`, it encodes and decodes as rollouts do as well, and returns nothing.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(data)

    def decode(ids: list[int], skip_special_tokens: bool, **_: Any) -> str:
        text: str = tokenizer.decode(ids, skip_special_tokens)
        return text

    # What is needed of a transformers tokenizer, without transformers, which would load torch.
    as_transformers = SimpleNamespace(
        backend_tokenizer=tokenizer,
        get_vocab=tokenizer.get_vocab,
        added_tokens_decoder=tokenizer.get_added_tokens_decoder(),
        decode=decode,
    )
    token_bytes = bytes_of_tokens(as_transformers)
    if not encodes:
        return [token.decode("utf-8", "backslashreplace") for token in token_bytes]
    for text in (_CODE, _LONG, "a" * len(_LONG)):
        tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids)
    return []
