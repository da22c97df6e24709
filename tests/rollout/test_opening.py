"""From a config or a model to an open rollout, and what is left behind it: nothing."""

import asyncio
import copy
import threading
from pathlib import Path
from typing import Any

import pytest
from dialect.chats import REAL
from scripted import ScriptedEngine
from vocabularies import qwen
from waiting import until_async

import repl_rl
from repl_rl.config import Config, load_config, parse_config, shipped_configs
from repl_rl.engine import Vocabulary, load_vocabulary
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout import service
from repl_rl.rollout.episode import make_prompt
from repl_rl.rollout.events import Ended
from repl_rl.rollout.service import config_of, open_rollout
from repl_rl.rollout.setup import Extensions, RolloutSetup, make_pool
from repl_rl.trainer import ReplGRPOConfig
from repl_rl.trajectory import StopReason, Task

TASK = Task("t1", "What is 6 * 7?", "42")
QUICK = ("kernel.size=2", "engine.context_tokens=512")


def test_what_may_name_a_config_and_overrides_go_over_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: {path: nano}\nseed: 7\n")
    assert config_of(file) == config_of(str(file)) == load_config(str(file))
    assert config_of("quickstart", ["seed=3"]) == load_config("quickstart", ("seed=3",))
    assert config_of("nano") == parse_config({"model": {"path": "nano"}})
    assert config_of(str(NANO_PATH), ["seed=3"]).model.path == str(NANO_PATH)
    assert config_of("some/model").model.path == "some/model"
    assert config_of("gemma-270m") == load_config("gemma-270m"), "a config stands before the model that it names"
    config = Config(seed=7)
    assert config_of(config) is config
    assert config_of(config, ["budget.lines=3"]) == parse_config({"seed": 7, "budget": {"lines": 3}})


def test_what_a_chat_template_takes_besides_reaches_the_prompt(tmp_path: Path) -> None:
    tokenizer = load_vocabulary(str(NANO_PATH)).tokenizer
    turns = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"
    tokenizer.chat_template = turns + "{% if enable_thinking is false %}(no thoughts){% endif %}"
    tokenizer.save_pretrained(tmp_path)
    for kwargs, shown in [({"enable_thinking": False}, True), ({"enable_thinking": True}, False), ({}, False)]:
        config = parse_config({"model": {"path": str(tmp_path), "chat_template_kwargs": kwargs}})
        for sections in (config, ReplGRPOConfig.from_config(config, str(tmp_path))):
            setup = RolloutSetup.for_model(sections, str(tmp_path), Extensions())
            prompt = make_prompt(setup.dialect_with(()), setup.vocabulary, "What is 6 * 7?", setup.chat)
            assert ("(no thoughts)" in prompt.text) is shown
    with pytest.raises(ConfigError, match="this model's chat template has no 'enable_thinkin', which would do nothing"):
        load_vocabulary(str(tmp_path), template_kwargs={"enable_thinkin": False})
    with pytest.raises(ConfigError, match="there is no template to take them"):
        parse_config({"model": {"chat": False, "chat_template_kwargs": {"enable_thinking": False}}})


OF_QWEN3 = [name for name in shipped_configs() if load_config(name).model.path.startswith("Qwen/Qwen3-")]


@pytest.mark.parametrize("name", OF_QWEN3)
def test_shipped_configs_of_qwen3_close_the_thought_before_the_session(name: str) -> None:
    """Where its template is not told so, the model has learnt to think first, in tokens that no interpreter sees."""
    tokenizer = copy.deepcopy(qwen().tokenizer)
    tokenizer.chat_template = (REAL / "qwen3.jinja").read_text(encoding="utf-8")
    turns = {}
    for override in ((), ("model.chat_template_kwargs={}",)):
        config = load_config(name, override)
        setup = RolloutSetup.for_model(config, str(NANO_PATH), Extensions(), tokenizer=tokenizer)
        prompt = make_prompt(setup.dialect_with(()), setup.vocabulary, "What is 6 * 7?", setup.chat)
        assert setup.vocabulary.decode(prompt.ids) == prompt.text
        turns[override] = prompt.text.rpartition("<|im_start|>assistant\n")[2]
    closed, open_to_thoughts = turns.values()
    assert open_to_thoughts.startswith("Python 3.")
    assert open_to_thoughts.endswith("\n>>>")
    assert closed == f"<think>\n\n</think>\n\n{open_to_thoughts}"


