"""Every argument of the installed TRL's GRPOConfig has an effect here, or is refused with the reason."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded import RecordedTrainer, make_tasks_named, recorded, recorded_trainer
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from trl import GRPOConfig
from trl.trainer import grpo_trainer

from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.trainer import ReplGRPOConfig
from repl_rl.trainer.arguments import REFUSED
from repl_rl.trainer.rows import as_dataset
from repl_rl.trajectory import Task, Trajectory

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
    "data_seed": 7,
    "label_names": ["answer"],
    "label_smoothing_factor": 0.1,
    "prediction_loss_only": True,
    "include_for_metrics": ["inputs"],
    "batch_eval_metrics": True,
    "eval_accumulation_steps": 2,
    "eval_do_concat_batches": False,
    "eval_use_gather_object": True,
    "train_sampling_strategy": "group_by_length",
    "length_column_name": "tokens",
    "average_tokens_across_devices": False,
    "log_multimodal": False,
    "remove_unused_columns": True,
    "trust_remote_code": True,
}
"""A value for each refused argument that is not TRL's default."""
DRIFTED: dict[str, Any] = {"num_iterations": 2}
"""Each batch is trained on twice, so that in the second step ratios are not 1."""
WITH_REFERENCE: dict[str, Any] = {"beta": 0.1, "max_steps": 3}
FOLLOWED = {**WITH_REFERENCE, "sync_ref_model": True, "ref_model_sync_steps": 1}
VESPO = {**DRIFTED, "loss_type": "vespo", "vllm_importance_sampling_correction": False, "learning_rate": 1e-4}
ADAPTIVE: dict[str, Any] = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_coef_delta": 0.005}
PRINTED: dict[str, Any] = {"log_completions": True}
EFFECTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam_beta1": (0.5, {}),
    "adam_beta2": (0.5, {}),
    "adam_epsilon": (0.1, {}),
    "beta": (0.1, {}),
    "cast_lm_head_to_fp32": (True, {"model": "experts", "model_init_kwargs": {"dtype": "bfloat16"}}),
    "delta": (0.5, DRIFTED),
    "disable_dropout": (True, {"model": "dropout", "model_init_kwargs": None}),
    "entropy_coef": (0.1, {}),
    "entropy_coef_delta": (0.01, ADAPTIVE),
    "entropy_coef_max": (0.011, {**ADAPTIVE, "entropy_target": 100.0}),
    "entropy_coef_min": (0.009, {**ADAPTIVE, "entropy_target": 0.0}),
    "entropy_target": (100.0, {**ADAPTIVE, "entropy_target": 0.0}),
    "epsilon": (0.01, DRIFTED),
    "epsilon_high": (0.01, DRIFTED),
    "generation_batch_size": (8, {}),
    "gradient_accumulation_steps": (2, {}),
    "importance_sampling_level": ("sequence", {**DRIFTED, "loss_type": "grpo"}),
    "learning_rate": (1e-4, {}),
    "log_completions": (True, {}),
    "log_completions_hub_repo": ("me/completions", PRINTED),
    "log_unique_prompts": (True, PRINTED),
    "logging_steps": (2, {}),
    "loss_type": ("grpo", {}),
    "lr_scheduler_type": ("constant", {}),
    "max_grad_norm": (1e-4, {"optim": "sgd"}),
    "max_steps": (1, {}),
    "model_init_kwargs": ({"dtype": "bfloat16"}, {}),
    "num_completions_to_print": (1, PRINTED),
    "num_generations": (4, {}),
    "num_generations_eval": (4, {"is_evaluated": True}),
    "num_iterations": (2, {}),
    "num_train_epochs": (2, {"max_steps": -1}),
    "off_policy_mask_threshold": (1e-4, {}),
    "optim": ("sgd", {}),
    "pad_to_multiple_of": (32, {}),
    "per_device_eval_batch_size": (2, {"is_evaluated": True}),
    "per_device_train_batch_size": (8, {}),
    "ref_model_mixup_alpha": (0.1, FOLLOWED),
    "ref_model_sync_steps": (2, FOLLOWED),
    "router_aux_loss_coef": (0.5, {"model": "experts"}),
    "sapo_temperature_neg": (3.0, {**DRIFTED, "loss_type": "sapo"}),
    "sapo_temperature_pos": (3.0, {**DRIFTED, "loss_type": "sapo"}),
    "save_strategy": ("steps", {"save_steps": 1}),
    "seed": (7, {}),
    "shuffle_dataset": (False, {}),
    "steps_per_generation": (2, {}),
    "sync_ref_model": (True, {**WITH_REFERENCE, "ref_model_sync_steps": 1}),
    "temperature": (0.5, {}),
    "top_entropy_quantile": (0.5, {}),
    "top_k": (5, {}),
    "top_p": (0.9, {}),
    "use_adaptive_entropy": (True, {"entropy_coef": 0.01}),
    "use_bias_correction_kl": (False, {**DRIFTED, "beta": 0.1}),
    "vespo_k_neg": (20.0, VESPO),
    "vespo_k_pos": (20.0, VESPO),
    "vespo_lambda_neg": (20.0, VESPO),
    "vespo_lambda_pos": (0.1, VESPO),
    "vllm_importance_sampling_cap": (1e-3, {}),
    "vllm_importance_sampling_clip_max": (1e-3, {}),
    "vllm_importance_sampling_clip_min": (0.1, {}),
    "vllm_importance_sampling_correction": (False, {}),
    "vllm_importance_sampling_mode": ("sequence_truncate", {}),
    "warmup_steps": (2, {}),
    "weight_decay": (0.5, {}),
}
"""Another value for each argument that has an effect, and the settings under which it shows."""
ELSEWHERE = {"max_completion_length", "reward_weights"}
"""Tested below."""
OF_THE_LOOP = """
accelerator_config bf16 bf16_full_eval dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context
dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend
ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed
disable_tqdm do_eval do_predict do_train enable_jit_checkpoint eval_delay eval_on_start eval_steps eval_strategy
fp16 fp16_full_eval fsdp fsdp_config full_determinism gradient_checkpointing gradient_checkpointing_kwargs
greater_is_better hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy hub_token
ignore_data_skip include_num_input_tokens_seen liger_kernel_config load_best_model_at_end local_rank log_level
log_level_replica log_on_each_node logging_first_step logging_nan_inf_filter logging_strategy lr_scheduler_kwargs
metric_for_best_model neftune_noise_alpha optim_args optim_target_modules output_dir parallelism_config project
push_to_hub report_to restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node
save_only_model save_steps save_total_limit skip_memory_metrics tf32 torch_compile torch_compile_backend
torch_compile_mode torch_empty_cache_steps trackio_bucket_id trackio_space_id trackio_static_space_id use_cache
use_cpu use_liger_kernel auto_find_batch_size
"""
"""Read by transformers' Trainer, whose loop is unchanged here: devices, processes, files and trackers."""
KNOWN: dict[str, Any] = {}
"""What was observed under the settings of earlier tests."""
ALL = {each.name for each in fields(GRPOConfig) if each.init}


