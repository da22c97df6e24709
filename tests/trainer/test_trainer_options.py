"""What people switch on in TRL works here too: real steps on nano, with real kernels and engines."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from recorded import RecordedTrainer, first_is_right, make_tasks_named, recorded, recorded_trainer
from safetensors import safe_open
from small import rows_of, small_trainer, with_experts
from transformers import AutoModelForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM
from vocabularies import nano

from repl_rl import ReplGRPOTrainer, read_jsonl
from repl_rl.config import CreditConfig, EngineConfig, ModelConfig
from repl_rl.config.train import KAHAN
from repl_rl.credit import line_advantages
from repl_rl.engine.factory import make_engine
from repl_rl.engine.vocabulary import load_vocabulary
from repl_rl.models.nano import NANO_PATH
from repl_rl.tasks import make_tasks
from repl_rl.trainer.weights import WholeWeights
from repl_rl.trajectory import StopReason, Task, Trajectory

pytestmark = pytest.mark.more

MakeTrainer = Callable[..., ReplGRPOTrainer]


@pytest.fixture
def make_trainer(tmp_path: Path) -> Iterator[MakeTrainer]:
    """`trainer` holds the trainer's further arguments, the others those of its config."""
    with ExitStack() as opened:

        def make(trainer: dict[str, Any] | None = None, **settings: Any) -> ReplGRPOTrainer:
            rewards = {"kinds": {"exception": -0.25, "syntax_error": -0.25}}
            settings = {"learning_rate": 3e-3, "rewards": rewards, **settings}
            return opened.enter_context(small_trainer(tmp_path, trainer=trainer, **settings))

        yield make


def steps_of(trainer: ReplGRPOTrainer) -> list[dict[str, float]]:
    trainer.train()
    return rows_of(trainer)


def lora(*modules: str, **settings: Any) -> LoraConfig:
    return LoraConfig(r=4, target_modules=list(modules) or "all-linear", task_type="CAUSAL_LM", **settings)


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def randomize(model: Any) -> None:
    """Give adapters weights that say something."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name:
                value.normal_(std=0.1)


@pytest.mark.covers(
    "one process, LoRA", "the adapter alone is trained; the engine samples with it, merged or beside the weights"
)
@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [{"backend": "transformers"}, {}, {"vllm": {"enable_lora": True, "max_lora_rank": 8}}]
)
def test_lora_trains_the_adapter_alone_and_the_engine_samples_with_it(
    make_trainer: MakeTrainer, engine: dict[str, Any]
) -> None:
    adapter = lora("q_proj", "v_proj", "down_proj")
    engine = {"context_tokens": 384, "places": 16, **engine}
    trainer = make_trainer({"peft_config": adapter}, engine=engine, max_steps=3, learning_rate=2e-2)
    before = weights_of(trainer.model)
    history = steps_of(trainer)
    moved = {name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert max(row["drift/logprob_max"] for row in history) < 1e-3, "it samples with the adapter of its step"
    probe = torch.arange(1, 40)[None]
    with torch.no_grad():
        adapted = trainer.model(input_ids=probe).logits
        with trainer.model.disable_adapter():
            plain = trainer.model(input_ids=probe).logits
    assert (adapted - plain).abs().max() > 1e-2, "the adapter says enough for the drift to show its absence"


@pytest.fixture
def dense_engine() -> Iterator[None]:
    """vLLM has made its groups of processes for a model without experts."""
    engine: Any = make_engine(str(NANO_PATH), nano(), ModelConfig(), EngineConfig(backend="vllm", context_tokens=384))
    yield
    engine.close()


@pytest.mark.covers(
    "a mixture of experts, LoRA, vLLM", "experts and router are adapted; each step is sampled with its own weights"
)
@pytest.mark.filterwarnings("ignore:The following .* keys did not match any targeted module:RuntimeWarning")
def test_experts_are_adapted_and_vllm_and_what_is_saved_have_them(
    make_trainer: MakeTrainer, tmp_path: Path, dense_engine: None
) -> None:
    engine = {"context_tokens": 384, "places": 16}
    trainer = make_trainer({"peft_config": lora()}, model=with_experts(tmp_path / "experts"), engine=engine)
    randomize(trainer.model)
    before = weights_of(trainer.model)
    assert max(row["drift/logprob_max"] for row in steps_of(trainer)) < 1e-3
    moved = {name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])}
    assert {name.split(".mlp.")[1] for name in moved if ".mlp." in name} == {
        f"{module}.lora_{side}.default.weight"
        for module in ("experts", "experts.base_layer", "gate")
        for side in ("A", "B")
    }
    assert all("lora_" in name for name in moved)
    trainer.save_whole(tmp_path / "model")
    assert not (tmp_path / "model" / "adapter_config.json").exists()
    saved, probe = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval(), torch.arange(1, 40)[None]
    trainer.model.eval()
    with torch.no_grad():
        assert torch.allclose(saved(input_ids=probe).logits, trainer.model(input_ids=probe).logits, atol=1e-4)
    assert len(load_vocabulary(str(tmp_path / "model"), trainer.service.vocabulary.stops).stop_ids) > 1


@pytest.mark.parametrize("adapter", [None, lora("q_proj", "o_proj")], ids=["all of it", "an adapter"])
def test_a_saved_model_has_the_buffers_of_its_checkpoint(tmp_path: Path, adapter: LoraConfig | None) -> None:
    """A router's biases are a buffer that its checkpoint has, the rotary frequencies are one that it does not have."""
    settings = Glm4MoeConfig(
        vocab_size=640,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
    )
    model: Any = Glm4MoeForCausalLM(settings)
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.copy_(torch.tensor([0.5, -0.25, 0.125, 1.0]))
    names = set(model.state_dict())
    if adapter is not None:
        model = get_peft_model(model, adapter)
    saving = WholeWeights(model, Accelerator(cpu=True), nano().tokenizer)
    saving.save(tmp_path)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert set(loaded.state_dict()) == names
    assert torch.equal(loaded.model.layers[1].mlp.gate.e_score_correction_bias, bias)
    with safe_open(tmp_path / "model.safetensors", "pt") as saved:
        assert [name for name in saved.keys() if "inv_freq" in name] == []  # noqa: SIM118 - not a dict


