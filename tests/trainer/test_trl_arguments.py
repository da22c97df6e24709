"""Every argument of the installed TRL's GRPOConfig has an effect here, or is refused with the reason."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from recorded import make_tasks_named, recorded, recorded_trainer
from transformers import TrainingArguments
from trl import GRPOConfig, GRPOTrainer

from repl_rl.errors import ConfigError
from repl_rl.trainer import ReplGRPOConfig
from repl_rl.trainer.arguments import REFUSED

OTHER: dict[str, Any] = {
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "generation_kwargs": {"num_beams": 2},
    "cache_implementation": "static",
    "vllm_mode": "server",
    "vllm_model_impl": "transformers",
    "vllm_enable_sleep_mode": True,
    "vllm_structured_outputs_regex": "a",
    "vllm_server_base_url": "http://x",
    "vllm_server_host": "x",
    "vllm_server_port": 1,
    "vllm_server_timeout": 1.0,
    "vllm_group_port": 1,
    "vllm_gpu_memory_utilization": 0.5,
    "vllm_max_model_length": 512,
    "vllm_tensor_parallel_size": 2,
    "use_transformers_continuous_batching": True,
    "transformers_continuous_batching_config": {"a": 1},
    "use_transformers_paged": True,
    "ds3_gather_for_generation": False,
    "scale_rewards": "batch",
    "chat_template_kwargs": {"a": 1},
    "multi_objective_aggregation": "normalize_then_sum",
    "max_tool_calling_iterations": 3,
    "use_vllm": True,
    "mask_truncated_completions": True,
}
"""A value for each refused argument that is not TRL's default."""
WHERE = {
    **dict.fromkeys(("temperature", "top_p", "top_k"), "sampling, and the loss"),
    **dict.fromkeys(("max_completion_length",), "is budget.tokens, or refused"),
    **dict.fromkeys(
        (f"vllm_importance_sampling_{name}" for name in ("cap", "mode", "clip_max", "clip_min")),
        "the ratios that correct",
    ),
    **dict.fromkeys(("ref_model_mixup_alpha", "ref_model_sync_steps"), "TRL's callback for sync_ref_model"),
    "vllm_importance_sampling_correction": "whether there are any",
}
"""Arguments that TRL names after its own engine or that reach ours: what they change."""
OF_TRL = {each.name for each in fields(GRPOConfig)} - {each.name for each in fields(TrainingArguments)}


def test_every_refused_argument_is_one_of_trls() -> None:
    assert set(OTHER) == set(REFUSED) <= {each.name for each in fields(GRPOConfig)}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_argument_that_would_do_nothing_is_refused_before_anything_is_loaded(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ReplGRPOConfig(str(tmp_path), bf16=False, **{name: OTHER[name]})
    assert str(caught.value) == f"{name}={OTHER[name]!r} of TRL's arguments would do nothing: {REFUSED[name]}"


@pytest.mark.parametrize("name", sorted(OF_TRL - set(REFUSED)))
def test_the_others_are_read_by_code_that_runs_here(name: str) -> None:
    """By TRL's trainer, of which ours replaces sampling and advantages, or they are ours."""
    read, base = (Path(inspect.getfile(each)).read_text(encoding="utf-8") for each in (GRPOTrainer, GRPOConfig))
    assert name in WHERE or f"args.{name}" in read or f"self.{name}" in base


@pytest.mark.parametrize(("value", "is_taken"), [(512, True), (256, True), (300, False)])
def test_the_length_of_a_completion_is_the_budgets(value: int, is_taken: bool, tmp_path: Path) -> None:
    budget = {"tokens": 256}
    if is_taken:
        args = ReplGRPOConfig(str(tmp_path), bf16=False, budget=budget, max_completion_length=value)
        assert args.max_completion_length == 256
        return
    with pytest.raises(ConfigError, match=r"max_completion_length=300 and budget\.tokens=256 differ"):
        ReplGRPOConfig(str(tmp_path), bf16=False, budget=budget, max_completion_length=value)


@pytest.mark.parametrize("temperature", [0.0, 0.005])
def test_training_at_no_temperature_is_refused(temperature: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ReplGRPOConfig(str(tmp_path), bf16=False, temperature=temperature)
    assert str(caught.value) == (
        f"sampling.temperature (temperature of TRL's arguments) is {temperature:g}, and training takes 0.01 or more: "
        "below, samplers type what is likeliest, and a policy's gradient of that is not defined. Evaluation may have "
        "its own, eval.temperature"
    )


def test_weights_are_those_of_trls_reward_functions(tmp_path: Path) -> None:
    def two(completions: list[Any], **_: Any) -> list[float]:
        return [2.0] * len(completions)

    def made(weights: list[float]) -> list[float]:
        trainer = recorded_trainer(
            tmp_path, recorded_one, make_tasks_named("a"), per_device_train_batch_size=2, reward_weights=weights,
            trainer={"reward_funcs": two},
        )  # fmt: skip
        return [float(weight) for weight in trainer.reward_weights]

    assert made([0.5]) == [1.0, 1.0, 0.5]
    assert made([1.0, 1.0, 0.25]) == [1.0, 1.0, 0.25]
    with pytest.raises(ConfigError) as caught:
        made([0.5, 1.0, 1.0])
    assert str(caught.value) == (
        "reward_weights=[0.5, 1.0, 1.0] of TRL's arguments: give one for each of the 1 functions in reward_funcs; what "
        "outcome, table weigh is said in the section `rewards`"
    )


def recorded_one(task: Any, place: int) -> Any:
    return recorded(task, place, is_right=place == 0)
