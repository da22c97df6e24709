"""Makes nano: a Llama trained from scratch on sessions that were really run.

    build(Path("weights"), seed=0)
    build(Path("rlm"), seed=0, recipe=RECIPES["nano-rlm"])

Sessions are typed on training problems only, so no held-out problem is ever seen. The loss is next-token cross-entropy
on the typed tokens; the interpreter's text and the prompt are context. A seed gives the same weights, to the bit, on
the same machine with the same version of torch. They also depend on the number of threads, which is fixed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from random import Random

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from repl_rl.config import DialectConfig
from repl_rl.dialect import make_dialect
from repl_rl.models.nano import NANO_PATH
from studies.nano.sessions import (
    SessionRecord,
    chat_prompt_text,
    conventions,
    make_mixture,
    make_recursive,
    make_sessions,
)
from studies.nano.writers import CHAT_TEMPLATE, END_OF_TURN, START_OF_TURN

_TOKENIZER_SESSIONS = 4_000
_THREADS = 2
_MUON_RATE = 0.02
_ADAM_RATE = 3e-3
_WARMUP_STEPS = 50
_SORTED_AT_ONCE = 16
"""Batches."""
_IGNORED = -100
_TAGS = tuple(
    f"<{slash}{name}>" for name in ("fn", "fn_results", "fn_error", "tool_call", "tool_response") for slash in ("", "/")
)

END_OF_TEXT = "<|endoftext|>"
CONTEXT_TOKENS = 1024

_LINE_ENDINGS = (")\n", "):\n", "\n\n", ")\n\n", "\n\n\n")
_LINE_ENDING_REPEATS = 500
"""Sessions have few blocks and blank lines, so line endings common in code are added to the tokenizer's texts."""

_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Example:
    """A session in tokens; `is_typed` marks those that are learnt."""

    ids: torch.Tensor  # (T,)
    is_typed: torch.Tensor  # (T,)


def session_tokenizer(records: Sequence[SessionRecord]) -> PreTrainedTokenizerFast:
    """nano's: 640 tokens, of which the lines of the banner are some."""
    lines = _banner()
    texts = (segment.text.removeprefix("".join(lines)) for record in records for segment in record.segments)
    return train_tokenizer(texts, lines, 640)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is made.

    `steps` and `sessions` are counts. `make_sessions` takes a count and a seed. `start` is the checkpoint to start
    from, if any.
    """

    steps: int
    sessions: int
    make_sessions: Callable[[int, int], list[SessionRecord]]
    make_tokenizer: Callable[[Sequence[SessionRecord]], PreTrainedTokenizerFast] = session_tokenizer
    start: Path | None = None
    context_tokens: int = CONTEXT_TOKENS
    batch: int = 64
    """Sessions per step."""


def build(out: Path, seed: int = 0, recipe: Recipe | None = None) -> None:
    """Train nano, or what `recipe` says, and write the checkpoint to the folder `out`."""
    recipe = recipe or RECIPES["nano"]
    threads_before = torch.get_num_threads()
    torch.set_num_threads(_THREADS)
    try:
        torch.manual_seed(seed)
        records = recipe.make_sessions(recipe.sessions, seed)
        tokenizer = recipe.make_tokenizer(records[:_TOKENIZER_SESSIONS])
        tokenizer.model_max_length = recipe.context_tokens
        model = LlamaForCausalLM(model_config(tokenizer))
        if recipe.start is not None:
            begin_with(model, tokenizer, recipe.start)
        examples = [example_of(record, tokenizer) for record in records]
        batches = _batches(examples, recipe.batch, Random(f"{seed}/batches"))
        typed_tokens = sum(int(example.is_typed.sum()) for example in examples) / len(examples)
        _train(model, batches, recipe.steps, recipe.batch * typed_tokens)
    finally:
        torch.set_num_threads(threads_before)
    model.eval()
    model.generation_config.eos_token_id = _ends(tokenizer)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    # safetensors makes files that only their owner can read; an installed package is read by everybody.
    (out / "model.safetensors").chmod(0o644)


def _banner() -> list[str]:
    text = make_dialect(DialectConfig()).completion_prompt("").rpartition("\n")[0]
    return [f"{line}\n" for line in text.splitlines()]


def train_tokenizer(
    texts: Iterable[str],
    banner: Sequence[str],
    vocabulary_size: int,
    marks: Sequence[str] = (),
    chat_template: str | None = None,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with Qwen's splitting rule, so that newlines fuse as they do in Qwen's.

    It has at most `vocabulary_size` tokens: 256 bytes, the end of text, `marks` (special tokens), the lines of
    `banner`, and merges of `texts`. The banner's lines are tokens of their own because they begin every transcript and
    carry no information.

    `):` with the newline after it is one piece, as are `)` with a newline and runs of newlines; digits stand alone.
    Nothing is put in front of a text. The same texts in the same order give the same tokenizer.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(banner),
        special_tokens=[END_OF_TEXT, *marks],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(chain(texts, _LINE_ENDINGS * _LINE_ENDING_REPEATS), trainer)
    tokenizer.add_tokens([AddedToken(line, normalized=False) for line in banner])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
        **({} if chat_template is None else {"chat_template": chat_template}),
    )


def _chat_tokenizer(records: Sequence[SessionRecord]) -> PreTrainedTokenizerFast:
    """A tokenizer with tokens for the tags, and for the lines that begin each conversation and carry no information."""
    prompts = [chat_prompt_text(dialect, "") for dialect in conventions().values()]
    lines = [line for prompt in prompts for line in prompt.partition(END_OF_TURN)[0].splitlines()[1:]]
    known = [*_banner(), *lines, *_TAGS]
    frame = re.compile("|".join(map(re.escape, [*known, START_OF_TURN, END_OF_TURN])))
    texts = (frame.sub("", segment.text) for record in records for segment in record.segments)
    return train_tokenizer(texts, known, 768, (START_OF_TURN, END_OF_TURN), CHAT_TEMPLATE)


RECIPES = {
    "nano": Recipe(1300, 50_000, make_sessions),
    "nano-conventions": Recipe(400, 25_600, make_mixture, _chat_tokenizer, start=NANO_PATH),
    "nano-rlm": Recipe(300, 19_200, make_recursive, start=NANO_PATH),
}
"""By the model's name."""