@pytest.mark.covers("LoRA on weights in bfloat16", "200 syncs leave them as they were, to the bit")
@pytest.mark.parametrize(
    "variant", [{}, pytest.param({"use_dora": True}, marks=pytest.mark.slow)], ids=["lora", "dora"]
)
def test_200_syncs_leave_a_bfloat16_base_as_it_was(make_trainer: MakeTrainer, variant: dict[str, Any]) -> None:
    adapter = lora("q_proj", "down_proj", **variant)
    trainer = make_trainer({"peft_config": adapter}, bf16=True, model_init_kwargs={"dtype": "bfloat16"})
    randomize(trainer.model)
    before = weights_of(trainer.model)
    sent: dict[str, torch.Tensor] = {}
    for _ in range(200):
        sent = {name: weight.clone() for name, weight in trainer.vllm_generation.whole_weights()}
    for name, value in trainer.model.named_parameters():
        assert torch.equal(value, before[name]), name
    trainer.model.merge_adapter()
    plain = "base_model.model.{}.base_layer.weight".format
    for name in ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"):
        merged = trainer.model.get_parameter(plain(name))
        assert torch.equal(sent[f"{name}.weight"], merged)
        assert not torch.equal(merged, before[plain(name)])
    assert not [name for name in sent if "lora" in name or "base_layer" in name]


def test_adapters_begin_at_the_same_numbers_for_the_same_seed(make_trainer: MakeTrainer) -> None:
    torch.manual_seed(1)
    first = weights_of(make_trainer({"peft_config": lora()}).model)
    torch.manual_seed(2)
    second = weights_of(make_trainer({"peft_config": lora()}).model)
    assert [name for name, value in first.items() if not torch.equal(value, second[name])] == []


