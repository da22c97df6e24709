"""Log-probabilities of typed tokens, and of nothing else: no padding, no interpreter text through the LM head.

    forward = TypedForward.open(model, device)                               # None if the model can't be packed
    logprobs, entropy = forward(model, forward.pack(ids, attention, typed))  # (K,), (K,): one per typed token

The loss itself is TRL's: it takes these values, spread over (B, T), instead of its own. `pack` turns a padded batch
into one row of real tokens, and says where in it typed tokens are predicted. The model uses the forward pass that TRL
gives its models (`add_fused_lm_head`), so it works inside the wrappers of DDP, FSDP and PEFT, and projects in TRL's
tiles. What this module adds is the row without padding, and the selection of the hidden states that predict a typed
token, the only ones that reach the head.

What a sequence has in common with one before it, from its first token on, is in the row once: the prompt of a group,
the worked sessions in all prompts, what the branches of a tree go on from. The values and the gradient stay the same,
but for dropout, which is drawn once for it. Flash attention computes each sequence whole.

Attention over several sequences in a single row, each of which sees only itself and what it shares, is registered with
transformers under `PACKED_ATTENTION`. A call with `sequence_lengths` in half precision on a GPU is one call of torch's
kernel for sequences of various lengths. Elsewhere, each sequence runs through torch's causal kernel, without a mask;
what is shared, and a sliding window that is shorter than a sequence, become a mask. Every other call is transformers'
own `sdpa`.

B batch, S prompt and completion tokens, T completion tokens, N tokens in the row, K typed tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from repl_rl.utils.distributed import gather, is_main_process


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences one after another. Each ends before its last typed token, because no later token predicts a typed one.

    A sequence without typed tokens is left out. If no sequence has any, a single token stays, so that an empty loss
    still has a gradient (of zero) in every process.
    """

    ids: torch.Tensor
    """(1, N)"""
    positions: torch.Tensor
    """(1, N), from 0 in each sequence."""
    lengths: tuple[int, ...]
    """How many tokens of each sequence are its own; their sum is N."""
    shared: tuple[torch.Tensor, ...]
    """For each sequence, where in the row the tokens before its own are: they are those of sequences before it."""
    at: torch.Tensor
    """(K,): indices into the row whose next token is a typed one."""
    targets: torch.Tensor
    """(K,): the typed tokens themselves."""
    offsets: torch.Tensor
    """(K,): where the values of the typed tokens go in a flattened (B, T)."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, with what it shares."""
        return max(len(before) + own for before, own in zip(self.shared, self.lengths, strict=True))

    @property
    def bounds(self) -> torch.Tensor:
        """(sequences + 1,), int32: where the own tokens of each begin, and the end."""
        return self._bounds(self.lengths)

    @property
    def seen(self) -> torch.Tensor:
        """(M,): where in the row the tokens are that a sequence sees, those before its own first, for all of them."""
        own = torch.arange(sum(self.lengths), device=self.ids.device).split(self.lengths)
        return torch.cat([part for both in zip(self.shared, own, strict=True) for part in both])

    @property
    def seen_bounds(self) -> torch.Tensor:
        """(sequences + 1,), int32: where those that each sees begin in `seen`, and the end."""
        return self._bounds(len(before) + own for before, own in zip(self.shared, self.lengths, strict=True))

    def _bounds(self, counts: Iterable[int]) -> torch.Tensor:
        ends = torch.tensor((0, *counts), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.ids.device)

    def spread(self, values: torch.Tensor, shape: torch.Size | tuple[int, int]) -> torch.Tensor:
        """One value per typed token as (B, T), zero elsewhere."""
        flat = values.new_zeros(shape[0] * shape[1])
        return flat.index_put((self.offsets,), values).view(shape)


_LEAST_SHARED = 1 / 8
"""Of a sequence, or it is computed as a whole: torch's causal kernel does half the work of one with a mask."""
_LONGEST_SHARING = 8192
"""Longer sequences are computed as a whole: the mask has a byte for each pair of tokens."""