def test_there_are_configs_of_qwen3() -> None:
    assert len(OF_QWEN3) == 5


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("quikstart", r"neither a file nor a shipped name; did you mean 'quickstart'\?; .*'quikstart' is not a model"),
        ("mine.yml", r"no config 'mine.yml'"),
        ("", "an empty config: give a YAML file, a model, or one of gemma-270m"),
        (str(Path(__file__).parent), "is a folder without config.json"),
    ],
)
def test_what_names_nothing_is_refused(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(source)


async def test_nano_answers_in_a_real_kernel_and_all_is_gone_behind_it() -> None:
    async with repl_rl.open_rollout("nano", ["engine.backend=transformers", *QUICK]) as rollout:
        *_, ended = [event async for event in rollout.stream(TASK)]
    assert isinstance(ended, Ended)
    assert ended.trajectory.stop_reason not in (StopReason.ABORTED, StopReason.UNFINISHED)
    assert ended.trajectory.lines
    assert not any(thread.name == "the transformers engine" for thread in threading.enumerate())
    assert rollout.engine.version == 0


class Closing(ScriptedEngine):
    """Says when it is closed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, lambda prompt: [" submit_final_answer(42)\n"])
        self.is_closed = threading.Event()

    def close(self) -> None:
        self.is_closed.set()


class Loading:
    """Stands for `make_engine`: takes as long as it is let, and not on the loop's thread."""

    def __init__(self) -> None:
        self.engines: list[Closing] = []
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, path: str, vocabulary: Vocabulary, *rest: Any, **named: Any) -> Closing:
        assert threading.current_thread().name.startswith("repl-rl-loading")
        self.has_begun.set()
        assert self.may_end.wait(60)
        self.engines.append(Closing(vocabulary))
        return self.engines[-1]


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Loading:
    loading = Loading()
    monkeypatch.setattr("repl_rl.rollout.service.make_engine", loading)
    return loading


async def test_the_loop_goes_on_while_the_model_loads_and_the_kernels_come_up(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[KernelPool] = []
    monkeypatch.setattr(service, "make_pool", lambda *a, **k: pools.append(make_pool(*a, **k)) or pools[0])

    async def go() -> None:
        async with open_rollout("nano", ("engine.context_tokens=512",), sessions=1) as rollout:
            [trajectory] = await rollout.many([TASK])
            assert trajectory.answer == ("42",)
            assert not loading.engines[0].is_closed.is_set()

    opening = asyncio.ensure_future(go())
    await until_async(loading.has_begun.is_set)
    await until_async(lambda: pools[0].stats.alive)
    loading.may_end.set()
    await opening
    assert loading.engines[0].is_closed.is_set()
    assert pools[0].stats.started < 8, "one for the session, one in reserve, and not as many as there may be"


@pytest.mark.more
async def test_what_fails_in_the_block_closes_the_engine(loading: Loading) -> None:
    loading.may_end.set()
    with pytest.raises(RuntimeError, match="mine"):
        async with open_rollout("nano", QUICK):
            raise RuntimeError("mine")
    assert loading.engines[0].is_closed.is_set()


@pytest.mark.more
async def test_what_was_loading_when_it_was_cancelled_is_closed_when_it_has_come(loading: Loading) -> None:
    async def opened() -> None:
        async with open_rollout("nano", QUICK):
            raise AssertionError("it was cancelled")

    opening = asyncio.ensure_future(opened())
    await until_async(loading.has_begun.is_set)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert loading.engines == []
    loading.may_end.set()
    await until_async(lambda: loading.engines)
    assert loading.engines[0].is_closed.wait(60)