class Watched(RecordedTrainer):
    """It keeps the length of each batch."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        self.lengths = [*getattr(self, "lengths", []), output["completion_ids"].size(1)]
        return output


def uneven(task: Task, place: int) -> Trajectory:
    return recorded(task, place, is_right=place == 0, lines=2 + (len(task.id) + place) % 3)


def with_experts(folder: Path) -> str:
    """A random mixture of experts with nano's tokenizer, whose head is not its embedding."""
    shutil.copytree(NANO_PATH, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    vocabulary = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "head_dim": 16}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=vocabulary, **sizes, **heads, **experts)).save_pretrained(folder)
    return str(folder)


def with_dropout() -> Any:
    model = AutoModelForCausalLM.from_pretrained(NANO_PATH)
    model.dropout = torch.nn.Dropout(0.5)
    return model


def observed(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **settings: Any) -> Any:
    """All that some steps leave behind, but times."""
    asked = settings.pop("model", "nano")
    is_evaluated = settings.pop("is_evaluated", False)
    model = {
        "nano": lambda: str(NANO_PATH),
        "experts": lambda: with_experts(folder / "experts"),
        "dropout": with_dropout,
    }
    hub: list[str] = []
    tables: list[int] = []
    tracker = SimpleNamespace(
        run=True, Table=lambda dataframe: len(dataframe), log=lambda row: tables.extend(row.values())
    )
    monkeypatch.setattr(grpo_trainer, "wandb", tracker, raising=False)
    monkeypatch.setattr(grpo_trainer, "create_repo", lambda name, **_: hub.append(name))
    monkeypatch.setattr(
        grpo_trainer, "DatasetCard", SimpleNamespace(from_template=lambda **_: SimpleNamespace(push_to_hub=hub.append))
    )
    monkeypatch.setattr(grpo_trainer, "CommitScheduler", lambda **named: hub.append(named["repo_id"]))
    trainer = recorded_trainer(
        folder,
        uneven,
        make_tasks_named(*("a" * length for length in range(1, 9))),
        kind=Watched,
        model=model[asked](),
        **{"per_device_train_batch_size": 4, "max_steps": 2, "learning_rate": 1e-2, "seed": 1, **settings},
    )
    trainer.args.report_to = ["wandb"]
    trainer.train()
    if is_evaluated:
        trainer.evaluate(as_dataset(make_tasks_named("x", "y"), True))
    printed = capsys.readouterr().out
    weights = {
        name: hashlib.sha256(value.float().numpy().tobytes()).hexdigest()
        for name, value in trainer.model.state_dict().items()
    }
    timed = ("time", "per_second", "per_s", "seconds", "flos")
    return {
        "weights": weights,
        "types": {name: str(value.dtype) for name, value in trainer.model.state_dict().items()},
        "dropout": [module.p for module in trainer.model.modules() if isinstance(module, torch.nn.Dropout)],
        "log": [
            {key: value for key, value in row.items() if not any(part in key for part in timed)}
            for row in trainer.state.log_history
        ],
        "calls": trainer.service.calls,
        "sampling": trainer.batch_sampling(),
        "lengths": trainer.lengths,
        "printed": printed.count("\n") if trainer.log_completions else 0,
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "hub": hub,
        "tables": tables,
    }


