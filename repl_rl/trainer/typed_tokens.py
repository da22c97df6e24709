"""The trainer's forward passes, which compute typed tokens only, and the loss on their log-probabilities.

The loss itself is a function (`repl_rl.trainer.loss`). Here are the passes that give it log-probabilities, what all
processes have to tell one another for it, and what is logged of it. B batch, S prompt and completion tokens, T
completion tokens.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch.nn.functional import pad
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import nanmax, nanmin, use_adapter

from repl_rl.trainer.forward import TypedForward
from repl_rl.trainer.loss import LossInputs, LossOutputs, LossSettings, Mean, SamplerCorrection, loss, loss_mask_of
from repl_rl.trainer.packing import computed, divide
from repl_rl.trainer.step_log import StepLog
from repl_rl.trainer.timeline import Timeline
from repl_rl.utils.distributed import gather, is_main_process

logger = logging.getLogger(__name__)


class TypedTokenTrainer(GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` whose forward passes compute only typed tokens, without padding.

    Models whose passes can't be packed, and a router's auxiliary loss, use TRL's own method.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # cuDNN plans attention anew for each length: 0.87 s for a row of eight on an H200. vLLM turns it off as well
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.step_log = StepLog(self)
        traced = getattr(self.args, "trace", False)
        self.timeline = Timeline(traced)
        if traced:  # transformers calls these, in the middle of its step
            accelerator = self.accelerator
            accelerator.backward = self.timeline.follow(accelerator.backward, "backward")
            accelerator.clip_grad_norm_ = self.timeline.follow(accelerator.clip_grad_norm_, "clip gradients")
        self._most_tokens: int = getattr(self.args, "micro_batch_tokens", None) or 0
        self._output_loss: float = getattr(self.args, "output_loss", 0.0)  # the bench has TRL's arguments alone
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
        usable = [forward for forward in forwards if forward is not None]
        if len(usable) < len(models):
            return None
        if self.aux_loss_enabled and is_main_process():
            logger.warning(
                "the loss pads its batches: TRL adds the auxiliary loss of this model's router, over all tokens; "
                "without it (train.trl: {router_aux_loss_coef: 0}), rows are packed"
            )
        forward = usable[0]
        forward.is_one_call = all(forward.is_one_call for forward in usable)  # it runs the passes of both
        return forward

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
        """The loss of a batch, in the place of TRL's, as a phase of the step's timeline."""
        with self.timeline.phase("loss", rows=len(inputs["completion_ids"])):
            return self._loss_of_batch(model, inputs)

    def _loss_of_batch(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """The loss of a batch. `repl_rl.trainer.loss` computes it from log-probabilities.

        With `micro_batch_tokens`, these come from several passes. After each of them but the last, the loss goes
        backward here. It is that of the whole batch each time, with the batch's counts and means; rows of other passes
        are in it as numbers, so its gradient is that of the pass's own rows, and the gradients add up to the batch's.
        The last pass knows all values, and is what is logged.
        """
        typed = loss_mask_of(inputs)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)  # (B, S)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        outputs = inputs.get("output_weights")
        token_mask = typed  # (B, T): the tokens whose log-probabilities the loss takes
        if outputs is not None:
            token_mask = typed.bool() | outputs.bool()
        batch = (token_mask, model, ids, attention, typed.size(1))
        options = {"compute_entropy": True, "compute_aux_loss": self.aux_loss_enabled}
        if not self._most_tokens:
            logprobs, entropies, router_loss = self._values_of(*batch, **options)
            assert entropies is not None
            return self._log_loss(inputs, self._loss_of(inputs, logprobs, entropies, router_loss))
        *first_passes, last_pass = self._passes(ids, attention, token_mask)
        values = _zeros_before_passes(token_mask)
        with self._before_the_last_pass(model) if model.training else nullcontext():
            for rows in first_passes:
                values = self._values_of_pass(rows, values, *batch, **options)
                if model.training:
                    self.accelerator.backward(self._loss_of(inputs, *values).loss, **self._unscaled)
                    # This pass's graph is used up: to the passes after it, its rows are numbers.
                    values = [tensor.detach() for tensor in values]
        values = self._values_of_pass(last_pass, values, *batch, **options)
        return self._log_loss(inputs, self._loss_of(inputs, *values))

    @property
    def _unscaled(self) -> dict[str, bool]:
        """Arguments of `Accelerator.backward`: the loss has been divided by the batches of an update already."""
        is_deepspeed = self.accelerator.distributed_type == DistributedType.DEEPSPEED
        return {"scale_wrt_gas": False} if is_deepspeed else {}

    @contextmanager
    def _before_the_last_pass(self, model: Any) -> Iterator[None]:
        """Inside the block, gradients stay in their process, as in transformers' loop before the last batch of an
        update."""
        state = self.accelerator.gradient_state
        is_last_batch = state.sync_gradients
        is_deepspeed = self.accelerator.distributed_type == DistributedType.DEEPSPEED
        syncs_each = state.plugin_kwargs.get("sync_each_batch", False)
        state._set_sync_gradients(False)
        try:
            if is_last_batch and not is_deepspeed and not syncs_each:
                with self.accelerator.no_sync(model):
                    yield
            else:
                yield
        finally:
            state._set_sync_gradients(is_last_batch)

    def _loss_of(
        self,
        inputs: dict[str, Any],
        logprobs: torch.Tensor,
        entropies: torch.Tensor,
        router_loss: torch.Tensor | None = None,
    ) -> LossOutputs:
        """The loss of a batch whose log-probabilities and entropies, (B, T), are known."""
        values: Any = self  # TRL has no types for mypy
        typed = loss_mask_of(inputs)
        is_training = bool(self.model.training)
        accumulated = int(values.current_gradient_accumulation_steps) if is_training else 1
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        if is_training:
            # What is sampled at once is in `steps_per_generation` batches. They share its tokens evenly, as TRL has it.
            tokens = tokens * accumulated / self.args.steps_per_generation
        threshold = None
        if values.top_entropy_quantile < 1:
            threshold = self._entropy_threshold(entropies.detach()[typed.bool()], 1 - values.top_entropy_quantile)
        coefficient = None
        if values._entropy_bonus_enabled:
            pays = not values.use_adaptive_entropy or values._last_world_entropy <= self.args.entropy_target
            coefficient = float(values.entropy_coef) if pays else 0.0
        return loss(
            LossInputs(
                logprobs=logprobs,
                entropies=entropies,
                loss_mask=typed,
                advantages=inputs["advantages"],
                old_logprobs=inputs.get("old_per_token_logps"),
                sampler_logprobs=inputs.get("sampling_per_token_logps"),
                reference_logprobs=inputs.get("ref_per_token_logps"),
                sampler_weights=inputs.get("importance_sampling_ratio"),
                output_weights=inputs.get("output_weights"),
                entropy_threshold=threshold,
                entropy_coefficient=coefficient,
                router_loss=router_loss,
                router_coefficient=float(values.router_aux_loss_coef or 0.0),
                tokens_of_update=tokens,
                row_share=float(inputs.get("row_share", 1.0)),
                accumulated=accumulated,
                is_training=is_training,
            ),
            self._loss_settings,
        )

    @property
    def _loss_settings(self) -> LossSettings:
        values: Any = self  # TRL has no types for mypy
        args = self.args
        correction = None
        if values.vllm_importance_sampling_correction:
            level, _, method = values.vllm_importance_sampling_mode.partition("_")
            least = values.vllm_importance_sampling_clip_min
            most = values.vllm_importance_sampling_clip_max
            correction = SamplerCorrection(level, method == "mask", least, most)
        return LossSettings(
            loss_type=values.loss_type,
            level=values.importance_sampling_level,
            beta=float(values.beta),
            corrects_kl=args.use_bias_correction_kl,
            epsilon_low=values.epsilon_low,
            epsilon_high=values.epsilon_high,
            delta=args.delta,
            correction=correction,
            off_policy_threshold=values.off_policy_mask_threshold,
            divergence=self._divergence,
            sapo_temperatures=(args.sapo_temperature_pos, args.sapo_temperature_neg),
            vespo_shapes=(args.vespo_k_pos, args.vespo_k_neg),
            vespo_rates=(args.vespo_lambda_pos, args.vespo_lambda_neg),
            most_tokens=values.max_completion_length,
            output_coefficient=self._output_loss,
        )

    def _entropy_threshold(self, entropies: torch.Tensor, quantile: float) -> torch.Tensor:
        """The quantile of the entropies of all processes' typed tokens; these are ours, (N,)."""
        padded = self.accelerator.pad_across_processes(entropies.float(), dim=0, pad_index=-1)
        gathered = self.accelerator.gather(padded)
        of_all = gathered[gathered >= 0]  # no entropy is negative
        if not len(of_all):
            return torch.tensor(math.inf, device=entropies.device)
        return torch.quantile(of_all, quantile)

    def _log_loss(self, inputs: dict[str, Any], outputs: LossOutputs) -> torch.Tensor:
        """Log what all processes' losses say, and return this one's loss. Moves the entropy's coefficient if that is
        adaptive."""
        accelerator = self.accelerator
        typed = loss_mask_of(inputs)
        sums = [torch.stack([mean.total, mean.count]) for mean in outputs.means.values()]
        totals = accelerator.reduce(torch.stack(sums), reduction="sum")  # one exchange for all means
        means = (totals[:, 0] / totals[:, 1].clamp(min=1.0)).tolist()
        self.step_log.values(dict(zip(outputs.means, means, strict=True)))
        for name, rows in outputs.per_row.items():
            of_all = accelerator.gather(rows)
            end = nanmin if name.endswith("_min") else nanmax
            self.step_log.values({name: end(of_all).item()})

        sampled = inputs.get("sampling_per_token_logps")
        is_first_update = inputs.get("old_per_token_logps") is None
        if is_first_update and sampled is not None:  # else it was logged before the first update
            self.step_log.drift(outputs.logprobs, sampled, typed, outputs.sampler_weights)
        if outputs.diverged is not None:
            self.step_log.share("credit/divergence_share", outputs.diverged, typed)

        if outputs.entropy_bonus is not None:
            policy_loss = accelerator.gather(outputs.policy_loss).nanmean()
            self.step_log.values({"policy_loss": policy_loss.item()})
            self._follow_entropy(outputs.entropy_bonus)
        if outputs.router_loss is not None:
            router_loss = accelerator.gather_for_metrics(outputs.router_loss).mean()
            self.step_log.values({"aux_loss": router_loss.item()})
        if outputs.output_loss is not None:
            output_loss = accelerator.gather(outputs.output_loss).mean()
            self.step_log.values({"output_loss": output_loss.item()})
        return outputs.loss

    def _follow_entropy(self, entropy: Mean) -> None:
        """At the end of an update, move the bonus's coefficient towards the entropy that is wanted (Skywork-OR1), as
        TRL does and where TRL keeps it, so that its checkpoints have it."""
        values: Any = self  # TRL has no types for mypy
        if not self.model.training:
            return
        is_end_of_update = self.accelerator.sync_gradients
        if values.use_adaptive_entropy:
            batch = torch.stack([entropy.total, entropy.count])
            window = values._entropy_window_stats
            values._entropy_window_stats = batch if window is None else window + batch
        if values.use_adaptive_entropy and is_end_of_update:
            total, count = self.accelerator.reduce(values._entropy_window_stats, reduction="sum")
            mean = (total / count.clamp(min=1.0)).item()
            delta = self.args.entropy_coef_delta
            if mean <= self.args.entropy_target:
                values.entropy_coef = min(values.entropy_coef + delta, self.args.entropy_coef_max)
            else:
                values.entropy_coef = max(values.entropy_coef - delta, self.args.entropy_coef_min)
            values._last_world_entropy = mean
            values._entropy_window_stats = None
        if is_end_of_update:
            self.step_log.values({"entropy_coef": values.entropy_coef})

    def _passes(self, ids: torch.Tensor, attention: torch.Tensor, typed: torch.Tensor) -> list[list[int]]:
        """The rows of each pass of a batch. All processes have to ask together, and get as many."""
        forward = self._typed_forward
        if forward is None:  # padding is computed, too
            attention = typed = torch.ones_like(ids)
        prompt_width = ids.size(1) - typed.size(1)
        is_typed = pad(typed, (prompt_width, 0)).bool() & attention.bool()  # (B, S)
        _, rows = computed(ids, attention, is_typed)
        # flash attention computes each sequence whole, so a common prompt saves it nothing
        shares = forward is not None and not forward.is_flash

        def most_of_all(count: int) -> int:
            return max(gather([count]))

        return divide(rows, self._most_tokens, shares=shares, agreed=most_of_all)

    def policy_logprobs(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Log-probabilities of the typed tokens of a batch as the policy is now, (B, T), without gradients."""
        return self._logprobs(self.model, batch)

    def reference_logprobs(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """As `policy_logprobs`, of the reference model: the one that TRL has loaded, or the policy without its new
        adapter, or with a copy of the adapter that it began with."""
        if self.ref_model is not None:
            return self._logprobs(self.ref_model, batch)
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            return self._logprobs(self.model, batch)

    def _logprobs(self, model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        typed = loss_mask_of(batch)
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)  # (B, S)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        arguments = (typed, model, ids, attention, typed.size(1))
        # checkpointing under no_grad warns that no input has a gradient
        with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            if not self._most_tokens:
                size = self.args.per_device_eval_batch_size
                if self.model.training:
                    size = self.args.per_device_train_batch_size
                logprobs, _, _ = self._values_of(*arguments, batch_size=size)
                return logprobs
            values = _zeros_before_passes(typed)
            for rows in self._passes(ids, attention, typed):
                values = self._values_of_pass(rows, values, *arguments, compute_entropy=True)
            logprobs, _ = values
            return logprobs

    def _values_of_pass(
        self,
        rows: list[int],
        values: list[torch.Tensor],
        token_mask: torch.Tensor,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **options: Any,
    ) -> list[torch.Tensor]:
        """Log-probabilities and entropies, (B, T): those of `rows` from a pass, those of other rows as in `values`.

        Processes run as many passes as one another, because a pass of a sharded model is one of all of them. A process
        that has no rows left runs a row without typed tokens.
        """
        pass_rows = rows or [0]
        pass_mask = token_mask[pass_rows]
        if not rows:
            pass_mask = torch.zeros_like(pass_mask)
        batch = (pass_mask, model, input_ids[pass_rows], attention_mask[pass_rows], logits_to_keep)
        logprobs, entropies, _ = self._values_of(*batch, **{**options, "batch_size": None})
        assert entropies is not None
        index = (torch.tensor(rows, dtype=torch.long, device=token_mask.device),)
        logprobs_before, entropies_before = values
        return [
            logprobs_before.index_put(index, logprobs[: len(rows)].float()),
            entropies_before.index_put(index, entropies[: len(rows)].float()),
        ]

    def _values_of(
        self,
        typed: torch.Tensor,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Log-probabilities and entropies (B, T), zero where nothing was typed, and the router's loss; by TRL's pass,
        which has values there, if the batch can't be packed."""
        if self._typed_forward is None or compute_aux_loss:
            values: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
            with self.timeline.phase("forward", tokens=input_ids.numel()):
                values = self._get_per_token_logps_and_entropies(
                    model,
                    input_ids,
                    attention_mask,
                    logits_to_keep,
                    batch_size=batch_size,
                    compute_entropy=compute_entropy,
                    compute_aux_loss=compute_aux_loss,
                )
            return values
        logprob_parts = []
        entropy_parts = []
        size = batch_size or len(input_ids)
        parts = zip(input_ids.split(size), attention_mask.split(size), typed.split(size), strict=True)
        for part_ids, part_attention, part_typed in parts:
            packed = self._typed_forward.pack(part_ids, part_attention, part_typed)
            with self.accelerator.autocast(), self.timeline.phase("forward", tokens=packed.ids.size(1)):
                logprob, entropy = self._typed_forward(model, packed)
            if entropy is None:  # the head computes none: a stand-in of the same shape
                entropy = logprob
            logprob_parts.append(packed.spread(logprob, part_typed.shape))
            entropy_parts.append(packed.spread(entropy, part_typed.shape))
        # in a batch without typed tokens, this zeroes the stand-in's value and gradient but keeps the graph
        logprobs = torch.cat(logprob_parts) * typed
        entropies = torch.cat(entropy_parts) * typed if compute_entropy else None
        return logprobs, entropies, None


def _zeros_before_passes(token_mask: torch.Tensor) -> list[torch.Tensor]:
    """Log-probabilities and entropies, (B, T), before the first pass has given any."""
    return [torch.zeros(token_mask.shape, device=token_mask.device) for _ in range(2)]
