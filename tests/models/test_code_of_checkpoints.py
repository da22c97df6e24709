"""No code that comes with a checkpoint is run, and nobody is asked whether it may be."""

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small import small_args

import repl_rl
from repl_rl import ReplGRPOTrainer, Task
from repl_rl.config import EngineConfig
from repl_rl.engine import load_vocabulary
from repl_rl.engine.transformers.model import RowModel
from repl_rl.errors import ConfigError, ModelError
from repl_rl.models.nano import NANO_PATH
from repl_rl.models.skeleton import require_trainable, skeleton

PACKAGE = Path(repl_rl.__file__).parent
CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Path({ran!r}).touch()


class StrangeConfig(LlamaConfig):
    model_type = "strange"


class StrangeModel(LlamaForCausalLM):
    config_class = StrangeConfig


class StrangeTokenizer(PreTrainedTokenizerFast):
    pass
"""
NEEDS_CODE = (
    "it comes with code of its own, and no code of a checkpoint is run here; take a model whose classes transformers "
    "itself has"
)


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that its own code alone can read. Asking on the terminal fails the test, and so does running it."""

    def asked(*_: Any) -> str:
        raise AssertionError("it asked on the terminal")

    monkeypatch.setattr("builtins.input", asked)
    folder = shutil.copytree(NANO_PATH, tmp_path / "strange")
    (folder / "strange.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    classes = {"AutoConfig": "strange.StrangeConfig", "AutoModelForCausalLM": "strange.StrangeModel"}
    change(folder / "config.json", model_type="strange", architectures=["StrangeModel"], auto_map=classes)
    tokenizers = {"AutoTokenizer": [None, "strange.StrangeTokenizer"]}
    change(folder / "tokenizer_config.json", tokenizer_class="StrangeTokenizer", auto_map=tokenizers)
    return folder


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_checkpoint_that_needs_its_own_code_is_refused_with_the_way_out(strange: Path) -> None:
    path = str(strange)
    with pytest.raises(ModelError) as of_tokenizer:
        load_vocabulary(path)
    assert str(of_tokenizer.value) == f"no tokenizer at {path!r}: {NEEDS_CODE}"
    with pytest.raises(ModelError) as of_engine:
        RowModel(path, "float32")
    assert str(of_engine.value) == f"the transformers engine can't run {path!r}: {NEEDS_CODE}"
    tasks = [Task("t", "What is 1 + 1?", "2")]
    with pytest.raises(ModelError, match=NEEDS_CODE):
        ReplGRPOTrainer(path, small_args(strange), tasks)
    assert not (strange.parent / "ran").exists()


def test_so_is_one_whose_model_alone_needs_it(strange: Path) -> None:
    shutil.copy(NANO_PATH / "tokenizer_config.json", strange)
    with pytest.raises(ValueError, match="custom code"):
        require_trainable(str(strange), 1024, None, None, None)
    assert skeleton(str(strange)) is None
    assert not (strange.parent / "ran").exists()


def test_a_known_model_that_names_code_is_loaded_without_it(strange: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(NANO_PATH / name, strange)
        change(strange / name, auto_map={"AutoConfig": "strange.StrangeConfig"})
    assert load_vocabulary(str(strange)).token_bytes == load_vocabulary(str(NANO_PATH)).token_bytes
    assert RowModel(str(strange), "float32").parameter_count == RowModel(str(NANO_PATH), "float32").parameter_count
    assert not (strange.parent / "ran").exists()


def test_every_loading_of_a_model_says_that_code_is_not_to_be_trusted() -> None:
    without: list[str] = []
    count = 0
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            loader = ast.unparse(node.func)
            if not loader.startswith(("Auto", "Tokenizer")) or node.func.attr not in ("from_pretrained", "from_config"):
                continue
            count += 1
            if not any(ast.unparse(keyword) == "trust_remote_code=False" for keyword in node.keywords):
                without.append(f"{file.relative_to(PACKAGE)}:{node.lineno} {loader}")
    assert count > 5
    assert not without


@pytest.mark.parametrize("given", [{"trust_remote_code": True}, {"model_init_kwargs": {"trust_remote_code": True}}])
def test_trust_in_trls_arguments_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="neither the tokenizer nor the engine runs code that comes with a checkpoint"
    ):
        small_args(tmp_path, **given)


def test_so_it_is_in_vllms() -> None:
    with pytest.raises(ValueError, match="trust_remote_code is off: no code that comes with a checkpoint is run here"):
        EngineConfig.model_validate({"vllm": {"trust_remote_code": True}})
