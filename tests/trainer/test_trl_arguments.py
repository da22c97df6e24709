"""Every argument of the installed TRL's GRPOConfig has an effect here, or is refused with the reason.

`trl_arguments.yaml` holds them all: the refused ones with a value, the others with the settings under which another
value shows.
"""

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from recorded import RecordedTrainer, make_tasks_named, recorded, recorded_trainer
from small import with_experts
from transformers import AutoConfig, AutoModelForCausalLM
from trl import GRPOConfig
from trl.trainer import grpo_trainer

from repl_rl.config import Config, parse_config
from repl_rl.errors import ConfigError
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.setup import Extensions, RolloutSetup
from repl_rl.trainer import ReplGRPOConfig
from repl_rl.trainer.arguments import REFUSED
from repl_rl.trainer.rows import as_dataset
from repl_rl.trajectory import Task, Trajectory

ARGUMENTS = yaml.safe_load(Path(__file__).with_name("trl_arguments.yaml").read_text(encoding="utf-8"))
KNOWN: dict[str, Any] = {}
"""What was observed under the settings of earlier tests."""


class Watched(RecordedTrainer):
    """It keeps the length of each batch."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        self.lengths = [*getattr(self, "lengths", []), output["completion_ids"].size(1)]
        return output


def uneven(task: Task, index: int) -> Trajectory:
    return recorded(task, index, is_right=index == 0, lines=2 + (len(task.id) + index) % 3)


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
        **{"max_steps": 2, "learning_rate": 1e-2, "seed": 1, **settings},
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
        "sampling": trainer.batch_sampling(4),
        "lengths": trainer.lengths,
        "printed": printed.count("\n") if trainer.log_completions else 0,
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "hub": hub,
        "tables": tables,
    }


def test_every_argument_is_refused_or_has_an_effect() -> None:
    kinds = [ARGUMENTS["refused"], ARGUMENTS["effects"], ARGUMENTS["elsewhere"], ARGUMENTS["of_the_loop"].split()]
    newer = ARGUMENTS["of_newer_loops"]
    assert sorted(name for kind in kinds for name in kind) == sorted(
        each.name for each in fields(GRPOConfig) if each.init and each.name not in newer
    )
    assert set(ARGUMENTS["refused"]) == set(REFUSED)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_argument_that_would_do_nothing_is_refused_before_anything_is_loaded(name: str, tmp_path: Path) -> None:
    value = ARGUMENTS["refused"][name]
    with pytest.raises(ConfigError) as caught:
        ReplGRPOConfig(str(tmp_path), bf16=False, **{name: value})
    assert str(caught.value) == f"{name}={value!r} of TRL's arguments would do nothing: {REFUSED[name]}"


@pytest.mark.parametrize(
    ("engine", "backend"),
    [(None, "vllm"), ("vllm", "vllm"), ({"places": 8}, "vllm"), ({"servers": ["http://a:1"]}, "auto")],
)
def test_use_vllm_asks_for_vllm(engine: Any, backend: str, tmp_path: Path) -> None:
    given = [engine]
    if engine is not None:
        given.append(parse_config({"engine": engine}).engine)
    for form in given:
        args = ReplGRPOConfig(str(tmp_path), bf16=False, use_vllm=True, vllm_mode="colocate", engine=form)
        assert args.engine.backend == args.config.engine.backend == backend
        assert args.use_vllm is False  # or TRL would load one of its own


def test_what_trl_reads_as_its_default_is_not_refused(tmp_path: Path) -> None:
    assert ReplGRPOConfig(str(tmp_path), bf16=False, scale_rewards=True).scale_rewards == "group"
    with pytest.raises(
        ConfigError, match=r"scale_rewards=False of TRL's arguments .*the section `credit`; its `scale`"
    ):
        ReplGRPOConfig(str(tmp_path), bf16=False, scale_rewards=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ARGUMENTS["effects"]))
@pytest.mark.filterwarnings("ignore:The `vllm_importance_sampling_cap` argument:FutureWarning")
def test_another_value_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value, settings = ARGUMENTS["effects"][name]
    key = json.dumps(settings, sort_keys=True)
    if key not in KNOWN:
        KNOWN[key] = observed(tmp_path / "before", monkeypatch, capsys, **settings)
    before = KNOWN[key]
    after = observed(tmp_path / "after", monkeypatch, capsys, **settings | {name: value})
    assert [key for key in before if before[key] != after[key]]


@pytest.mark.slow
def test_without_another_value_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        observed(tmp_path / name, monkeypatch, capsys, num_iterations=2, log_completions=True)
        for name in ("one", "two")
    )
    assert first == second


def test_a_routers_loss_pads_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = with_experts(tmp_path / "experts")
    settings: dict[str, Any] = {"model": model, "router_aux_loss_coef": 0.0}
    assert recorded_trainer(tmp_path, uneven, make_tasks_named("a"), **settings).packs
    assert "router" not in caplog.text
    assert not recorded_trainer(tmp_path, uneven, make_tasks_named("a"), model=model).packs
    assert "router_aux_loss_coef: 0" in caplog.text
    (Path(model) / "model.safetensors").unlink()  # it is refused before they are loaded
    with pytest.raises(ConfigError, match=r"micro_batch_tokens=64 with the auxiliary loss .*router_aux_loss_coef: 0"):
        recorded_trainer(tmp_path, uneven, make_tasks_named("a"), model=model, micro_batch_tokens=64)


def test_sessions_whose_positions_depend_on_the_longest_one_are_refused(tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(NANO_PATH)
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    config.max_position_embeddings = 256
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError, match=r"engine.context_tokens is 512, and above 256 tokens .* set it to 256"):
        recorded_trainer(tmp_path, uneven, make_tasks_named("a"), model=model, engine={"context_tokens": 512})


def test_the_length_of_a_completion_is_the_budgets(tmp_path: Path) -> None:
    budget = {"tokens": 256}
    args = ReplGRPOConfig(str(tmp_path), bf16=False, budget=budget, max_completion_length=512)  # TRL's default
    assert args.max_completion_length == 256
    with pytest.raises(ConfigError, match=r"max_completion_length=300 and budget\.tokens=256 differ"):
        ReplGRPOConfig(str(tmp_path), bf16=False, budget=budget, max_completion_length=300)


def test_what_a_config_says_reaches_the_arguments_and_the_rollouts(tmp_path: Path) -> None:
    values = {
        "seed": 3,
        "model": {"chat": False},
        "dialect": {"max_output_chars": 99},
        "kernel": {"size": 5},
        "engine": {"backend": "transformers", "context_tokens": 777},
        "sampling": {"temperature": 0.5},
        "budget": {"tokens": 88},
        "subcalls": {"calls": 2},
        "branch": {"roots": 2, "forks": 1, "branches": 2},
        "rewards": {"outcome": 2.0},
        "credit": {"estimator": "branch"},
        "train": {"group_size": 4, "learning_rate": 0.25, "output_loss": 0.125, "mask": "overlong"},
    }
    config = parse_config(values)
    args = ReplGRPOConfig.from_config(config, str(tmp_path), bf16=False)
    sections = ("dialect", "kernel", "engine", "budget", "subcalls", "branch", "rewards", "credit")
    assert Config.sections_in(ReplGRPOConfig) == sections
    for name in sections:
        assert getattr(args, name) is getattr(config, name)
    assert (args.config, args.seed, args.chat, args.temperature) == (config, 3, False, 0.5)
    assert (args.learning_rate, args.output_loss, args.mask) == (0.25, 0.125, config.train.mask)
    assert args.to_dict()["mask"]["overlong"] is True
    for source in (config, args):
        setup = RolloutSetup.for_model(source, str(NANO_PATH), Extensions())
        assert Config.sections_in(RolloutSetup) == ("dialect", "kernel", "sampling", "budget", "subcalls")
        for name in ("dialect", "kernel", "sampling", "budget", "subcalls"):
            assert getattr(setup, name) == getattr(config, name)
        assert (setup.context_tokens, setup.chat, setup.at_once) == (777, False, 5)


@pytest.mark.parametrize(("settings", "message"), ARGUMENTS["contradictory"])
def test_sections_and_trls_arguments_are_checked_together(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        ReplGRPOConfig(str(tmp_path), bf16=False, **settings)


def test_weights_are_those_of_trls_reward_functions(tmp_path: Path) -> None:
    def two(completions: list[Any], **_: Any) -> list[float]:
        return [2.0] * len(completions)

    def made(weights: list[float]) -> list[float]:
        settings = {"per_device_train_batch_size": 2, "reward_weights": weights}
        trainer = recorded_trainer(tmp_path, uneven, make_tasks_named("a"), trainer={"reward_funcs": two}, **settings)
        return [float(weight) for weight in trainer.reward_weights]

    assert made([0.5]) == [1.0, 1.0, 0.5]
    assert made([1.0, 1.0, 0.25]) == [1.0, 1.0, 0.25]
    with pytest.raises(ConfigError) as caught:
        made([0.5, 1.0, 1.0])
    assert str(caught.value) == (
        "reward_weights=[0.5, 1.0, 1.0] of TRL's arguments: give one for each of the 1 functions in reward_funcs; what "
        "outcome, table weigh is said in the section `rewards`"
    )


def test_what_a_file_says_of_loading_goes_beside_its_dtype(tmp_path: Path) -> None:
    attention = {"attn_implementation": "sdpa"}
    settings = {"dtype": "bfloat16", "lora": {"r": 4}, "trl": {"model_init_kwargs": attention}}
    config = parse_config({"train": settings})
    arguments = ReplGRPOConfig.from_config(config, str(tmp_path), bf16=False)
    assert arguments.model_init_kwargs == {"dtype": "bfloat16", **attention}
    other = parse_config({"train": settings | {"trl": {"model_init_kwargs": {"dtype": "float32"}}}})
    with pytest.raises(ConfigError, match=r"dtype 'float32', and train.dtype is 'bfloat16'"):
        ReplGRPOConfig.from_config(other, str(tmp_path), bf16=False)


def test_a_config_that_samples_with_cut_tails_makes_no_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sampling.min_p 0.2 .* would be biased"):
        ReplGRPOConfig.from_config(parse_config({"sampling": {"min_p": 0.2}}), str(tmp_path))