def model_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=_ends(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def begin_with(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, start: Path) -> None:
    """Copy what another checkpoint has learnt: its layers, and the embeddings of the tokens that both have."""
    known = LlamaForCausalLM.from_pretrained(start).state_dict()
    ids, own_ids = AutoTokenizer.from_pretrained(start).get_vocab(), tokenizer.get_vocab()
    shared = sorted(ids.keys() & own_ids.keys())
    embeddings = model.state_dict()["model.embed_tokens.weight"]  # (V, D)
    embeddings[[own_ids[token] for token in shared]] = known["model.embed_tokens.weight"][
        [ids[each] for each in shared]
    ]
    model.load_state_dict({**known, "model.embed_tokens.weight": embeddings, "lm_head.weight": embeddings})


def _ends(tokenizer: PreTrainedTokenizerFast) -> int | list[int]:
    """What ends a text, and a turn of a conversation."""
    end: int = tokenizer.eos_token_id
    return end if tokenizer.chat_template is None else [end, tokenizer.convert_tokens_to_ids(END_OF_TURN)]


def example_of(record: SessionRecord, tokenizer: PreTrainedTokenizerFast) -> Example:
    """Each segment is encoded on its own, as in a rollout."""
    ids: list[int] = []
    is_typed: list[bool] = []
    for segment in record.segments:
        segment_ids = tokenizer.encode(segment.text, add_special_tokens=False)
        ids += segment_ids
        is_typed += [segment.sampled] * len(segment_ids)
    return Example(torch.tensor(ids), torch.tensor(is_typed))


def _train(model: LlamaForCausalLM, batches: Iterator[list[Example]], steps: int, scale_tokens: float) -> None:
    # Muon for the matrices inside the layers, with which copying is learnt in far fewer steps; AdamW for the rest.
    inner = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    rest = [parameter for parameter in model.parameters() if all(parameter is not each for each in inner)]
    optimizers = [
        torch.optim.Muon(inner, lr=_MUON_RATE, weight_decay=0.0),
        torch.optim.AdamW(rest, lr=_ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]

    def rate(step: int) -> float:
        """The share of the peak rate: a linear warm-up, then half a cosine down to a hundredth."""
        warmup = min(1.0, (step + 1) / _WARMUP_STEPS)
        return warmup * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))

    schedules = [LambdaLR(optimizer, rate) for optimizer in optimizers]
    for batch in islice(batches, steps):
        model.zero_grad()
        loss_of(model, batch, scale_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedules):
            each.step()


def _batches(examples: Sequence[Example], size: int, rng: Random) -> Iterator[list[Example]]:
    """Endless batches. Sessions of similar length go together, because padding costs as much time as other tokens."""
    while True:
        order = rng.sample(range(len(examples)), len(examples))
        for start in range(0, len(order), _SORTED_AT_ONCE * size):
            chunk = sorted(order[start : start + _SORTED_AT_ONCE * size], key=lambda index: len(examples[index].ids))
            batches = [chunk[first : first + size] for first in range(0, len(chunk), size)]
            rng.shuffle(batches)
            yield from ([examples[index] for index in batch] for batch in batches)


def loss_of(model: LlamaForCausalLM, batch: Sequence[Example], scale_tokens: float) -> torch.Tensor:
    """Cross-entropy summed over the typed tokens of a batch, in nats, divided by `scale_tokens`.

    The scale is the same for all batches: a mean within each would weigh a token by how short its session is, and nano
    would guess far more often than it was shown. Padding comes last, where no token attends to it.
    """
    ids = pad_sequence([example.ids for example in batch], batch_first=True)  # (B, T)
    is_typed = pad_sequence([example.is_typed for example in batch], batch_first=True)  # (B, T)
    labels = ids.masked_fill(~is_typed, _IGNORED)
    logits = model(input_ids=ids, use_cache=False).logits  # (B, T, V)
    total = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED, reduction="sum")
    return total / scale_tokens
