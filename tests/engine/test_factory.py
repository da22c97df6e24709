"""`engine.backend`: a shipped name, or the import path of what makes an engine of one's own."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from vocabularies import nano

from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine import environment, factory, make_engine
from repl_rl.engine.environment import warn_of_slow_type
from repl_rl.engine.factory import ENGINES, engine_backend, for_few_sessions, require_engine
from repl_rl.errors import ConfigError

HERE = Path(__file__).parent
CASES = yaml.safe_load((HERE / "engines.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    shutil.copy(HERE / "own_engine.py.txt", tmp_path / "own_engine.py")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_engine", None)


def test_a_misspelt_argument_of_vllm_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="vLLM has no argument 'enforce_eagr'; did you mean 'enforce_eager'"):
        require_engine(EngineConfig(backend="vllm", vllm={"enforce_eagr": True}))


def test_a_server_that_is_not_a_base_url_is_refused_before_it_is_asked() -> None:
    with pytest.raises(
        ConfigError, match=r"engine.servers: 'node1:8000' is not a base URL; write it as http://host:8000"
    ):
        require_engine(EngineConfig(servers=("http://node0:8000", "node1:8000")))


def test_every_shipped_name_is_one_that_a_config_may_give() -> None:
    for name in ENGINES:
        servers = ("http://localhost:8000",) if name == "server" else ()
        assert engine_backend(EngineConfig(backend=name, servers=servers)) == name


@pytest.mark.parametrize(("engine", "sessions", "taken"), CASES["few sessions"])
def test_a_few_sessions_on_a_cpu_take_the_engine_that_loads_soonest(
    engine: dict[str, Any], sessions: int, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has_gpu, expected in ((False, taken), (True, engine.get("backend", "auto"))):
        monkeypatch.setattr(factory, "has_gpu_driver", lambda: has_gpu)  # noqa: B023
        assert for_few_sessions(EngineConfig(**engine), sessions).backend == expected


@pytest.mark.parametrize(
    ("features", "dtype", "warns"), [("none", "bfloat16", 1), ("fpu fp", "bfloat16", 0), ("none", "float32", 0)]
)
def test_a_type_that_a_cpu_emulates_is_named(
    features: str, dtype: str, warns: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(environment, "_MULTIPLIES_BFLOAT16", features.split())  # every x86 has an fpu, every ARM fp
    monkeypatch.setattr(environment, "has_gpu_driver", lambda: False)
    warn_of_slow_type(dtype)
    assert ["set model.dtype: float32" in message for message in caplog.messages] == [True] * warns


@pytest.mark.usefixtures("own_module")
def test_a_function_of_ones_own_gets_what_the_config_says() -> None:
    model, config = ModelConfig(), EngineConfig(backend="own_engine:silent", servers=("http://localhost:1",))
    engine: Any = make_engine("some/path", nano(), model, config, seed=3)
    assert engine.made_with == ("some/path", nano(), model, config, 3)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(("path", "what"), CASES["paths"].items())
def test_what_is_not_there_is_refused_before_anything_is_loaded(path: str, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine.backend: .*{what}"):
        require_engine(EngineConfig(backend=path))


@pytest.mark.usefixtures("own_module")
def test_what_is_not_an_engine_is_refused() -> None:
    config = EngineConfig(backend="own_engine:nothing")
    with pytest.raises(ConfigError, match="returned 7, which is not an engine: it has no version and no slot and no"):
        make_engine("some/path", nano(), ModelConfig(), config)
