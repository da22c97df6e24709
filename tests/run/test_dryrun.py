"""A dry run says what a run would be, refuses what the run would refuse, and leaves nothing behind."""

import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dialect.chats import REAL
from small import with_experts

from repl_rl.cli import main
from repl_rl.config import EngineConfig, load_config, parse_config, shipped_configs
from repl_rl.engine.server.client import Wanted, serve_command
from repl_rl.engine.vocabulary import load_vocabulary
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.checks import require_positions
from repl_rl.run import dryrun
from repl_rl.run.dryrun import idle_settings
from repl_rl.run.folder import RunFolder
from repl_rl.run.training import PLAIN, training_arguments
from repl_rl.utils.folders import resource_folder

pytestmark = pytest.mark.more
Shown = Callable[..., str]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def shown(said: Callable[..., str]) -> Callable[..., str]:
    """What a dry run says, with single spaces."""
    return lambda *arguments, code=0: " ".join(said("train", *arguments, "--dry-run", code=code).split())


@pytest.mark.parametrize(
    "name",
    [
        # of Qwen, whose weights and problems come with packages
        pytest.param(name, marks=pytest.mark.slow if name in ("qwen-coder-0.5b", "own-problems") else ())
        for name in shipped_configs()
    ],
)
def test_every_shipped_config_passes_a_dry_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: Shown
) -> None:
    if name == "qwen-coder-0.5b":
        packages = [str(Path(sys.prefix, each)) for each in ("qwen", "reasoning_gym")]
        monkeypatch.setattr(sys, "path", [*sys.path, *packages])
        monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path.parent))  # for the fonts of matplotlib, which comes along
    if name == "own-problems":
        rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(200)]
        (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = list(tmp_path.iterdir())
    config, text = load_config(name), shown(name)
    per_step = config.train.prompts_per_step * config.train.group_size
    assert f"{config.train.prompts_per_step} problems x {config.train.group_size} = {per_step} trajectories" in text
    assert f"at most {per_step * config.budget.tokens:,} of completion" in text
    assert f"runs/{name}/: config.yaml" in text
    assert not list(idle_settings(config, gpus=0)) + list(idle_settings(config, gpus=8))
    assert list(tmp_path.iterdir()) == before


def test_a_dry_run_shows_the_first_prompt_and_says_what_is_paid(shown: Shown) -> None:
    limited = "{preset: gentle, kinds: {comment: 0.02}, shaping: {weight: {start: 1, end: 0, steps: 9}}}"
    text = shown("quickstart", "--set", f"rewards={limited}", "--set", "credit.gamma=0.9")
    assert re.search(r"the first prompt, as the model reads it: \| Python 3\..* \| >>> # [^|]+ \| >>>", text)
    assert "rewards +1 for a right answer; a line: -0.05 syntax_error" in text
    assert "gains times 0.5 at each repetition; gains of a session at most 0.2; losses at most 0.25; times 1, " in text
    assert "less the others' mean from the same line number on; discounted by 0.9 a line" in text
    assert "note: rewards.kinds.comment is never paid: what runs nothing gains nothing" in text


@pytest.mark.parametrize(
    ("sections", "gpus", "says"),
    [
        ({"rewards": {"shaping": {"decay": 0.5}}}, 0, "limits what lines earn, and none earns anything"),
        ({"rewards": {"preset": "strict", "shaping": {"weight": 0}}}, 0, "shaping.weight is 0"),
        ({"engine": {"weights_folder": "/x"}}, 0, "engine.weights_folder is for servers"),
        ({"engine": {"kv_cache_gib": 8}}, 1, "engine.kv_cache_gib is for CPUs"),
        ({"engine": {"servers": ["http://a:1"], "gpu_memory_utilization": 0.5}}, 1, "a server has a flag of that name"),
        (
            {"cluster": {"replicas": 1}, "engine": {"gpu_memory_utilization": 0.5}},
            1,
            "a server has a flag of that name",
        ),
        ({"train": {"report_rollouts": 4}}, 0, "nobody is told"),
    ],
)
def test_settings_that_do_nothing_are_named(sections: dict[str, Any], gpus: int, says: str) -> None:
    [said] = idle_settings(parse_config(sections), gpus)
    assert says in said


def test_trl_takes_what_a_dry_run_does_not_show_it(tmp_path: Path) -> None:
    plain = dict(zip(PLAIN, (-1.0, 0, 1e9, 0.5, 7, -0.5), strict=True))
    config = load_config("quickstart", (f"train.trl={json.dumps(plain)}",))
    made = training_arguments(config, RunFolder(tmp_path), use_cpu=True)
    assert {key: getattr(made, key) for key in plain} == plain


@pytest.mark.parametrize(
    ("command", "texts"), yaml.safe_load(Path(__file__).with_name("dry_runs.yaml").read_text(encoding="utf-8")).items()
)
def test_what_it_says(command: str, texts: list[str], tmp_path: Path, shown: Shown) -> None:
    whole = shown(*shlex.split(command)).replace(str(tmp_path), "~")
    assert [text for text in texts if text not in whole] == []
    assert list(tmp_path.iterdir()) == []


def test_where_tools_run_is_said_of_each_as_its_decorator_says(shown: Shown) -> None:
    text = shown("quickstart", "--set", "tools.functions=[rollout.test_episode:look_up, scripted:multiply]")
    assert "dialect python; tools look_up (host), multiply (sandbox)" in text


def test_what_is_known_of_models_on_the_hub_is_what_transformers_makes_of_them() -> None:
    published = {"0.6B": 0.596, "1.7B": 1.721, "4B": 4.022, "8B": 8.191, "14B": 14.768, "32B": 32.762}
    for size, billions in published.items():
        shapes = dryrun.shapes_of(f"Qwen/Qwen3-{size}", Path("not here"))
        assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(billions, abs=1e-3)
    by_config, stored = (dryrun.shapes_of(str(NANO_PATH), folder) for folder in (Path("not here"), NANO_PATH))
    assert by_config == stored


def test_recurrent_layers_are_noted(tmp_path: Path) -> None:
    shutil.copytree(NANO_PATH, tmp_path / "hybrid")
    config = json.loads((tmp_path / "hybrid" / "config.json").read_text())
    for layers, note in (("linear_attention", "recurrent layers (linear_attention)"), ("sliding_attention", None)):
        mixed = config | {"layer_types": [layers] * 3 + ["full_attention"]}
        (tmp_path / "hybrid" / "config.json").write_text(json.dumps(mixed))
        found = dryrun.dry_run(
            load_config("quickstart", (f"model.path={tmp_path / 'hybrid'}",)), tmp_path / "runs"
        ).notes
        assert any("recurrent layers" in each for each in found) == (note is not None)
        assert note is None or any(note in each for each in found)


@pytest.mark.parametrize(
    ("template", "dialect", "says"),
    [
        ("gemma", {}, ["no system role: the system text stands at the head of the first question"]),
        ("gemma", {"system": ""}, []),
        ("qwen3", {}, []),
        (
            "qwen3_5_think",
            {},
            ["would be typed inside the thought; close it with model.chat", ": {enable_thinking: false}"],
        ),
        (
            "qwen3_5_think",
            {"name": "fenced"},
            ["writes </think>; if that is not meant, close it with model.chat_template"],
        ),
        ("qwen3_5_nothink", {}, []),
        (
            "deepseek_r1_distill",
            {"name": "ipython"},
            ["inside the thought; close it with a file", "begins with </think>"],
        ),
        ("deepseek_r1_distill", {"name": "fenced"}, []),
    ],
)
def test_what_a_chat_template_makes_of_a_prompt_is_noted(
    template: str, dialect: dict[str, Any], says: list[str], tmp_path: Path
) -> None:
    shutil.copytree(NANO_PATH, tmp_path / "chat")
    (tmp_path / "chat" / "chat_template.jinja").write_text((REAL / f"{template}.jinja").read_text())
    brief = {"examples": 0, "system": "Be brief."} | dialect
    config = load_config("quickstart", (f"model.path={tmp_path / 'chat'}", f"dialect={json.dumps(brief)}"))
    made = dryrun.dry_run(config, tmp_path / "runs")
    notes = " ".join(note for note in made.notes if "template" in note)
    assert [text for text in says if text not in notes] == []
    assert bool(notes) == bool(says)
    assert made.prompt is not None
    assert brief["system"] in made.prompt


SHOP = """
from repl_rl.tools import tool

class Shop:
    def reset(self, task):
        self.cart = []
        with open("log", "a") as log:
            log.write("reset\\n")
        return {"shelf": {"tea": 3}, "buy": self.buy, "pay": self.pay}

    def buy(self, name: str) -> str:
        '''Put something into the cart.'''

    @tool(ends=True)
    def pay(self, euros: int) -> int:
        '''Pay, and leave.'''
        return euros

    def observe(self):
        return "The shop is open."

    def close(self):
        with open("log", "a") as log:
            log.write("close\\n")

class Silent:
    def reset(self, task):
        pass

class Lottery:  # as TRL's are
    def reset(self, **row):
        return f" It has {len(row['answer'])} digits."

    def draw(self) -> int:
        '''Draw a number.'''

    def get_reward(self):
        return 0.5

class Wordy(Silent):
    def observe(self):
        return "word " * 2000

class Closed(Shop):
    def reset(self, task):
        return {"key": task.metadata["key"]}
"""


@pytest.fixture
def shops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "shops.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("shops", None)


def test_an_environment_is_begun_once_and_its_first_prompt_shown(shops: Path, shown: Shown) -> None:
    text = shown("quickstart", "--set", "environment=shops:Shop", "--set", "tasks.families=product")
    assert "environment Shop, tried with task '" in text
    assert (
        "tools buy(name: str) -> str, pay(euros: int) -> int; values shelf; it says first: The shop is open.;" in text
    )
    assert "the task's answer decides, as without it" in text
    assert "+1 for a right answer" in text
    prompt = text.partition("the first prompt, as the model reads it:")[2]
    for told in (
        "buy(name: str) -> str: Put something",
        "# The shop is open.",
        "# A call of pay ends the session, and",
    ):
        assert told in prompt
    assert (shops / "log").read_text() == "reset\nclose\n"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Silent", ["Silent, tried with task '", "no tools; it says nothing first; the task's answer decides"]),
        (
            "Lottery",
            ["tools draw() -> int; it says first: It has", "its get_reward decides", "rewards +1 times Lottery.get"],
        ),
    ],
)
def test_what_an_environment_pays_is_said_in_words(name: str, says: list[str], shops: Path, shown: Shown) -> None:
    text = shown("quickstart", "--set", f"environment=shops:{name}")
    assert [part for part in says if part not in text] == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Closed", "environment 'shops:Closed.reset' raised KeyError: 'key' (shops.py:46)"),
        ("Wordy", "with what the environment says first, has 6"),
    ],
)
def test_an_environment_that_can_not_begin_is_refused_with_the_line(
    name: str, says: str, shops: Path, shown: Shown
) -> None:
    assert says in shown("quickstart", "--set", f"environment=shops:{name}", code=2)