@pytest.mark.covers("a float32 trainer, a bfloat16 sampler", "the sampler has the weights that are trained, rounded")
def test_a_float32_trainer_samples_in_bfloat16_with_its_own_weights(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(bf16=True, sampler_dtype="bfloat16", learning_rate=1e-6)
    before = weights_of(trainer.model)
    history = steps_of(trainer)
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
    sent: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(trainer.engine, "load_weights", lambda weights: sent.update(weights))
    trainer.sync_weights()
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(sent[name], weight.to(torch.bfloat16)), name
    assert 0 < max(row["drift/logprob_mean"] for row in history) < 0.1
    moved = sum(int((weight != before[name]).sum()) for name, weight in trainer.model.named_parameters())
    assert moved > 0.5 * sum(weight.numel() for weight in before.values())


@pytest.mark.slow
def test_what_a_step_rounds_away_in_bfloat16_is_kept_for_the_next(make_trainer: MakeTrainer) -> None:
    arguments = {"bf16": True, "model_init_kwargs": {"dtype": "bfloat16"}, "learning_rate": 1e-6, "optim": KAHAN}
    trainer = make_trainer(**arguments)
    before = weights_of(trainer.model)
    steps_of(trainer)
    kept = trainer.optimizer.state
    moved = waiting = 0
    for name, weight in trainer.model.named_parameters():
        assert weight.dtype == torch.bfloat16
        moved += int((weight != before[name]).sum())
        waiting += int(((weight == before[name]) & (kept[weight]["kahan_comp"] != 0)).sum())
    total = sum(weight.numel() for weight in before.values())
    assert moved < 0.5 * total < waiting + moved


def test_a_stop_that_only_some_batches_have_is_averaged_over_all_of_them(tmp_path: Path) -> None:
    """Two evaluation batches of two problems, each rolled out twice: only in the first did a line run out of tokens."""

    def recording(task: Task, index: int) -> Trajectory:
        is_short = task.id != "long"
        return recorded(task, index, stop_reason=StopReason.ANSWER if is_short else StopReason.LINE_TOKENS)

    tasks = make_tasks_named("a", "b", "c", "long")
    trainer = recorded_trainer(
        tmp_path,
        recording,
        tasks,
        trainer={"eval_dataset": tasks},
        per_device_train_batch_size=2,
        per_device_eval_batch_size=4,
    )
    found = trainer.evaluate()
    assert {name: found[name] for name in found if name.startswith("eval_stops/")} == {
        "eval_stops/answer": 0.75,
        "eval_stops/line_tokens": 0.25,
    }


class WatchedTrainer(RecordedTrainer):
    """Keeps what each loss was given, and the log-probabilities that it found."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.given: list[dict[str, Any]] = []
        self.found: list[torch.Tensor] = []
        super().__init__(*arguments, **named)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self.given.append(inputs)
        loss = super()._compute_loss(model, inputs)
        with torch.no_grad():
            self.found.append(self.logprobs(inputs))
        return loss


def watched(folder: Path, **settings: Any) -> WatchedTrainer:
    trainer = recorded_trainer(
        folder,
        first_is_right,
        make_tasks_named("a", "b", "c", "d"),
        kind=WatchedTrainer,
        **{"per_device_train_batch_size": 8, "optim": "sgd", "learning_rate": 0.1, **settings},
    )
    assert isinstance(trainer, WatchedTrainer)
    return trainer


def test_in_the_second_epoch_ratios_are_to_the_policy_that_sampled(tmp_path: Path) -> None:
    trainer = watched(tmp_path, num_iterations=2, max_steps=2)
    trainer.train()
    assert len(trainer.service.calls) == 1
    assert trainer.weight_syncs == 1
    first, second = trainer.given
    assert torch.equal(first["completion_ids"], second["completion_ids"])
    assert torch.equal(first["old_per_token_logps"], second["old_per_token_logps"])
    typed = (first["completion_mask"] * first["tool_mask"]).bool()
    apart = [(now - first["old_per_token_logps"])[typed].abs().max().item() for now in trainer.found]
    assert apart[0] < 1e-5
    assert apart[1] > 1e-3


@pytest.mark.parametrize("with_lora", [False, True])
def test_kl_is_between_policy_and_first_policy_over_typed_tokens(tmp_path: Path, with_lora: bool) -> None:
    """Logged is the mean over typed tokens of (exp(r) - r - 1) p / p_old, r = log reference - log p: Schulman's k3, and
    the ratio that DeepSeek-V3.2 puts before it."""
    adapter = lora("q_proj", "v_proj")
    trainer = watched(
        tmp_path, beta=0.5, max_steps=2, num_iterations=2, trainer={"peft_config": adapter} if with_lora else {}
    )
    trainer.train()
    kls = [row["kl"] for row in trainer.state.log_history if "kl" in row]
    for inputs, policy, kl in zip(trainer.given, trainer.found, kls, strict=True):
        typed = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        apart = (inputs["ref_per_token_logps"] - policy)[typed]
        ratio = (policy - inputs["old_per_token_logps"])[typed].exp()
        assert kl == pytest.approx(((apart.exp() - apart - 1) * ratio).mean().item(), rel=1e-3, abs=1e-6)
    assert kls[0] == pytest.approx(0.0, abs=1e-6)
    assert kls[1] > 1e-5
    first, _ = trainer.given
    torch.testing.assert_close(first["ref_per_token_logps"], first["old_per_token_logps"], atol=1e-5, rtol=0)


def test_steps_on_trees(tmp_path: Path) -> None:
    """Real forks, and every branch with the advantage of its tree."""
    tasks = make_tasks(["product", "gcd"], 16, seed=1, split="train")
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 12,
        "num_generations": 6,
        "num_generations_eval": 1,
        "per_device_eval_batch_size": 4,
        "kernel": {"size": 12},
        "budget": {"lines": 5, "tokens": 96, "line_tokens": 32},
        "rewards": {"kinds": {"exception": -0.25, "syntax_error": -0.25}},
        "branch": {"roots": 2, "forks": 1, "branches": 3, "within": 2},
        "credit": {"estimator": "branch"},
    }
    with small_trainer(tmp_path, tasks, {"eval_dataset": tasks[:4]}, **settings) as trainer:
        trainer.train()
        measured = trainer.evaluate()
    assert trainer.args.to_dict()["branch"]["branches"] == 3
    assert "eval_branches/fork" not in measured  # held-out sessions are never forked
    rows = rows_of(trainer)
    assert len(rows) == 2
    assert all(row["branches/fork"] + row["branches/replay"] + row["branches/anew"] == 1 for row in rows)
    assert any(row["branches/fork"] > 0 for row in rows)
    for step in (1, 2):
        kept = list(read_jsonl(tmp_path / "rollouts" / f"step_{step:05d}.jsonl"))
        assert len(kept) == 12
        for group in (kept[:6], kept[6:]):
            rewards = [[line.reward or 0.0 for line in each.lines] for each in group]
            values = line_advantages(group, rewards, CreditConfig(estimator="branch"))
            assert [[line.advantage for line in each.lines] for each in group] == values
            assert [each.branch is None for each in group] == [True] * 2 + [False] * 4
