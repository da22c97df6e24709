"""GGUF files: converted once, equal to a second implementation, refused with a sentence where they won't do."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from models.gguf_forward import logits
from transformers import AutoModelForCausalLM

from repl_rl.engine import load_vocabulary
from repl_rl.errors import ModelError
from repl_rl.models import find_model, gguf, resolve_model
from repl_rl.models.gguf import PACKAGED, Packaged

HIDDEN, INNER, HEADS, STORED, LAYERS = 64, 96, 4, 2, 2
TOKENS = [*(chr(code) for code in range(33, 127)), "ab", "Ġ", "Ċ", "<|im_start|>", "<|im_end|>"]
IDS = [5, 17, 80, 3, 3, 41]


def write_model(file: Path, kind: str = "qwen2", head: str = "rounded") -> Path:
    """A small random model; its head is the embeddings rounded once more, one of its own, or left out."""
    random_ = np.random.default_rng(0)
    writer = GGUFWriter(file, kind)
    sizes = {"block_count": LAYERS, "context_length": 64, "embedding_length": HIDDEN, "feed_forward_length": INNER}
    for name, value in (sizes | {"attention.head_count": HEADS, "attention.head_count_kv": STORED}).items():
        writer.add_uint32(f"{kind}.{name}", value)
    writer.add_float32(f"{kind}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{kind}.rope.freq_base", 10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (len(TOKENS) - 2) + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(len(TOKENS) - 1)
    writer.add_bos_token_id(len(TOKENS) - 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")

    def add(name: str, values: np.ndarray, form: GGMLQuantizationType = GGMLQuantizationType.Q8_0) -> None:
        writer.add_tensor(f"{name}.weight", quantize(values, form), raw_dtype=form)

    def matrix(name: str, *shape: int) -> None:
        add(name, random_.normal(0, 0.2, shape).astype(np.float32))

    def vector(name: str, size: int, centre: float) -> None:
        writer.add_tensor(name, random_.normal(centre, 0.2, size).astype(np.float32))

    embeddings = random_.normal(0, 0.5, (len(TOKENS), HIDDEN)).astype(np.float32)
    add("token_embd", embeddings, GGMLQuantizationType.Q5_0)
    if head == "rounded":
        add("output", embeddings)
    elif head == "own":
        matrix("output", len(TOKENS), HIDDEN)
    vector("output_norm.weight", HIDDEN, 1)
    stored = HIDDEN // HEADS * STORED
    for layer in range(LAYERS):
        for name, size in (("q", HIDDEN), ("k", stored), ("v", stored)):
            matrix(f"blk.{layer}.attn_{name}", size, HIDDEN)
            vector(f"blk.{layer}.attn_{name}.bias", size, 0)
        matrix(f"blk.{layer}.attn_output", HIDDEN, HIDDEN)
        matrix(f"blk.{layer}.ffn_gate", INNER, HIDDEN)
        matrix(f"blk.{layer}.ffn_up", INNER, HIDDEN)
        matrix(f"blk.{layer}.ffn_down", HIDDEN, INNER)
        vector(f"blk.{layer}.attn_norm.weight", HIDDEN, 1)
        vector(f"blk.{layer}.ffn_norm.weight", HIDDEN, 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "repl-rl"


def forward(folder: str) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([IDS])).logits[0].double().numpy()
    return found


@pytest.mark.parametrize("head", ["own", "left out"])
def test_the_checkpoint_computes_what_the_file_s_tensors_do(tmp_path: Path, cache: Path, head: str) -> None:
    file = write_model(tmp_path / "small.gguf", head=head)
    folder = resolve_model(str(file))
    assert Path(folder).parent == cache
    assert np.abs(forward(folder) - logits(file, IDS)).max() < 1e-4
    assert json.loads((Path(folder) / "config.json").read_text())["tie_word_embeddings"] is (head == "left out")


def test_a_head_that_is_the_embeddings_rounded_apart_becomes_one_with_them(tmp_path: Path) -> None:
    file = write_model(tmp_path / "small.gguf")
    model = AutoModelForCausalLM.from_pretrained(resolve_model(str(file)), dtype=torch.float32)
    assert model.config.tie_word_embeddings is True
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    # the finer of the two stays: eight bits, and not five
    head = next(each for each in GGUFReader(file).tensors if each.name == "output.weight")
    assert np.array_equal(model.get_input_embeddings().weight.detach().numpy(), dequantize(head.data, head.tensor_type))


def test_it_is_converted_once_with_its_tokenizer(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_model(tmp_path / "small.gguf")
    folder = Path(find_model(str(file)))
    assert not cache.exists()
    assert resolve_model(str(file)) == str(folder)
    assert "converting" in capsys.readouterr().err
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert list(folder.glob("*.gguf")) == []
    vocabulary = load_vocabulary(str(folder))
    assert vocabulary.has_chat_template
    assert vocabulary.eos_ids == {len(TOKENS) - 1}
    assert resolve_model(str(file)) == str(folder)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (
            lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
            "can't be read as GGUF: .*; it is damaged or not complete",
        ),
        (lambda file: file.write_bytes(b"GGUF"), "can't be read as GGUF: .*; it is damaged or not complete"),
        (lambda file: file.write_text("no model"), "can't be read as GGUF: .*; it is damaged or not complete"),
        (
            lambda file: write_model(file, "rwkv9"),
            "holds a model of the kind 'rwkv9', which transformers does not read",
        ),
    ],
)
def test_a_file_that_will_not_do_is_refused_and_leaves_nothing(
    tmp_path: Path, cache: Path, spoil, complaint: str
) -> None:
    file = write_model(tmp_path / "small.gguf")
    spoil(file)
    with pytest.raises(ModelError, match=complaint):
        resolve_model(str(file))
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_a_part_of_a_split_model_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_writer = GGUFWriter

    def split(file: Path, kind: str) -> GGUFWriter:
        writer = whole_writer(file, kind, split_max_tensors=12)
        write_header = writer.write_header_to_file
        monkeypatch.setattr(writer, "write_header_to_file", lambda: write_header(file))
        return writer

    monkeypatch.setitem(write_model.__globals__, "GGUFWriter", split)
    write_model(tmp_path / "small.gguf")
    first = min(tmp_path.glob("small-*.gguf"))
    with pytest.raises(ModelError, match=r"small-00001-of-.* is one of . files that the model was split into"):
        resolve_model(str(first))
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_a_file_that_lacks_weights_is_refused_and_leaves_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutDown(GGUFWriter):  # type: ignore[misc]
        def add_tensor(self, name: str, *args: Any, **kwargs: Any) -> None:
            if "ffn_down" not in name:
                super().add_tensor(name, *args, **kwargs)

    monkeypatch.setitem(write_model.__globals__, "GGUFWriter", WithoutDown)
    file = write_model(tmp_path / "small.gguf")
    with pytest.raises(ModelError, match=r"lacks 2 of the weights of a Qwen2ForCausalLM, such as model.layers.0.mlp"):
        resolve_model(str(file))
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_a_file_that_is_missing() -> None:
    with pytest.raises(ModelError, match=r"there is no file './none.gguf'"):
        find_model("./none.gguf")


def test_no_room_for_it(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_model(tmp_path / "small.gguf")
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(gguf.shutil, "disk_usage", lambda folder: free)
    with pytest.raises(ModelError, match=r"can't be converted into .*it takes 0.0 GB, and 0.0 GB are free.*XDG_CACHE"):
        resolve_model(str(file))
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []


def packaged_as(folder: Path, sha256: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model in two installed packages, as `tiny`."""
    data = write_model(folder / "small.gguf").read_bytes()
    for number, part in enumerate((data[:5000], data[5000:]), 1):
        info = folder / f"tiny_part{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n")
        held = folder / f"tiny_part{number}" / "data"
        held.mkdir(parents=True)
        (held / f"part0{number}.bin").write_bytes(part)
        (held.parent / "__init__.py").write_text("raise AssertionError('imported')\n")
        files = (f"tiny_part{number}/data/part0{number}.bin", f"tiny_part{number}/__init__.py")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(PACKAGED, "tiny", Packaged("owner/tiny", "tiny-part{}", 2, "1.0", sha256, "apache-2.0"))


def test_a_model_in_packages_is_joined_and_checked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(write_model(tmp_path / "whole.gguf").read_bytes()).hexdigest()
    packaged_as(tmp_path, digest, monkeypatch)
    folder = resolve_model("tiny")
    assert folder == find_model("tiny") == str(cache / "tiny-1.0-3")
    assert forward(folder).shape == (len(IDS), len(TOKENS))
    assert list(Path(folder).glob("*.gguf")) == []


def test_parts_with_another_hash_are_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged_as(tmp_path, "0" * 64, monkeypatch)
    with pytest.raises(ModelError, match=r"hold [\d,]+ bytes with another hash than tiny has; install them again: pip"):
        resolve_model("tiny")
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_without_packages_and_hub_both_ways_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: (_ for _ in ()).throw(OSError("no")))
    monkeypatch.setitem(PACKAGED, "tiny", Packaged("owner/tiny", "tiny-part{}", 2, "1.0", "", "apache-2.0"))
    assert find_model("tiny") == "owner/tiny"
    with pytest.raises(
        ModelError,
        match=r"tiny comes from the hub \(hf download owner/tiny\), or .*pip install gguf tiny-part\{1..2\}==1.0",
    ):
        resolve_model("tiny")
