"""A dry run says what a run would be, refuses what the run would refuse, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from repl_rl.cli import main
from repl_rl.config import load_config, shipped_configs
from repl_rl.engine.server.client import Wanted, serve_command
from repl_rl.engine.vocabulary import load_vocabulary
from repl_rl.models.nano import NANO_PATH
from repl_rl.run import dryrun
from repl_rl.run.folder import RunFolder
from repl_rl.run.training import training_arguments
from repl_rl.utils.folders import resource_folder

pytestmark = pytest.mark.more


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["train", *arguments, "--dry-run"])
    captured = capsys.readouterr()
    return code, " ".join((captured.out + captured.err).split())


@pytest.mark.parametrize("name", shipped_configs())
def test_every_shipped_config_passes_a_dry_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(name)
    code, shown = dry_run(capsys, name)
    assert code == 0, shown
    per_step = config.train.prompts_per_step * config.train.group_size
    assert f"{config.train.prompts_per_step} problems x {config.train.group_size} = {per_step} trajectories" in shown
    assert f"at most {per_step * config.budget.tokens:,} of completion" in shown
    assert f"runs/{name}/: config.yaml" in shown
    assert list(tmp_path.iterdir()) == []


def test_trl_takes_what_a_dry_run_does_not_show_it(tmp_path: Path) -> None:
    plain = dict(zip(dryrun.PLAIN, (-1.0, 0, 1e9, 0.5, 7, -0.5), strict=True))
    config = load_config("quickstart", (f"train.trl={json.dumps(plain)}",))
    made = training_arguments(config, RunFolder(tmp_path), use_cpu=True)
    assert {key: getattr(made, key) for key in plain} == plain


def test_a_local_checkpoint_is_looked_into(capsys: pytest.CaptureFixture[str]) -> None:
    made = dict(dryrun.dry_run(load_config("quickstart"), Path("runs")).rows)
    assert made["model"] == "nano, of this package: 0.9 million parameters, sampled in float32, trained in float32"
    assert made["memory"].startswith("about 0."), made["memory"]
    assert made["prompts"].endswith("tokens at most, beside 256 of completion, in a context of 512")
    assert made["engine"] == "vLLM in this process, 64 sequences at once"
    assert made["a step"] == ("8 problems x 8 = 64 trajectories = 64 at a time x 1 processes x 1 accumulated; 60 steps")
    assert made["kernels"].startswith("64 (fork, auto): about 269 MB, at most 512 MB a session and ")


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


def test_what_is_trained_and_how_decides_about_memory() -> None:
    def gib(*overrides: str) -> dict[str, float]:
        text = dict(dryrun.dry_run(load_config("quickstart", overrides), Path("runs")).rows)["memory"]
        trained, copies, kept = re.findall(r"([\d.]+) for", text)[:3]
        return {"trained": float(trained), "copies": float(copies), "kept": float(kept)}

    whole, big = gib(), ("train.prompts_per_step=64",)
    assert gib("model.dtype=bfloat16")["trained"] == whole["trained"]
    assert gib("train.lora={r: 1}")["trained"] < whole["trained"]
    kept, halved, again = (
        gib(*big, *more)["kept"]
        for more in ([], ["train.micro_batch=256"], ["train.trl={gradient_checkpointing: true}"])
    )
    assert halved == pytest.approx(kept / 2, rel=0.05)
    assert again < kept / 2


def test_what_does_not_fit_a_gpu_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dryrun, "gpus_here", lambda: (1, 0.5))
    monkeypatch.setattr(dryrun, "training_arguments", lambda *arguments, **named: None)
    notes = " ".join(dryrun.dry_run(load_config("quickstart", ("train.prompts_per_step=64",)), Path("runs")).notes)
    assert "does not fit: the trainer takes about" in notes
    assert "train adapters (train.lora)" in notes


def test_trackers_are_named_and_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dict(dryrun.dry_run(load_config("quickstart"), Path("runs")).rows)["trackers"] == "none (train.report_to)"
    named = ("--set", "train.report_to=[wandb, tensorboard]", "--set", "train.report_rollouts=4")
    code, shown = dry_run(capsys, "quickstart", *named)
    assert code == 0
    assert (
        "trackers wandb, tensorboard: project quickstart, run quickstart, 4 rollouts of every "
        "10 steps, the first one in" in shown
    )
    assert (
        "run quickstart, no rollouts"
        in dry_run(capsys, "quickstart", *named, "--set", "train.report_rollouts_every=0")[1]
    )
    assert list(tmp_path.iterdir()) == []


def test_processes_servers_and_gpus_are_named_and_not_touched(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = dry_run(capsys, "gpu-8", "--set", "engine.servers=[http://nowhere.invalid:8000]")
    assert code == 0
    assert "vLLM servers, not asked now: http://nowhere.invalid:8000" in shown
    assert "1024 trajectories = 4 at a time x 4 processes x 64 accumulated" in shown
    assert "256 in each process" in shown
    assert "Qwen/Qwen3-4B would be fetched from the hub: nothing of it was checked" in shown
    assert "accelerate launch --num_processes 4 -m repl_rl.cli train" in shown


@pytest.mark.parametrize(("gpus", "need"), [(0, "can't be trained here"), (4, "4 here")])
def test_gpus_are_counted_and_missing_ones_are_no_failure(
    gpus: int, need: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dryrun, "gpus_here", lambda: (gpus, 80.0 * bool(gpus)))
    monkeypatch.setattr(dryrun, "training_arguments", lambda *arguments, **named: None)
    code, shown = dry_run(capsys, "gpu-8")
    assert code == 0
    assert f"4 needed, one for each trainer process; {gpus} here" in shown
    assert need in shown
    assert ("can't be trained here" in shown) == (gpus < 4)


def test_a_context_that_is_smaller_than_the_budget_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = dry_run(capsys, "quickstart", "--set", "engine.context_tokens=128")
    assert code == 0
    assert "of 128 tokens, less than budget.tokens (256): such trajectories stop at the context" in shown


def test_a_checkpoint_without_weights_or_with_broken_ones_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(NANO_PATH, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:4])
    arguments = ["quickstart", "--set", f"model.path={folder}"]
    assert "model.safetensors can't be read as safetensors" in dry_run(capsys, *arguments)[1]
    weights.unlink()
    code, shown = dry_run(capsys, *arguments)
    assert code == 2
    assert "holds no *.safetensors file, so no weights; save the model with save_pretrained" in shown


def test_gemma_is_announced_and_not_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = dry_run(capsys, "gemma-270m")
    assert code == 0
    assert "gemma-270m, from its package, float32" in shown
    assert f"gemma-270m would be converted into {tmp_path}/cache/repl-rl/gemma-270m-" in shown
    assert "hub" not in shown
    assert list(tmp_path.iterdir()) == []


GSM8K_ROWS = [{"question": f"What is {n} apples and {n}?", "answer": f"{n}+{n}\n#### {2 * n}"} for n in range(2, 7)]


def gsm8k_in(folder: Path, rows: list[dict[str, str]]) -> list[str]:
    """The flag that makes a config take `rows` for both splits of GSM8K."""
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        (folder / split / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--set", f"tasks.folder={folder}"]


@pytest.mark.parametrize("name", ["qwen3-1.7b-gsm8k", "qwen3-4b-gsm8k"])
def test_a_data_set_of_the_hub_is_announced_and_one_in_a_folder_is_read(
    name: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = dry_run(capsys, name)
    assert code == 0
    assert "data set gsm8k would be fetched from the hub, or its cache: nothing of it was checked" in shown
    assert "7,473 of gsm8k at most to train on; 1,319 at most held out" in shown
    code, shown = dry_run(capsys, name, *gsm8k_in(tmp_path_factory.mktemp("sets") / "whole", GSM8K_ROWS))
    assert code == 0, shown
    assert "5 to train on; 5 held out" in shown
    assert "data set" not in shown


def test_the_problems_of_a_data_set_are_checked_before_a_run(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [*GSM8K_ROWS, {"question": "How many?", "answer": "nobody knows"}]
    code, shown = dry_run(capsys, "qwen3-1.7b-gsm8k", *gsm8k_in(tmp_path_factory.mktemp("sets") / "broken", broken))
    assert code == 2
    assert "split 'train', row 5: tasks.answer_pattern" in shown


def test_a_local_model_is_looked_into_though_its_data_set_is_on_the_hub(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = dry_run(capsys, "qwen3-1.7b-gsm8k", "--set", "model.path=nano")
    assert code == 0
    assert "nano, of this package: 0.9 million parameters, sampled in bfloat16, trained in float32" in shown
    assert "context of 2,048 tokens, of which a completion takes 1,024 at most" in shown


@pytest.mark.parametrize("name", ["gpu-8", "qwen3-4b-gsm8k", "qwen3-32b-lora"])
def test_the_servers_of_eight_gpus_are_started_as_the_engine_asks_for_them(name: str) -> None:
    config = load_config(name)
    wanted = Wanted(
        (config.model.path,), config.model.dtype, config.engine.context_tokens, load_vocabulary(str(NANO_PATH))
    )
    command, _, _ = serve_command(wanted).partition("   #")
    assert command in (resource_folder("configs") / f"{name}.yaml").read_text()


def test_the_names_of_shipped_configs_stand_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert ", ".join(shipped_configs()) in " ".join(capsys.readouterr().out.split())
