"""Checkpoints of strangers whose tokenizer, template or config would take all time or memory: one sentence instead."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from integrations.chat_server import JsonHandler, serving

from repl_rl.engine import load_vocabulary, strangers
from repl_rl.errors import ModelError
from repl_rl.models import find_model
from repl_rl.models.nano import NANO_PATH
from repl_rl.view.tokens import load_token_texts

GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
OF_TIME = "this model's chat template can't be used: it takes more than 1 s of processor time; take another checkpoint"
OF_MEMORY = "it crashes, or takes more than 2 GiB of memory; take another checkpoint"
LOOPS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}x"
PER_PAIR = (
    "{% for m in messages %}{% for a in m.content %}{% for b in m.content %}{% endfor %}{% endfor %}{% endfor %}x"
)
BY_TOOLS = "{% if tools %}" + LOOPS + "{% endif %}x"
SPELLS = {"type": "Sequence", "decoders": [GROWS] * 5}
PANICS = {"type": "Strip", "content": "a", "start": 1, "stop": 1}
NORMALIZES = {"type": "Sequence", "normalizers": [GROWS] * 5}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return shutil.copytree(NANO_PATH, tmp_path / "checkpoint")


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder": SPELLS}, OF_MEMORY),
        ({"decoder": PANICS}, "PanicException: slice index starts at 1 but ends at 0"),
        pytest.param({"normalizer": NORMALIZES}, OF_MEMORY, marks=pytest.mark.more),
    ],
    ids=["spells a token in terabytes", "panics", "normalizes a letter to terabytes"],
)
def test_a_tokenizer_without_end_is_refused(changes: dict[str, Any], message: str, checkpoint: Path) -> None:
    change(checkpoint / "tokenizer.json", **changes)
    with pytest.raises(ModelError) as caught:
        load_vocabulary(str(checkpoint))
    assert str(caught.value).startswith("this model's tokenizer can't be used: ")
    assert message in str(caught.value)
    assert load_token_texts(str(checkpoint)) is None or "normalizer" in changes


@pytest.mark.parametrize(
    "template",
    [
        LOOPS,
        pytest.param(PER_PAIR, marks=pytest.mark.more),
        pytest.param(BY_TOOLS, marks=pytest.mark.more),
    ],
    ids=["at once", "with the square of a text's length", "where there are tools"],
)
def test_a_template_that_loops_is_refused(template: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "TEMPLATE_CPU_S", 1)
    (checkpoint / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError) as caught:
        load_vocabulary(str(checkpoint))
    assert str(caught.value) == OF_TIME


def test_so_is_one_that_takes_all_memory(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").write_text("{{ 'a' * 10**10 }}")
    with pytest.raises(ModelError, match=OF_MEMORY):
        load_vocabulary(str(checkpoint))


def test_a_template_that_refuses_what_it_is_not_for_is_kept(checkpoint: Path) -> None:
    template = "{% if tools or messages | length > 1 %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"
    (checkpoint / "chat_template.jinja").write_text(template)
    messages = [{"role": "user", "content": "1+2"}]
    assert load_vocabulary(str(checkpoint)).render_chat(messages, (), opens=True) == "1+2"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_hidden_layers": 10**8}, "num_hidden_layers is 100,000,000"),
        ({"text_config": {"n_routed_experts": 10**6}}, "n_routed_experts is 1,000,000"),
        ({"parts": [{"encoder_layers": 1e9}]}, "encoder_layers is 1,000,000,000.0"),
    ],
)
def test_a_config_of_too_many_parts_is_refused(changes: dict[str, Any], found: str, checkpoint: Path) -> None:
    change(checkpoint / "config.json", **changes)
    with pytest.raises(ModelError) as caught:
        find_model(str(checkpoint))
    assert str(caught.value) == (
        f"{checkpoint}/config.json of a checkpoint can't be used: {found}, and a model may have 10,000"
    )


def asked_of_hub(address: str, cache: Path, function: str, model: str, is_offline: bool = False) -> str:
    """What the function says of the model in a process of its own, whose hub is at this address."""
    program = "import pkgutil, sys; from repl_rl.errors import ModelError\n"
    program += "try: print(pkgutil.resolve_name(sys.argv[1])(sys.argv[2]))\nexcept ModelError as error: print(error)"
    hub = {"HF_ENDPOINT": address, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "01"[is_offline], "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, function, model],
        env=os.environ | hub | {"NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Hub(JsonHandler):
    """Two models' configs, as the hub gives them."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        model, _, file = self.path.partition("/resolve/")
        layers = {"/me/deep": 10**8, "/me/plain": 2}.get(model)
        if layers is None or not file.endswith("/config.json"):
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound" if layers is None else "EntryNotFound")
            self.end_headers()
            return
        content = json.dumps({"model_type": "llama", "num_hidden_layers": layers}).encode()
        self.send_response(200)
        for name, value in {"ETag": f'"{layers}"', "X-Repo-Commit": "1" * 40, "Content-Length": len(content)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("me/plain", "me/plain\n"),
        (
            "me/deep",
            "config.json of me/deep can't be used: num_hidden_layers is 100,000,000, and a model may have 10,000",
        ),
        ("me/none", "the config of me/none can't be read: "),
    ],
)
def test_a_config_of_the_hub_is_looked_at_before_it_is_loaded(model: str, said: str, tmp_path: Path) -> None:
    with serving(Hub) as address:
        shown = asked_of_hub(address, tmp_path, "repl_rl.models:resolve_model", model)
    assert shown.startswith(said)


def test_a_model_of_the_hub_may_have_no_generation_settings(tmp_path: Path) -> None:
    of_model = ("repl_rl.models.find:own_sampling", "me/plain")
    unknown = "the generation settings of 'me/plain' can't be read: "
    with serving(Hub) as address:
        assert asked_of_hub(address, tmp_path / "fetched", *of_model) == "{}\n"
        assert asked_of_hub(address, tmp_path / "fetched", "repl_rl.models:resolve_model", "me/plain") == "me/plain\n"
    assert asked_of_hub(address, tmp_path / "fetched", *of_model, is_offline=True) == "{}\n"
    assert asked_of_hub(address, tmp_path / "nothing", *of_model).startswith(unknown), "the hub is gone"
    assert asked_of_hub(address, tmp_path / "nothing", *of_model, is_offline=True).startswith(unknown)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "null", '{"num_layers": true, "layers": "many"}'])
def test_what_is_no_config_is_left_to_its_reader(text: str, checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(text)
    assert find_model(str(checkpoint)) == str(checkpoint)
