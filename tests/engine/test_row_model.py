"""Rows of keys and values under real model families: fed piece by piece, they give a plain forward pass's numbers."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, random_model
from transformers import AutoModelForCausalLM

from repl_rl.engine.transformers.model import KVRows, RowModel
from repl_rl.errors import EngineError, ModelError

LENGTHS = (40, 33, 21)
CUTS = (0, 11, 12, 13, 21)
"""The rows get 11 tokens, then one, then one, then 8, then what is left of each."""


def made(family: str, folder: Path) -> Path:
    """A random checkpoint whose attention matters: with the usual small weights all tokens look alike."""
    model = random_model(family)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(8)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("Llama", tmp_path_factory.mktemp("llama"))


def random_sequences() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 96, (length,), generator=generator).tolist() for length in LENGTHS]


def logps_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, -1], dim=-1)  # (V,)


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_fed_to_rows_give_what_a_forward_pass_gives(family: str, tmp_path: Path) -> None:
    path = made(family, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model = RowModel(str(path), "float32")
    sequences = random_sequences()
    model.rows.reserve(4, max(LENGTHS))
    largest = 0.0
    for first, last in pairwise((*CUTS, max(LENGTHS))):
        going = [ids for ids in sequences if len(ids) > first]
        logits = model.next_logits(0, [ids[first:last] for ids in going], [first] * len(going))
        for ids, found in zip(going, torch.log_softmax(logits, dim=-1), strict=True):
            largest = max(largest, (found - logps_of(reference, ids[:last])).abs().max().item())
    assert largest < 1e-4


@pytest.mark.parametrize(("family", "reason"), [("Mamba", "recurrent states"), ("BLOOM", "'eager' attention")])
def test_a_model_that_rows_cannot_hold_is_refused(family: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"the transformers engine can't run '{tmp_path}': .*{reason}"):
        RowModel(str(made(family, tmp_path)), "float32")


@pytest.mark.parametrize(
    ("rope", "positions"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 512),
        ({"rope_type": "dynamic", "factor": 4.0}, 128),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128),
        ({"rope_type": "longrope", "original_max_position_embeddings": 64}, 64),
    ],
)
def test_rows_are_as_long_as_positions_scale_alike_for_all_of_them(
    rope: dict[str, Any], positions: int, llama: Path, tmp_path: Path
) -> None:
    """longrope and dynamic rotate all rows of a pass by the longest one, from the original length on."""
    folder = shutil.copytree(llama, tmp_path / "scaled")
    config = json.loads((folder / "config.json").read_text())
    pairs = config["head_dim"] // 2
    if rope["rope_type"] == "longrope":
        rope = {**rope, "short_factor": [1.0] * pairs, "long_factor": [4.0] * pairs}
    config |= {"max_position_embeddings": 128, "rope_parameters": {"rope_theta": 10_000.0, **rope}}
    (folder / "config.json").write_text(json.dumps(config))
    assert RowModel(str(folder), "float32").most_positions == positions


def test_a_model_whose_rows_give_other_numbers_is_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVRows, "get_query_offset", lambda self, layer_idx=0: self._positions * 0)
    with pytest.raises(ModelError, match="are off by"):
        RowModel(str(llama), "float32")


def test_rows_of_different_lengths_grow_and_change_places(llama: Path) -> None:
    model, sequences = RowModel(str(llama), "float32"), random_sequences()
    reference = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    model.rows.reserve(2, 32)
    model.next_logits(0, [sequences[0][:30], sequences[1][:7]], [0, 0])
    model.rows.swap(0, 1, 30)
    model.rows.reserve(4, 64)
    logits = model.next_logits(0, [sequences[1][7:9], sequences[0][30:36]], [7, 30])
    for found, ids in zip(torch.log_softmax(logits, dim=-1), (sequences[1][:9], sequences[0][:36]), strict=True):
        assert torch.allclose(found, logps_of(reference, ids), atol=1e-4)


def test_a_weight_of_another_shape_is_refused(llama: Path) -> None:
    """One of another name: `test_transformers_engine.py`."""
    model = RowModel(str(llama), "float32")
    with pytest.raises(EngineError, match=r"'model\.norm\.weight' of shape \(3,\): the engine's is \(64,\)"):
        model.load_weights([("model.norm.weight", torch.zeros(3))])
