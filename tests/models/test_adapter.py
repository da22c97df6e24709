"""Adapters that stand alone: what a run with `train.lora` leaves in its checkpoints is evaluated as any other model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from repl_rl.errors import ModelError
from repl_rl.models import find_model, resolve_model
from repl_rl.models.find import config_of_model, own_sampling
from repl_rl.models.nano import NANO_PATH
from repl_rl.run.evaluation.plan import make_plan

pytestmark = pytest.mark.more


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def adapter(tmp_path: Path, cache: None) -> tuple[Path, torch.Tensor]:
    """An adapter of nano that changes what it says, as a trainer saves it, and the logits with it."""
    torch.manual_seed(0)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32),
        LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"),
    )
    folder = tmp_path / "checkpoint-2"
    model.save_pretrained(folder)
    with torch.no_grad():
        return folder, model(torch.arange(20)[None]).logits


def test_it_is_merged_once_into_the_model_that_it_was_trained_on(adapter: tuple[Path, torch.Tensor]) -> None:
    folder, logits = adapter
    place = Path(find_model(str(folder)))
    assert not place.exists()
    assert resolve_model(str(folder)) == str(place)
    assert AutoTokenizer.from_pretrained(place)("1 + 1").input_ids
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)(torch.arange(20)[None]).logits
        plain = AutoModelForCausalLM.from_pretrained(NANO_PATH, dtype=torch.float32)(torch.arange(20)[None]).logits
    torch.testing.assert_close(merged, logits, rtol=1e-4, atol=1e-4)
    assert (merged - plain).abs().max() > 0.1
    made = (place / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(str(folder)) == str(place)
    assert (place / "model.safetensors").stat().st_mtime_ns == made


def test_other_settings_and_another_base_are_merged_anew(adapter: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    folder, _ = adapter
    base = shutil.copytree(NANO_PATH, tmp_path / "base")
    settings = json.loads((folder / "adapter_config.json").read_text())
    places = {find_model(str(folder))}
    for change in ({"lora_alpha": 64}, {"base_model_name_or_path": str(base)}):
        (folder / "adapter_config.json").write_text(json.dumps(settings | change))
        places.add(find_model(str(folder)))
    weights = load_file(base / "model.safetensors")
    save_file({name: -weight for name, weight in weights.items()}, base / "model.safetensors", {"format": "pt"})
    places.add(find_model(str(folder)))
    assert len(places) == 4
    assert places == {*places, find_model(str(folder))}


def test_its_base_says_what_is_asked_before_it_is_merged(adapter: tuple[Path, torch.Tensor]) -> None:
    folder, _ = adapter
    assert config_of_model(str(folder)) == config_of_model(str(NANO_PATH)) is not None
    assert own_sampling(str(folder)) == own_sampling(str(NANO_PATH))
    plan = make_plan("quickstart", ["eval.problems=1"], [str(folder)])
    assert plan.config.model.path == str(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model_name_or_path": None}, "does not say which model the adapter is for"),
        (
            {"base_model_name_or_path": "/nowhere/base"},
            "into /nowhere/base, the model that it was trained on: ",
        ),
    ],
)
def test_an_adapter_without_its_model_is_refused(
    adapter: tuple[Path, torch.Tensor], change: dict[str, str], message: str
) -> None:
    file = adapter[0] / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        resolve_model(str(adapter[0]))


def test_damaged_ones_are_refused(adapter: tuple[Path, torch.Tensor]) -> None:
    folder, _ = adapter
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelError, match="can't be merged into"):
        resolve_model(str(folder))
    weights.unlink()
    with pytest.raises(ModelError, match=r"an adapter without adapter_model.safetensors; save it again"):
        find_model(str(folder))
    (folder / "adapter_config.json").write_text("[]")
    weights.touch()
    with pytest.raises(ModelError, match="can't be read"):
        resolve_model(str(folder))