def test_of_a_mixture_of_experts_it_says_what_adapters_reach_and_refuses_what_can_not_be(
    tmp_path: Path, shown: Shown
) -> None:
    folder = Path(with_experts(tmp_path / "experts"))
    on_it = ["quickstart", "--set", f"model.path={folder}", "--set", "model.dtype=bfloat16", "--set"]
    beside = ["--set", "engine.vllm={enable_lora: true}"]
    parameters = sum(map(math.prod, dryrun.shapes_of(str(folder), folder).values()))
    for lora, count, note in (
        ("{}", 4 * 3 * 16 * 32 + 4 * 32 + 6 * 32 * 32, None),  # experts, router, attention
        ("{target_modules: [q_proj]}", 32 * 64, "train.lora leaves the experts frozen: mlp.experts.down_proj, mlp."),
    ):
        text = shown(*on_it, f"train.lora={lora}")
        assert f"with adapters on {count / parameters:.1%} of them" in text
        assert "routers of sampler and trainer choose other experts" in text
        assert ("train.lora leaves" in text) == (note is not None)
        assert note is None or note in text
    shown(*on_it, "train.lora={target_modules: [q_proj]}", *beside)
    said = {
        "train.lora={}": "tensors that are not linear layers: mlp.experts.down_proj, mlp.experts.gate_up_proj,",
        "train.micro_batch_tokens=64": "micro_batch_tokens=64 with the auxiliary loss of this model's router",
        "train.lora={lora_dropout: 0.1}": "does not work with lora_dropout",
    }
    for override, text in said.items():
        assert text in shown(*on_it, override, *(beside if "{}" in override else ()), code=2)
    known = json.loads((folder / "config.json").read_text())  # PEFT does not know that kind's experts
    (folder / "config.json").write_text(json.dumps(known | {"model_type": "qwen2_moe"}))
    text = shown(*on_it, "train.lora={}", code=2)
    assert "of this model's weights frozen, its experts" in text
    assert "target_parameters: [mlp.experts.down_proj, mlp.experts.gate_up_proj]" in text