def pack(ids: torch.Tensor, attention_mask: torch.Tensor, typed_mask: torch.Tensor, *, shares: bool = True) -> Packed:
    """`ids` and `attention_mask` (B, S), with no padding between real tokens; `typed_mask` (B, T), S >= T + 1.

    Without `shares`, each sequence is there as a whole.

    Raises ValueError for a typed token without a real token before it to predict it.
    """
    width = typed_mask.size(1)
    prompt = ids.size(1) - width
    typed = torch.zeros_like(attention_mask, dtype=torch.bool)  # (B, S)
    typed[:, prompt:] = typed_mask.bool()
    typed &= attention_mask.bool()
    if prompt < 1 or bool((typed[:, 1:] & ~attention_mask[:, :-1].bool()).any()) or bool(typed[:, 0].any()):
        raise ValueError("a typed token needs a token before it that predicts it: prompts can't be empty")
    if not bool(typed.any()):  # the second real token of the first row stands in
        typed[0, int(attention_mask[0].argmax()) + 1] = True
    kept, rows = computed(ids, attention_mask, typed)
    positions = kept.cumsum(dim=1) - 1  # (B, S)
    common, index = _laid_out(rows, ids, shares)
    own = kept & (positions >= common[:, None])
    lengths = own.sum(dim=1).tolist()
    row, at = typed[:, 1:].nonzero(as_tuple=True)  # the token at `at + 1` is typed
    return Packed(
        ids=ids[own][None],
        positions=positions[own][None],
        lengths=tuple(length for length in lengths if length),
        shared=tuple(
            offsets[:count] for offsets, count, length in zip(index, common.tolist(), lengths, strict=True) if length
        ),
        at=index[row, positions[row, at]],
        targets=ids[row, at + 1],
        offsets=row * width + (at + 1 - prompt).clamp(min=0),
    )


def computed(
    ids: torch.Tensor, attention_mask: torch.Tensor, typed: torch.Tensor
) -> tuple[torch.Tensor, list[np.ndarray]]:
    """Of rows (B, S): which tokens have to be computed, those before the last typed one, and their ids, of each row."""
    column = torch.arange(ids.size(1), device=ids.device)
    last = torch.where(typed, column, 0).amax(dim=1, keepdim=True)  # (B, 1)
    kept = attention_mask.bool() & (column < last)  # (B, S)
    return kept, [row[each].numpy() for row, each in zip(ids.cpu(), kept.cpu(), strict=True)]


def _shared(rows: Sequence[np.ndarray], shares: bool) -> np.ndarray:
    """(B, B): how many tokens of a row, the second index, are not computed again if the first is before it."""
    padded = np.full((len(rows), max(map(len, rows)) + 1), -1)
    for place, ids in zip(padded, rows, strict=True):
        place[: len(ids)] = ids
    shared = np.zeros((len(rows), len(rows)), dtype=int)
    for number, length in enumerate(map(len, rows)):
        if shares and 0 < length <= _LONGEST_SHARING:
            differs = padded[:, : length + 1] != padded[number, : length + 1]
            differs[:, length] = True
            count = differs.argmax(axis=1)
            shared[:, number] = np.where(count >= _LEAST_SHARED * length, count, 0)
    return shared


