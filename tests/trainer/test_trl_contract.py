"""What repl_rl relies on inside TRL. A failure here means: read TRL's change, then repl_rl/trainer/grpo.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import RepeatSampler

OVERRIDDEN = [
    (GRPOTrainer._generate_and_score_completions, ["self", "inputs"]),
    (GRPOTrainer._generate, ["self", "prompts"]),
    (GRPOTrainer._calculate_rewards, ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
    (GRPOTrainer._get_train_sampler, ["self", "dataset"]),
    (GRPOTrainer._save_rng_state, ["self", "output_dir"]),
    (GRPOTrainer._load_rng_state, ["self", "checkpoint"]),
    (VLLMGeneration._init_vllm, ["self"]),
    (VLLMGeneration.sync_weights, ["self"]),
    (VLLMGeneration._iter_named_params, ["self"]),
]

RELIED_ON = [
    (
        GRPOTrainer._generate,
        "self.rollout_func(prompts, self)",
        "rollout_func is called with the prompts and the trainer",
    ),
    (
        GRPOTrainer._generate,
        'self._metrics[mode]["completions/clipped_ratio"].append(',
        "what it logs about clipped and terminated completions is replaced",
    ),
    (
        GRPOTrainer._generate,
        "return prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, images, tool_images",
        "the rows of sub-calls are added to these lists",
    ),
    (
        GRPOTrainer._generate_and_score_completions,
        "rewards_per_func = self._calculate_rewards(inputs, prompts, completions, completion_ids_list)",
        "which has no rows of sub-calls besides the last of these",
    ),
    (GRPOTrainer._generate, 'extra_fields.pop("env_mask", None)', "env_mask becomes the mask of typed tokens"),
    (GRPOTrainer._generate, "self._last_loaded_step", "weights are synced once per step, by this attribute"),
    (
        GRPOTrainer._generate_and_score_completions,
        '"completion_ids": completion_ids',
        "the output holds completion_ids",
    ),
    (GRPOTrainer._generate_and_score_completions, '"advantages": advantages', "the output's advantages are replaced"),
    (GRPOTrainer._generate_and_score_completions, "inp[key] = values[i]", "further columns reach the reward functions"),
    (
        GRPOTrainer._generate_and_score_completions,
        'output["old_per_token_logps"] = old_per_token_logps',
        "the trainer's log-probabilities are in the output where TRL has them",
    ),
    (
        GRPOTrainer._generate_and_score_completions,
        'output["sampling_per_token_logps"] = sampling_per_token_logps',
        "so are the sampler's",
    ),
    (GRPOTrainer._generate_and_score_completions, 'output["tool_mask"] = tool_mask', "and the mask of typed tokens"),
    (
        GRPOTrainer._prepare_inputs,
        "self._step % generate_every == 0 or self._buffered_inputs is None",
        "these two attributes are the place inside a generated batch",
    ),
    (
        GRPOTrainer._prepare_inputs,
        "generate_every = self.args.steps_per_generation * self.num_iterations",
        "a generated batch lasts for so many micro-steps",
    ),
    (
        GRPOTrainer._save_checkpoint,
        "super()._save_checkpoint(model, trial)",
        "random states, and our position beside them, are saved by transformers before the state that completes it",
    ),
    (RepeatSampler.__iter__, "torch.randperm(self.num_samples, generator=self.generator)", "one shuffle an epoch"),
    (
        GRPOTrainer._generate_and_score_completions,
        "rewards_per_func = self._calculate_rewards(inputs, prompts, completions, completion_ids_list)",
        "redrawn rows and prompts are seen by the reward functions",
    ),
    (
        GRPOTrainer._generate_and_score_completions,
        'self._logs["prompt"].extend(gather_object(prompts))',
        "and logged behind them, from the same list",
    ),
    (
        GRPOTrainer._generate_and_score_completions,
        '"num_items_in_batch": num_items_in_batch',
        "the number of typed tokens is in the output, for mask_overlong to count anew",
    ),
    (GRPOTrainer._compute_loss, "if advantages.dim() == 1:", "advantages of shape (B, T) are taken as they are"),
    (GRPOTrainer._compute_loss, 'completion_mask * inputs["tool_mask"]', "the loss is masked by tool_mask"),
    (VLLMGeneration.sync_weights, "self.llm.llm_engine.model_executor", "weights go into the LLM at self.llm"),
    (VLLMGeneration._iter_named_params, "yield name, param.data", "it yields names and whole weights, one at a time"),
    (VLLMGeneration._iter_named_params, "model.merge_adapter()", "adapters are merged while it is iterated"),
    (VLLMGeneration.sync_weights, "self.llm.reset_prefix_cache()", "the prefix cache is emptied with new weights"),
]


@pytest.mark.parametrize(("method", "parameters"), OVERRIDDEN)
def test_an_overridden_method_of_trl_keeps_its_parameters(method: Callable[..., Any], parameters: list[str]) -> None:
    found = list(inspect.signature(method).parameters)
    assert found == parameters, (
        f"TRL changed {method.__qualname__}: parameters {found}, repl_rl/trainer/grpo.py overrides it with {parameters}"
    )


@pytest.mark.parametrize(("method", "code", "promise"), RELIED_ON)
def test_a_method_of_trl_still_does_what_the_trainer_builds_on(
    method: Callable[..., Any], code: str, promise: str
) -> None:
    source = inspect.getsource(inspect.unwrap(method))
    assert code in source, f"TRL changed {method.__qualname__}; repl_rl/trainer/grpo.py builds on this: {promise}"
