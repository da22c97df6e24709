"""TRL's losses on log-probabilities of typed tokens only: the same values and gradients, with less work.

All of TRL's loss types, KL and importance correction get these from `_get_per_token_logps_and_entropies`, which is
replaced. With advantages per line, four parts of TRL's losses mean something else than their papers say, and are put
right: ratios of whole sequences, the off-policy mask, VESPO's weights, and means over rows of which some are not in the
loss. B batch, S prompt and completion tokens, T completion tokens.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from accelerate.utils import DistributedType
from torch.nn.functional import pad
from trl import GRPOTrainer

from repl_rl.trainer.logged import StepLog
from repl_rl.trainer.packed import TypedForward, computed, divide
from repl_rl.trainer.step import typed_of
from repl_rl.utils.distributed import gather, is_main_process

logger = logging.getLogger(__name__)

_MEANS_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")


class _Batch(NamedTuple):
    typed: torch.Tensor
    inputs: dict[str, Any] | None = None
    """Of the loss, in its own pass."""
    shares_ratios: bool = False
    rows: list[int] | None = None
    """Those of this pass of the loss; None for all."""
    known: list[torch.Tensor] | None = None
    """Log-probabilities and entropies of its passes so far, (B, T), zero elsewhere."""


class TypedTokenTrainer(GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` whose forward passes compute only typed tokens, without padding.

    Models whose passes can't be packed, batches with images, and a router's auxiliary loss use TRL's own method. TRL
    computes the log-probabilities of a batch before its first update, for the ratios to the sampler. Where no second
    update follows, the loss's own pass gives these, and TRL's is left out.
    """

    _metrics: Any
    _entropy_window_stats: Any

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # cuDNN plans attention anew for each length: 0.87 s for a row of eight on an H200. vLLM turns it off as well
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.step_log = StepLog(self)
        self._batch: _Batch | None = None
        self._most_tokens: int = getattr(self.args, "micro_batch_tokens", None) or 0
        self._divergence: float | None = getattr(getattr(self.args, "mask", None), "divergence", None)

    def _prepare_for_training(self, *arguments: Any, **named: Any) -> Any:
        """As transformers', and finds out how the passes run before anything is rolled out for the first of them."""
        prepared = super()._prepare_for_training(*arguments, **named)
        _ = self._typed_forward
        return prepared

    @cached_property
    def _typed_forward(self) -> TypedForward | None:
        """How the passes of the model, and of the reference model, run; None if TRL's method runs them. All processes
        have to ask together.

        It is found out by passes of the model as it is when this is asked first: after `prepare`, it is where it will
        be trained. Before, it may be on another device, whose kernels say nothing about the run's.
        """
        models = [model for model in (self.model, self.ref_model) if model is not None]
        with self.accelerator.autocast():
            forwards = [TypedForward.open(model, self.accelerator.device) for model in models]
        opened = [forward for forward in forwards if forward is not None]
        if len(opened) < len(models):
            return None
        if self.aux_loss_enabled and is_main_process():
            logger.warning(
                "the loss pads its batches: TRL adds the auxiliary loss of this model's router, over all tokens; "
                "without it (train.trl: {router_aux_loss_coef: 0}), rows are packed"
            )
        opened[0].is_one_call = all(forward.is_one_call for forward in opened)  # it runs the passes of both
        return opened[0]

    @property
    def packs(self) -> bool:
        """Whether the loss's passes compute typed tokens only, without padding."""
        return self._typed_forward is not None and not self.aux_loss_enabled

    @property
    def attends_at_once(self) -> bool:
        """Whether attention takes one call for all sequences of a packed row, rather than one for each."""
        forward = self._typed_forward
        return forward is not None and self.packs and forward.is_one_call

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """The loss of a batch. With `micro_batch_tokens`, it goes backward here after each of its passes but the last.

        In each, TRL's loss is that of the whole batch, with its counts and means. Rows of other passes stand there as
        numbers, so the gradient is that of the pass's own rows, and the sum of them is the batch's for every loss that
        adds up over rows. The last pass knows all values, and logs what a single pass would.
        """
        if not self._most_tokens or not self.model.training:
            return self._loss_of(model, inputs)
        typed = typed_of(inputs)
        ids, attention = (torch.cat([inputs[f"prompt_{of}"], inputs[f"completion_{of}"]], 1) for of in ("ids", "mask"))
        *others, last = self._passes(ids, attention, typed)
        known = [torch.zeros(typed.shape, device=typed.device)] * 2
        state, kept = self.accelerator.gradient_state, (self._metrics, self.step_log, self._entropy_window_stats)
        # as in transformers' loop, for which gradients stay in their process before a step's last batch
        is_deepspeed, is_last = self.accelerator.distributed_type == DistributedType.DEEPSPEED, state.sync_gradients
        is_apart = is_last and not is_deepspeed and not state.plugin_kwargs.get("sync_each_batch", False)
        unscaled = {"scale_wrt_gas": False} if is_deepspeed else {}
        state._set_sync_gradients(False)
        self._metrics, self.step_log = {"train": defaultdict(list)}, StepLog(self)
        try:
            with self.accelerator.no_sync(model) if is_apart else nullcontext():
                for rows in others:
                    self.accelerator.backward(self._loss_of(model, inputs, rows, known), **unscaled)
        finally:
            state._set_sync_gradients(is_last)
            self._metrics, self.step_log, self._entropy_window_stats = kept
        return self._loss_of(model, inputs, last, known)

    def _passes(self, ids: torch.Tensor, attention: torch.Tensor, typed: torch.Tensor) -> list[list[int]]:
        """The rows of each pass of a batch. All processes have to ask together, and get as many."""
        forward = self._typed_forward
        if forward is None:  # padding is computed, too
            attention = typed = torch.ones_like(ids)
        _, rows = computed(ids, attention, pad(typed, (ids.size(1) - typed.size(1), 0)).bool() & attention.bool())
        shares = forward is not None and not forward.is_flash
        return divide(rows, self._most_tokens, shares=shares, agreed=lambda count: max(gather([count])))

    def _loss_of(self, model: Any, inputs: dict[str, Any], *one_pass: list[Any]) -> torch.Tensor:
        """TRL's loss. `row_share`, if the inputs have it, is the share of the step's rows that are in the loss: what is
        a mean over rows is one over these. Such losses are proportional to advantages and to the weight of the KL term,
        so these are scaled; an entropy bonus and a router's loss are no means over rows."""
        inputs, beta = dict(inputs), float(getattr(self, "beta"))  # noqa: B009 - TRL has no types for mypy
        share = float(inputs["row_share"]) if "row_share" in inputs and self.loss_type in _MEANS_OVER_ROWS else 1.0
        level: str = getattr(self, "importance_sampling_level")  # noqa: B009 - TRL has no types for mypy
        is_per_sequence = level == "sequence" and self.loss_type != "vespo"
        try:
            if 0 < share < 1:
                inputs["advantages"], self.beta = inputs["advantages"] / share, beta / share
            if is_per_sequence:
                self.importance_sampling_level = "token"
            with self.forward_passes_of(typed_of(inputs), inputs, is_per_sequence, *one_pass):
                loss: torch.Tensor = super()._compute_loss(model, inputs)
        finally:
            self.beta, self.importance_sampling_level = beta, level
        if (of_output := inputs.get("output_loss")) is not None:
            self.step_log.values({"output_loss": self.accelerator.gather(of_output.detach()).mean().item()})
            loss = loss + self.args.output_loss * of_output / self.current_gradient_accumulation_steps
        return loss

    @contextmanager
    def forward_passes_of(self, typed: torch.Tensor, *of_loss: Any) -> Iterator[None]:
        """Inside the block, forward passes are of a batch with this mask of typed tokens, (B, T), which TRL doesn't
        hand to them. A loss adds its inputs, where what follows from its pass is put, and the rest of `_Batch`."""
        before, self._batch = self._batch, _Batch(typed, *of_loss)
        try:
            yield
        finally:
            self._batch = before

    @contextmanager
    def no_pass_before_its_only_update(self) -> Iterator[None]:
        """Inside the block, TRL computes no log-probabilities of a batch that is in one update only: `_compare`."""
        is_on: bool = getattr(self, "vllm_importance_sampling_correction")  # noqa: B009 - TRL has no types for mypy
        if self.args.updates_once:
            self.vllm_importance_sampling_correction = False
        try:
            yield
        finally:
            self.vllm_importance_sampling_correction = is_on

    def _compare(self, logprobs: torch.Tensor, typed: torch.Tensor, inputs: dict[str, Any]) -> None:
        """Log how far the sampler is from these log-probabilities, (B, T), and put TRL's weights of the difference,
        (B, T) or of sequences (B, 1), into the inputs of the loss."""
        sampled, ratios = inputs.get("sampling_per_token_logps"), None
        if sampled is None:
            return
        if self.vllm_importance_sampling_correction:
            apart = (logprobs - sampled) * typed
            per, _, how = self.vllm_importance_sampling_mode.partition("_")
            ratios = (apart.sum(-1, keepdim=True) if per == "sequence" else apart).exp()
            bounds = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
            bounded = ratios if bounds == (None, None) else ratios.clamp(*bounds)
            ratios = bounded if how == "truncate" else ratios * (bounded == ratios)
            inputs["importance_sampling_ratio"] = ratios
        self.step_log.drift(logprobs, sampled, typed, ratios)

    def _share_ratios(self, logprobs: torch.Tensor, typed: torch.Tensor, inputs: dict[str, Any]) -> None:
        """Make the ratio of each token the sequence's, and its gradient the token's own.

            s_i = (pi(y_i) / pi_old(y_i))^(1 / |y_i|)      s_{i,t} = sg[s_i] pi_t / sg[pi_t]

        Zheng et al. 2025, Group Sequence Policy Optimization, GSPO-token. Equal to GSPO where a
        trajectory has one advantage. TRL's own sequence ratio gives each token the trajectory's mean advantage.
        `old_per_token_logps` becomes what makes TRL's token ratio this one.
        """
        apart = (logprobs - inputs["old_per_token_logps"]) * typed
        log_ratio = apart.sum(-1, keepdim=True) / typed.sum(-1, keepdim=True).clamp(min=1)  # (B, 1)
        inputs["old_per_token_logps"] = logprobs - log_ratio

    def _leave_out_diverged(self, logprobs: torch.Tensor, typed: torch.Tensor, inputs: dict[str, Any]) -> None:
        """Take the advantage of tokens whose probability is already further from the sampler's than the bound, to the
        side where it would move them: `sign(A) (pi - mu) > bound`.

        Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning, DPPO with binary total variation.
        """
        advantages: torch.Tensor = inputs["advantages"]
        apart = logprobs.exp() - inputs["sampling_per_token_logps"].exp()
        out = apart * advantages.sign() > self._divergence
        inputs["advantages"] = advantages.masked_fill(out, 0.0)
        self.step_log.share("credit/divergence_share", out, typed)

    def get_off_policy_mask(self, *, advantages: torch.Tensor, mask: torch.Tensor, **others: Any) -> torch.Tensor:
        """A drifted sequence is dropped whole, or not at all: by the sign of its mean advantage, not of each line's.

        DeepSeek-AI 2025, DeepSeek-V3.2, where a sequence has one advantage.
        """
        kept: torch.Tensor = super().get_off_policy_mask(advantages=_means(advantages, mask), mask=mask, **others)
        return kept

    def get_gamma_weights(self, *, advantages: torch.Tensor, mask: torch.Tensor, **others: Any) -> torch.Tensor:
        """VESPO's weight of a sequence, shape (B, 1), whose form depends on the sign of its mean advantage, not of each
        line's: in the paper a sequence has one advantage."""
        weights: torch.Tensor = super().get_gamma_weights(advantages=_means(advantages, mask), mask=mask, **others)
        return weights

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Log-probabilities and entropies (B, T), zero where nothing was typed; TRL's own if the batch can't be
        packed."""
        batch = self._batch
        typed = batch and pad(batch.typed, (0, logits_to_keep - batch.typed.size(1))).to(input_ids.device)
        outputs = None if batch is None or batch.inputs is None else batch.inputs.get("output_weights")
        wanted = typed if outputs is None or typed is None else typed.bool() | outputs.bool()
        if batch is None or wanted is None or not self._most_tokens:
            values = self._values_of(wanted, model, input_ids, attention_mask, logits_to_keep, **named)
        else:
            known = batch.known or [torch.zeros(wanted.shape, device=wanted.device)] * 2
            for rows in self._passes(input_ids, attention_mask, wanted) if batch.rows is None else [batch.rows]:
                at = rows or [0]  # an empty pass is one of a row without typed tokens
                of_pass = wanted[at] * bool(rows), model, input_ids[at], attention_mask[at], logits_to_keep
                own: Any = self._values_of(*of_pass, **{**named, "batch_size": None, "compute_entropy": True})
                place = (torch.tensor(rows, dtype=torch.long, device=wanted.device),)
                known = [old.index_put(place, new[: len(rows)].float()) for old, new in zip(known, own, strict=False)]
            if batch.known is not None:
                batch.known[:] = [values.detach() for values in known]
            values = known[0], known[1], None
        if batch is not None and batch.inputs is not None:
            if outputs is not None:
                batch.inputs["output_loss"] = -(values[0] * outputs).sum()
                if self.packs:  # as in old and reference log-probabilities
                    values = values[0] * typed, *values[1:]
            if self._divergence is not None and self.model.training:
                self._leave_out_diverged(values[0].detach(), batch.typed, batch.inputs)
            if "old_per_token_logps" not in batch.inputs:
                self._compare(values[0].detach(), batch.typed, batch.inputs)
            elif batch.shares_ratios:
                self._share_ratios(values[0].detach(), batch.typed, batch.inputs)
        return values

    def _values_of(
        self,
        typed: torch.Tensor | None,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **modalities: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        is_plain = not compute_aux_loss and all(value is None for value in modalities.values())
        if self._typed_forward is None or typed is None or not is_plain:
            values: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
            values = super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size=batch_size,
                compute_entropy=compute_entropy,
                compute_aux_loss=compute_aux_loss,
                **modalities,
            )
            return values
        batch = (input_ids, attention_mask, typed)
        rows = zip(*(values.split(batch_size or len(input_ids)) for values in batch), strict=True)
        parts = []
        for of_rows in rows:
            packed, shape = self._typed_forward.pack(*of_rows), of_rows[2].shape
            with self.accelerator.autocast():
                own, entropy = self._typed_forward(model, packed)
            parts.append((packed.spread(own, shape), packed.spread(own if entropy is None else entropy, shape)))
        logprobs, entropies = zip(*parts, strict=True)
        # in a batch without typed tokens, this zeroes the stand-in's value and gradient but keeps the graph
        return torch.cat(logprobs) * typed, torch.cat(entropies) * typed if compute_entropy else None, None


def _means(advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean advantage of each sequence's typed tokens, (B, 1), of (B, T)."""
    return (advantages * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