def _laid_out(rows: Sequence[np.ndarray], ids: torch.Tensor, shares: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,): how many tokens a row has in common with one before it. (B, S): where in the packed row its tokens are."""
    common = torch.zeros(len(ids), dtype=torch.long)
    index = torch.zeros(ids.shape, dtype=torch.long)
    shared = np.triu(_shared(rows, shares), 1)  # by rows before it
    end = 0  # of the packed row, so far
    for number, row in enumerate(rows):
        # The row's beginning is where the row before it that shares most has it.
        earlier = int(shared[:, number].argmax())
        start = int(shared[earlier, number])
        common[number] = start
        index[number, :start] = index[earlier, :start]
        own = len(row) - start
        index[number, start : len(row)] = torch.arange(end, end + own)
        end += own
    return common.to(ids.device), index.to(ids.device)


def divide(
    rows: Sequence[np.ndarray], most: int, *, shares: bool, agreed: Callable[[int], int] = int
) -> list[list[int]]:
    """Divides `rows` of token ids into passes: the indices of the rows of each pass.

    A pass has at most `most` tokens, unless a single row has more. First-fit decreasing decides how many passes there
    are; a row joins the pass with which it shares most tokens. Then the largest pass is made as small as it can be with
    that many. Rows without tokens are in no pass. `agreed` turns our number of passes into that of all processes, so a
    process with fewer has empty ones.
    """
    lengths = np.array([len(row) for row in rows])
    common = _shared(rows, shares)
    longest_first = [int(row) for row in np.argsort(-lengths, kind="stable") if lengths[row]]

    def passes_of(room: int) -> list[list[int]]:
        """First-fit decreasing, where a pass has room for so many tokens."""
        passes: list[list[int]] = [[] for _ in longest_first]
        tokens = np.zeros(len(longest_first))  # of each pass
        shared = np.zeros((len(longest_first), len(rows)))  # how much of each row a pass has already
        for row in longest_first:
            added = lengths[row] - shared[:, row]
            fits = (tokens + added <= room) | (tokens == 0)
            best = int(np.where(fits, added, np.inf).argmin())
            passes[best].append(row)
            tokens[best] += added[best]
            shared[best] = np.maximum(shared[best], common[row])
        return [rows_of_pass for rows_of_pass in passes if rows_of_pass]

    count = max(1, agreed(len(passes_of(most))))
    # The least room with which there are no more passes than that, by bisection.
    too_little, enough = 0, most
    while enough - too_little > 1:
        room = (too_little + enough) // 2
        if len(passes_of(room)) <= count:
            enough = room
        else:
            too_little = room
    passes = passes_of(enough)
    return passes + [[]] * (count - len(passes))


PACKED_ATTENTION = "repl_rl_packed"
_GROUPED = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
"""Before torch 2.13, the kernel took groups of heads without being told."""
_FLASH_WIDEST = 256
"""Of a head."""


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sequence_lengths: tuple[int, ...] | None = None,
    sequence_shared: tuple[torch.Tensor, ...] = (),
    sequence_seen: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """`query` (1, H, N, D), `key` and `value` with as many heads or fewer; returns (1, N, H, D)."""
    if sequence_lengths is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout, scaling, sliding_window=sliding_window, **kwargs
        )
    dtype = _computed_in(query.dtype)
    if sequence_seen is not None and not dropout and _kernel_takes(query.device, dtype, query.size(-1)):
        query, key, value = (states[0].transpose(0, 1).to(dtype) for states in (query, key, value))  # (N, H, D)
        if len(sequence_seen) > len(query):  # something is shared
            key, value = (states.index_select(0, sequence_seen) for states in (key, value))
        attended = varlen_attn(
            query,
            key,
            value,
            kwargs["cu_seq_lens_q"],
            kwargs["cu_seq_lens_k"],
            kwargs["max_length_q"],
            kwargs["max_length_k"],
            scale=scaling,
            window_size=(sliding_window - 1 if sliding_window else -1, 0),  # to the end of what each sequence sees
            **_GROUPED,
        )
        return attended[None], None
    ends = [len(before) + own for before, own in zip(sequence_shared, sequence_lengths, strict=True)]
    size = 1 << (max(ends) - 1).bit_length()
    window = min(size, sliding_window or size)
    is_masked = [end > min(own, window) for end, own in zip(ends, sequence_lengths, strict=True)]
    is_grouped = query.size(1) != key.size(1)
    if is_grouped and query.is_cuda and (query.dtype == torch.float32 or any(is_masked)):
        # torch's kernels that keep no matrix take neither float32 nor a mask with groups of heads
        key, value = (each.repeat_interleave(query.size(1) // each.size(1), dim=1) for each in (key, value))
        is_grouped = False
    parts = zip(*(states.split(sequence_lengths, dim=2) for states in (query, key, value)), strict=True)
    attended = [
        scaled_dot_product_attention(
            query_part,
            _with_shared(key, before, key_part),
            _with_shared(value, before, value_part),
            attn_mask=_band(size, window, query.device)[len(before) : end, :end] if masked else None,
            dropout_p=dropout,
            is_causal=not masked,
            scale=scaling,
            enable_gqa=is_grouped,
        )
        for (query_part, key_part, value_part), before, end, masked in zip(
            parts, sequence_shared, ends, is_masked, strict=True
        )
    ]
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    """The type in which states of this one are attended to on a GPU."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else dtype