def test_a_context_in_which_rows_change_one_another_is_refused_wherever_they_share_a_pass(
    tmp_path: Path, said: Callable[..., str], shown: Shown
) -> None:
    folder = shutil.copytree(NANO_PATH, tmp_path / "scaled")
    config = json.loads((folder / "config.json").read_text())
    factors = [1.0] * (config["head_dim"] // 2)
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": 256}
    config["rope_parameters"] = {**rope, "short_factor": factors, "long_factor": factors}
    (folder / "config.json").write_text(json.dumps(config))
    on_it = ["quickstart", "--set", f"model.path={folder}", "--set", "engine.backend=vllm"]
    (tmp_path / "sessions.jsonl").touch()
    message = "engine.context_tokens is 512, and above 256 tokens the positions of this model are scaled by the longest"
    assert message in shown(*on_it, code=2)
    assert message in " ".join(said("sft", *on_it, "--from", "sessions.jsonl", "--dry-run", code=2).split())
    require_positions(str(folder), EngineConfig(backend="vllm", context_tokens=512))
    text = " ".join(said("eval", *on_it, "--set", "engine.backend=transformers", code=2).split())
    assert f"the transformers engine has 256 positions for the model {folder}" in text
    shown(*on_it, "--set", "engine.context_tokens=256")


def test_what_is_trained_and_how_decides_about_memory() -> None:
    def gib(*overrides: str) -> dict[str, float]:
        text = dict(dryrun.dry_run(load_config("quickstart", overrides), Path("runs")).rows)["memory"]
        trained, copies, kept = re.findall(r"([\d.]+) for", text)[:3]
        return {"trained": float(trained), "copies": float(copies), "kept": float(kept)}

    whole, big = gib(), ("train.prompts_per_step=64",)
    assert gib("model.dtype=bfloat16")["trained"] == whole["trained"]
    assert gib("train.lora={r: 1}")["trained"] < whole["trained"]
    smaller = [], ["train.micro_batch=256"], ["train.trl={gradient_checkpointing: true}"]
    kept, halved, again = (gib(*big, *more)["kept"] for more in smaller)
    assert halved == pytest.approx(kept / 2, rel=0.05)
    assert again < kept / 2


def test_what_does_not_fit_a_gpu_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dryrun, "gpus_here", lambda: (1, 9.0))
    monkeypatch.setattr(dryrun, "training_arguments", lambda *arguments, **named: None)
    made = dryrun.dry_run(load_config("quickstart", ("train.prompts_per_step=64",)), Path("runs"))
    assert dict(made.rows)["GPU of 9 GiB"].startswith("does not fit: ")
    notes = " ".join(made.notes)
    assert "does not fit: the trainer takes about" in notes
    assert "the sampler's share is 2.7, and the GPU has 9.0" in notes
    assert "train adapters (train.lora)" in notes


