"""What is combined with what, which checkpoint a run stands for, and bad input before anything is loaded."""

import shutil
from pathlib import Path

import pytest

from repl_rl.config import load_config
from repl_rl.errors import ModelError, RunError
from repl_rl.models.nano import NANO_PATH
from repl_rl.run.evaluation.plan import checkpoint_of, make_plan
from repl_rl.run.folder import RunFolder, new_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run without checkpoints yet."""
    return new_run(load_config("quickstart"), tmp_path / "runs")


def add_checkpoint(run: RunFolder, step: int, state: str | None = None) -> Path:
    checkpoint = run.checkpoints / f"checkpoint-{step}"
    shutil.copytree(NANO_PATH, checkpoint)
    if state != "":
        (checkpoint / "trainer_state.json").write_text(state or f'{{"global_step": {step}}}')
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
    own = load_config("quickstart", ("eval.problems=2",))
    assert ([(one.model, one.config) for one in plan.combinations], plan.ks) == ([("nano", own)], (1,))
    assert [checkpoint_of(name) for name in ("nano", "owner/model")] == ["nano", "owner/model"]


def test_a_name_that_yaml_would_read_as_a_number_stays_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(NANO_PATH, tmp_path / "1e3")
    monkeypatch.chdir(tmp_path)
    assert make_plan("quickstart", ["eval.problems=1"], ["1e3"]).config.model.path == "1e3"


def test_a_run_stands_for_its_newest_complete_checkpoint(run: RunFolder) -> None:
    add_checkpoint(run, 30, state="")
    add_checkpoint(run, 40, state='{"global')
    with pytest.raises(RunError, match="no complete checkpoint and no model yet"):
        checkpoint_of(str(run.path))
    shutil.copytree(NANO_PATH, run.path / "model")
    assert checkpoint_of(str(run.path)) == str(run.path / "model")
    newest = add_checkpoint(run, 20)
    add_checkpoint(run, 9)
    assert checkpoint_of(str(run.path)) == str(newest)
    assert make_plan("quickstart", ["eval.problems=1", f"model.path={run.path}"]).config.model.path == str(newest)
    plan = make_plan("quickstart", ["eval.problems=1"], [str(run.path), str(run.checkpoints / "checkpoint-9")])
    assert [one.model for one in plan.combinations] == [str(run.path), str(run.checkpoints / "checkpoint-9")]
    assert plan.config.model.path == str(newest)


def test_a_run_that_is_not_there_names_those_that_are(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path.parent.parent)
    with pytest.raises(RunError, match="there is no run 'runs/quikstart'; in runs there are quickstart"):
        checkpoint_of("runs/quikstart")
    add_checkpoint(run, 20)
    message = r"there is no checkpoint '.*-30'; in runs/quickstart/checkpoints there are che"
    with pytest.raises(ModelError, match=message):
        checkpoint_of("runs/quickstart/checkpoints/checkpoint-30")