def _kernel_takes(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether torch's kernel for sequences of various lengths runs with such heads."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    is_size_taken = head_size <= _FLASH_WIDEST and head_size % 8 == 0
    return is_size_taken and torch.cuda.get_device_capability(device) >= (8, 0)


def _with_shared(states: torch.Tensor, before: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """(1, H, before + own, D)"""
    return torch.cat([states.index_select(2, before), own], dim=2) if len(before) else own


@lru_cache(maxsize=2)
def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """(length, length). Kept, because every layer of every pass asks for it."""
    every = torch.ones(length, length, dtype=torch.bool, device=device)
    return every.tril() & every.triu(1 - window)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)


_AT = "typed_at"
"""The argument that tells the backbone's hooks where typed tokens are predicted."""
_PROBE_LENGTHS, _PROBE_SHARED = (7, 3, 5), 2
_CALLS = {True: "one call for all sequences of a row", False: "a call for each sequence of a row"}
_PROBE_SHARE = 0.1
"""The largest error of packed passes, as a share of the error where sequences see one another. That one is 1.7 on nano
and 10 on Gemma 3 270M, where rounding makes 1.1e-4 in float32. In bfloat16 both grow with the model."""

logger = logging.getLogger(__name__)


class TypedForward:
    """Runs models of one architecture; made by `open`."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._at: torch.Tensor | None = None
        config = base_of(model).config
        self.is_flash = config._attn_implementation.startswith("flash")
        dtype = _computed_in(next(model.parameters()).dtype)
        is_taken = any(_kernel_takes(device, dtype, size) for size in _head_sizes(model))
        self.is_one_call = self.is_flash or all(gather([is_taken]))
        """Whether the sequences of a row are attended to in one call (with heads of several sizes, in layers whose
        heads the kernel takes), rather than in one for each of them."""
        # a router's loss takes a mask of the padding, and there is none
        has_router = hasattr(config.get_text_config(), "output_router_logits")
        self._routing = {"output_router_logits": False} if has_router else {}
        backbone = base_of(model).base_model
        self._hooks = (
            backbone.register_forward_pre_hook(self._take_positions, with_kwargs=True),
            backbone.register_forward_hook(self._select),
        )

    @classmethod
    def open(cls, model: Any, device: torch.device) -> TypedForward | None:
        """For a model with TRL's fused head that computes on `device`: other devices have other kernels. Returns None
        if its passes can't be packed. Logs the reason for that, and for a call for each sequence where the kernel runs.

        All processes have to call this together, and take the same path: what fails in one of them none takes. Not
        covered: a kernel that raises in some processes and not in others, while FSDP gathers weights for a pass of all.
        """
        before = base_of(model).config._attn_implementation
        if before not in ("sdpa", PACKED_ATTENTION, "flash_attention_2", "flash_attention_3"):
            _warn_of_padding(f"for its attention is {before!r}, and packed rows need sdpa or flash attention")
            return None
        if any(DynamicCache(config=base_of(model).config).is_linear):
            _warn_of_padding("for it keeps recurrent states, which would run on from one sequence into the next")
            return None
        forward = cls(model, device)
        if before == "sdpa":
            base_of(model).set_attn_implementation(PACKED_ATTENTION)
        reason = _of_any(forward._disagreement(model, device))
        if reason is not None and forward.is_one_call and not forward.is_flash:
            if is_main_process():
                logger.warning(
                    "attention takes a call for each sequence of a row, which is slow: torch's kernel for all of them "
                    "can't be used with this model, %s",
                    reason,
                )
            forward.is_one_call = False
            reason = _of_any(forward._disagreement(model, device))
        if reason is None:
            if is_main_process():
                logger.info("rows are packed; attention takes %s", _CALLS[forward.is_one_call])
            return forward
        for hook in forward._hooks:
            hook.remove()
        base_of(model).set_attn_implementation(before)
        _warn_of_padding(reason)
        return None

    def pack(self, ids: torch.Tensor, attention_mask: torch.Tensor, typed_mask: torch.Tensor) -> Packed:
        """A batch as the model can take it, see `pack`."""
        return pack(ids, attention_mask, typed_mask, shares=not self.is_flash)

    def __call__(self, model: Any, packed: Packed) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probability of each typed token in nats, and the entropy there if the head computes it: (K,) each."""
        output = model(
            input_ids=packed.ids,
            position_ids=packed.positions,
            # None for flash attention, which uses the bounds; transformers keeps a four-dimensional mask as it is
            attention_mask=None
            if self.is_flash
            else torch.ones(1, 1, 1, 1, dtype=torch.bool, device=packed.ids.device),
            sequence_lengths=packed.lengths,
            sequence_shared=packed.shared,
            sequence_seen=packed.seen if self.is_one_call else None,
            cu_seq_lens_q=packed.bounds,  # the names of this and the next three are transformers'
            cu_seq_lens_k=packed.seen_bounds,
            max_length_q=max(packed.lengths),
            max_length_k=packed.longest,
            shift_labels=packed.targets[None],
            fused_lm_head=True,
            **{_AT: packed.at},
            **self._routing,
        )
        return output.log_probs[0], None if output.entropy is None else output.entropy[0]

    def _take_positions(self, backbone: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._at = kwargs.pop(_AT, None)
        return args, kwargs

    def _select(self, backbone: Any, args: Any, output: Any) -> Any:
        if self._at is not None:
            output.last_hidden_state = output.last_hidden_state[:, self._at]  # (1, K, H)
            self._at = None
        return output

    def _disagreement(self, model: Any, device: torch.device) -> str | None:
        """What is wrong with packed passes of `model`; None if they agree with passes of one sequence at a time."""
        size = base_of(model).config.get_text_config().vocab_size
        width = max(_PROBE_LENGTHS)
        ids = (torch.arange(len(_PROBE_LENGTHS) * width).view(-1, width) * 7 % size).to(device)
        ids[-1, :_PROBE_SHARED] = ids[0, :_PROBE_SHARED]
        attention = (torch.arange(width) < torch.tensor(_PROBE_LENGTHS)[:, None]).long().to(device)
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                packed = self.pack(ids, attention, attention[:, 1:])
                found, _ = self(model, packed)
                rows = [ids[row : row + 1, :length] for row, length in enumerate(_PROBE_LENGTHS)]
                plain = torch.cat([model(input_ids=one, labels=one, fused_lm_head=True).log_probs[0] for one in rows])
                as_one = model(
                    input_ids=packed.ids, shift_labels=packed.targets[None], fused_lm_head=True, **{_AT: packed.at}
                )
        except Exception as error:  # noqa: BLE001 - a model that was not written for a packed row may raise anything
            return f"{type(error).__name__}: {error}"
        finally:
            model.train(was_training)
        apart = (found.float() - plain.float()).abs().max().item()
        if_seen = (as_one.log_probs[0].float() - plain.float()).abs().max().item()
        is_cast = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if is_cast else next(model.parameters()).dtype
        if apart <= max(_PROBE_SHARE * if_seen, 8 * torch.finfo(dtype).eps):
            return None
        return f"for its log-probabilities are off by {apart:.3g}, and by {if_seen:.3g} if sequences see one another"


def _head_sizes(model: Any) -> set[int]:
    """Those of the model's layers; of the config where the layers don't say."""
    of_modules = (getattr(module, "head_dim", None) for module in base_of(model).modules())
    sizes = {size for size in of_modules if isinstance(size, int)}
    config = base_of(model).config.get_text_config()
    return sizes or {config.hidden_size // config.num_attention_heads}


def _of_any(reason: str | None) -> str | None:
    """The first process's reason that has one; None if none has."""
    return next((each for each in gather([reason]) if each is not None), None)


def _warn_of_padding(reason: str) -> None:
    if is_main_process():
        logger.warning("the loss pads its batches: this model can't take several sequences in one row, %s", reason)


def base_of(model: Any) -> Any:
    """The transformers model inside what wraps it: PEFT, DDP, DeepSpeed's engine, FSDP 1."""
    while not isinstance(model, PreTrainedModel):
        model = model.get_base_model() if hasattr(model, "get_base_model") else model.module
    return model