@pytest.mark.parametrize("gpus", [0, 8])
def test_gpus_are_counted_and_missing_ones_are_no_failure(
    gpus: int, monkeypatch: pytest.MonkeyPatch, shown: Shown
) -> None:
    monkeypatch.setattr(dryrun, "gpus_here", lambda: (gpus, 80.0 * bool(gpus)))
    monkeypatch.setattr(dryrun, "training_arguments", lambda *arguments, **named: None)
    text = shown("gpu-8")
    assert f"8 needed, one for each trainer process; {gpus} here" in text
    assert ("can't be trained here" in text) == (gpus < 8)


def test_a_checkpoint_without_weights_or_with_broken_ones_is_refused(tmp_path: Path, shown: Shown) -> None:
    folder = tmp_path / "model"
    shutil.copytree(NANO_PATH, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:4])
    arguments = ["quickstart", "--set", f"model.path={folder}"]
    assert "model.safetensors can't be read as safetensors" in shown(*arguments, code=2)
    weights.unlink()
    text = shown(*arguments, code=2)
    assert "holds no *.safetensors file, so no weights; save the model with save_pretrained" in text


GSM8K_ROWS = [{"question": f"What is {n} apples and {n}?", "answer": f"{n}+{n}\n#### {2 * n}"} for n in range(2, 7)]


def test_the_problems_of_a_data_set_in_a_folder_are_read_and_checked(
    tmp_path_factory: pytest.TempPathFactory, shown: Shown
) -> None:
    broken = [*GSM8K_ROWS, {"question": "How many?", "answer": "nobody knows"}]
    for rows, code, text in (
        (GSM8K_ROWS, 0, "5 to train on; 5 held out"),
        (broken, 2, "line 6: column answer: tasks.answer_pattern"),
    ):
        folder = tmp_path_factory.mktemp("sets")
        for split in ("train", "test"):
            (folder / split).mkdir()
            (folder / split / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        own = ("--set", f"tasks.folder={folder}", "--set", "train.prompts_per_step=4")
        whole = shown("qwen3-1.7b-gsm8k", *own, code=code)
        assert (text in whole, "fetched from the hub, or its cache" in whole) == (True, False), whole


@pytest.mark.parametrize("name", ["qwen3-4b-gsm8k", "qwen3-32b-lora"])
def test_the_servers_of_eight_gpus_are_started_as_the_engine_asks_for_them(name: str) -> None:
    config = load_config(name)
    model, vocabulary = config.model, load_vocabulary(str(NANO_PATH))
    wanted = Wanted((model.path,), model.dtype, config.engine.context_tokens, vocabulary)
    command, _, _ = serve_command(wanted).partition("   #")
    assert command in (resource_folder("configs") / f"{name}.yaml").read_text()


def test_the_names_of_shipped_configs_stand_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert ", ".join(shipped_configs()) in " ".join(capsys.readouterr().out.split())