def test_every_refused_argument_is_one_of_trls() -> None:
    assert set(OTHER) == set(REFUSED) <= {each.name for each in fields(GRPOConfig)}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_argument_that_would_do_nothing_is_refused_before_anything_is_loaded(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ReplGRPOConfig(str(tmp_path), bf16=False, **{name: OTHER[name]})
    assert str(caught.value) == f"{name}={OTHER[name]!r} of TRL's arguments would do nothing: {REFUSED[name]}"


def test_every_argument_is_refused_or_has_an_effect() -> None:
    kinds = [set(REFUSED), set(EFFECTS), ELSEWHERE, set(OF_THE_LOOP.split())]
    assert set().union(*kinds) == ALL
    assert sum(map(len, kinds)) == len(ALL)


@pytest.mark.parametrize("name", sorted(EFFECTS))
@pytest.mark.filterwarnings("ignore:The `vllm_importance_sampling_cap` argument:FutureWarning")
def test_another_value_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value, settings = EFFECTS[name]
    key = json.dumps(settings, sort_keys=True)
    if key not in KNOWN:
        KNOWN[key] = observed(tmp_path / "before", monkeypatch, capsys, **settings)
    before = KNOWN[key]
    after = observed(tmp_path / "after", monkeypatch, capsys, **settings | {name: value})
    assert [key for key in before if before[key] != after[key]]


def test_without_another_value_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (observed(tmp_path / name, monkeypatch, capsys, **DRIFTED, **PRINTED) for name in ("one", "two"))
    assert first == second


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


def recorded_one(task: Task, place: int) -> Trajectory:
    return recorded(task, place, is_right=place == 0)
