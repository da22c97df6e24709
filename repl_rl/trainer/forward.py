"""Log-probabilities of typed tokens, and of nothing else: no padding, no interpreter text through the LM head.

    forward = TypedForward.open(model, device)                               # None if the model can't be packed
    logprobs, entropy = forward(model, forward.pack(ids, attention, typed))  # (K,), (K,): one per typed token

The model uses the forward pass that TRL gives its models (`add_fused_lm_head`), so this works inside the wrappers of
DDP, FSDP and PEFT, and projects in TRL's tiles. Added here are the row without padding (`repl_rl.trainer.packing`), its
attention (`repl_rl.trainer.attention`), and the selection of the hidden states that predict a typed token, the only
ones that reach the head. Flash attention computes each sequence whole.

N tokens in the row, K typed tokens.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from repl_rl.trainer.attention import PACKED_ATTENTION, computed_in, kernel_takes
from repl_rl.trainer.packing import Packed, pack
from repl_rl.utils.distributed import gather, is_main_process

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
        dtype = computed_in(next(model.parameters()).dtype)
        is_taken = any(kernel_takes(device, dtype, size) for size in _head_sizes(model))
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
        reason = _reason_of_any(forward._disagreement(model, device))
        if reason is not None and forward.is_one_call and not forward.is_flash:
            if is_main_process():
                logger.warning(
                    "attention takes a call for each sequence of a row, which is slow: torch's kernel for all of them "
                    "can't be used with this model, %s",
                    reason,
                )
            forward.is_one_call = False
            reason = _reason_of_any(forward._disagreement(model, device))
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
        mask = None  # flash attention uses the bounds
        if not self.is_flash:
            # transformers keeps a four-dimensional mask as it is
            mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=packed.ids.device)
        output = model(
            input_ids=packed.ids,
            position_ids=packed.positions,
            attention_mask=mask,
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
        entropy = None if output.entropy is None else output.entropy[0]
        return output.log_probs[0], entropy

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
        numbers = torch.arange(len(_PROBE_LENGTHS) * width).view(-1, width)
        ids = (numbers * 7 % size).to(device)
        ids[-1, :_PROBE_SHARED] = ids[0, :_PROBE_SHARED]  # so that a beginning is shared
        attention = (torch.arange(width) < torch.tensor(_PROBE_LENGTHS)[:, None]).long().to(device)
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                packed = self.pack(ids, attention, attention[:, 1:])
                logprobs, _ = self(model, packed)
                alone = []  # each sequence in a pass of its own
                for number, length in enumerate(_PROBE_LENGTHS):
                    row = ids[number : number + 1, :length]
                    alone.append(model(input_ids=row, labels=row, fused_lm_head=True).log_probs[0])
                # the packed row as one sequence: how far off a pass is that tells no sequence from another
                joined = model(
                    input_ids=packed.ids, shift_labels=packed.targets[None], fused_lm_head=True, **{_AT: packed.at}
                )
        except Exception as error:  # noqa: BLE001 - a model that was not written for a packed row may raise anything
            return f"{type(error).__name__}: {error}"
        finally:
            model.train(was_training)
        expected = torch.cat(alone).float()
        difference = (logprobs.float() - expected).abs().max().item()
        if_seen = (joined.log_probs[0].float() - expected).abs().max().item()
        is_cast = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if is_cast else next(model.parameters()).dtype
        if difference <= max(_PROBE_SHARE * if_seen, 8 * torch.finfo(dtype).eps):
            return None
        return (
            f"for its log-probabilities are off by {difference:.3g}, and by {if_seen:.3g} if sequences see one another"
        )


def _head_sizes(model: Any) -> set[int]:
    """The sizes of heads in the model's layers, or the one in its config where the layers have none."""
    of_modules = (getattr(module, "head_dim", None) for module in base_of(model).modules())
    sizes = {size for size in of_modules if isinstance(size, int)}
    config = base_of(model).config.get_text_config()
    return sizes or {config.hidden_size // config.num_attention_heads}


def _reason_of_any(reason: str | None) -> str | None:
    """The reason of the first process that has one; None if none has."""
    for reason_of_process in gather([reason]):
        if reason_of_process is not None:
            return reason_of_process
    return None


def _warn_of_padding(reason: str) -> None:
    if is_main_process():
        logger.warning("the loss pads its batches: this model can't take several sequences in one row, %s", reason)


def base_of(model: Any) -> Any:
    """The transformers model inside what wraps it: PEFT, DDP, DeepSpeed's engine, FSDP 1."""
    while not isinstance(model, PreTrainedModel):
        model = model.get_base_model() if hasattr(model, "get_base_model") else model.module
    return model
