"""What is combined with what, which checkpoint a run stands for, and bad input before anything is loaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repl_rl.cli import main
from repl_rl.config import load_config
from repl_rl.errors import ModelError, RunError
from repl_rl.models.nano import NANO_PATH
from repl_rl.run.evaluation.plan import checkpoint_of, make_plan
from repl_rl.run.folder import RunFolder, new_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run without checkpoints yet."""
    return new_run(load_config("quickstart"), tmp_path / "runs")


def add_checkpoint(run: RunFolder, step: int, is_complete: bool = True) -> Path:
    checkpoint = run.checkpoints / f"checkpoint-{step}"
    shutil.copytree(NANO_PATH, checkpoint)
    if is_complete:
        (checkpoint / "trainer_state.json").write_text("{}")
    return checkpoint


def test_every_model_meets_every_dialect_on_the_same_problems(tmp_path: Path) -> None:
    other = shutil.copytree(NANO_PATH, tmp_path / "3")
    plan = make_plan("quickstart", ["eval.problems=7"], ["nano", str(other)], ["python", "python"], 8, (8, 4, 4))
    expected = [(name, "python") for name in ("nano", "nano", str(other), str(other))]
    assert [(one.model, one.dialect) for one in plan.combinations] == expected
    assert [one.config.model.path for one in plan.combinations] == [name for name, _ in expected]
    assert (len(plan.tasks), plan.samples, plan.ks) == (7, 8, (1, 4, 8))


def test_without_models_and_dialects_it_is_the_config_s_own() -> None:
    plan = make_plan("quickstart", ["eval.problems=2"])
    assert [(one.model, one.config) for one in plan.combinations] == [
        ("nano", load_config("quickstart", ("eval.problems=2",)))
    ]
    assert plan.ks == (1,)


def test_a_name_that_yaml_would_read_as_a_number_stays_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(NANO_PATH, tmp_path / "1e3")
    monkeypatch.chdir(tmp_path)
    assert make_plan("quickstart", ["eval.problems=1"], ["1e3"]).config.model.path == "1e3"


def test_a_run_stands_for_its_newest_complete_checkpoint(run: RunFolder) -> None:
    shutil.copytree(NANO_PATH, run.path / "model")
    assert checkpoint_of(str(run.path)) == str(run.path / "model")
    newest = add_checkpoint(run, 20)
    add_checkpoint(run, 9)
    add_checkpoint(run, 30, is_complete=False)
    assert checkpoint_of(str(run.path)) == str(newest)
    plan = make_plan("quickstart", ["eval.problems=1"], [str(run.path), str(run.checkpoints / "checkpoint-9")])
    assert [one.model for one in plan.combinations] == [str(run.path), str(run.checkpoints / "checkpoint-9")]
    assert plan.config.model.path == str(newest)


def test_a_run_in_the_config_itself_is_one_too(run: RunFolder) -> None:
    checkpoint = add_checkpoint(run, 5)
    assert make_plan("quickstart", ["eval.problems=1", f"model.path={run.path}"]).config.model.path == str(checkpoint)


def test_names_that_are_no_paths_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [checkpoint_of(name) for name in ("nano", "owner/model")] == ["nano", "owner/model"]


def test_a_run_without_weights_says_so(run: RunFolder) -> None:
    add_checkpoint(run, 30, is_complete=False)
    with pytest.raises(RunError, match="no complete checkpoint and no model yet"):
        checkpoint_of(str(run.path))


def test_a_run_that_is_not_there_names_those_that_are(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path.parent.parent)
    with pytest.raises(RunError, match="there is no run 'runs/quikstart'; in runs there are quickstart"):
        checkpoint_of("runs/quikstart")
    add_checkpoint(run, 20)
    with pytest.raises(
        ModelError, match=r"there is no checkpoint '.*-30'; in runs/quickstart/checkpoints there are che"
    ):
        checkpoint_of("runs/quickstart/checkpoints/checkpoint-30")


def test_a_run_is_not_looked_for_on_the_hub_where_there_are_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="there is no run 'runs/quickstart'; there is nothing in runs"):
        checkpoint_of("runs/quickstart")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "4", "--k", "1,8"], "--k 8: pass@8 needs k from 1 to the 4 samples of a problem; raise -n or lower k"),
        (["--k", "0"], "--k 0: pass@0 needs k from 1 to"),
        (["--k", "1;2"], "--k '1;2': give whole numbers with commas between them, such as 1,4,8"),
        (["-n", "0"], "-n 0: give at least one sample of each problem"),
        (["--problems", "0"], "eval.problems: Input should be greater than or equal to 1 (got 0)"),
        (["--model", "nano", "no-such-model"], "'no-such-model' is not a model"),
        (["--model", "nano", "runs/none"], "there is no run 'runs/none'"),
        (["--model", "empty"], "'empty' is a folder without config.json"),
        (["--dialect", "pyhton"], "dialect.name: unknown dialect 'pyhton'; did you mean 'python'?"),
        (["-n", "2", "--set", "eval.temperature=0"], "at temperature 0 the 2 samples of a problem would be one"),
        (["--json", "nowhere"], "--json nowhere can't be written: Is a directory; give another file"),
        (["--set", "engine.context_tokens=32", "--set", "dialect.examples=2"], "nano, python: the longest prompt has"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_evaluated(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("repl_rl.rollout.service.make_engine", lambda *_, **__: pytest.fail("an engine was loaded"))
    for name in ("empty", "nowhere"):
        (tmp_path / name).mkdir()
    assert main(["eval", "quickstart", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_bad_input_loads_neither_torch_nor_vllm() -> None:
    program = (
        "import sys; from repl_rl.cli import main; code = main(['eval', 'quickstart', '-n', '2', '--k', '3']);"
        "print(code, sorted({'torch', 'vllm', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "2 []\n"
