"""Every block of docs/credit-elsewhere.md runs as it stands there."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from pages import ROOT, blocks
from scripted_chat import call, make_model, make_tokenizer

from repl_rl.config.estimators import ESTIMATOR_RECORDS
from repl_rl.integrations.shared import close_shared_kernels

PAGE = (ROOT / "docs" / "credit-elsewhere.md").read_text(encoding="utf-8")
ANY_TRAINER, IN_VERL, IN_TRL = blocks(PAGE, "python")
(COMMAND,) = blocks(PAGE, "bash")


def test_the_page_says_of_every_estimator_what_it_needs() -> None:
    table = PAGE.partition("## Which estimator")[2].partition("\n\n`branch`")[0]
    names = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted([*names, "branch"]) == sorted(ESTIMATOR_RECORDS)


def test_any_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    exec(ANY_TRAINER, {})
    expected = ANY_TRAINER.rstrip().rpartition("  # ")[2]
    assert capsys.readouterr().out.strip() == expected


LOOKS = """
import hydra
import verl
from pathlib import Path
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

output = PaidTurns(
    prompt_ids=[1], response_ids=[1, 2, 3, 4, 5], response_mask=[1, 1, 0, 0, 1], reward_score=1.0,
    metrics=AgentLoopMetrics(), extra_fields={"turn_rewards": [-0.5, 0.25]},
)
print(output.as_dict()["rm_scores"].tolist())
with hydra.initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
    config = hydra.compose("ppo_trainer", overrides=OVERRIDES)
print(config.algorithm.adv_estimator, dict(config.algorithm.repl_rl))
print(dict(config.ray_kwargs.ray_init.runtime_env.env_vars))
print(get_adv_estimator_fn(config.algorithm.adv_estimator).func.__name__)
print(config.trainer.use_v1)
callers = [path for path in Path(verl.__file__).parent.rglob("*.py") if ".as_dict(" in path.read_text()]
print([str(path.relative_to(Path(verl.__file__).parent)) for path in callers])
"""


@pytest.mark.more
def test_verl_takes_the_pages_command_and_what_turns_earned(verl_path: Path, tmp_path: Path) -> None:
    """In a process of its own: hydra and math-verify each need an antlr of their own."""
    export, command = COMMAND.splitlines()
    name, value = export.removeprefix("export ").split("=")
    overrides = [word for word in command.removesuffix(" ...").split() if "=" in word]
    overrides.append(PAGE.partition("If Ray runs already, add\n`")[2].partition("`")[0])
    (tmp_path / "looks.py").write_text(f"OVERRIDES = {overrides}\n{IN_VERL}\n{LOOKS}")
    paths = {"PYTHONPATH": os.pathsep.join([str(verl_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "looks.py"],
        cwd=tmp_path,
        env=os.environ | paths | {name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "[0.0, -0.5, 0.0, 0.0, 1.25]",
        "repl_rl/return_to_go {'baseline': 'place'}",
        "{'VERL_USE_EXTERNAL_MODULES': 'repl_rl.integrations.verl'}",
        "verl_advantages",
        "True",
        "['trainer/ppo/v1/agent_loop_tq.py']",  # so the other trainers don't pay turns, as the page says
    ], done.stderr[-4000:]


@pytest.mark.more
def test_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(row: int, seen: Sequence[str]) -> str:
        first = ["1 / 0", "17 * 23"][row]
        return [call(first), call("submit_final_answer(17 * 23)"), "Done."][len(seen)]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = make_tokenizer()
    code = IN_TRL.replace("max_steps=1", "max_steps=1, report_to='none', use_cpu=True, bf16=False")
    names = {"model": make_model(tokenizer, script), "tokenizer": tokenizer}
    exec(code, names)
    trainer = names["trainer"]
    assert [environment.answer for environment in trainer.environments] == [("391",)] * 2
    (batch,) = trainer._buffered_inputs
    (of_errors,) = (row for row in batch["advantages"].tolist() if min(row) < 0)
    assert of_errors[0] == pytest.approx(-0.2)
    assert sorted({round(value, 6) for row in batch["advantages"].tolist() for value in row}) == [-0.2, 0.0, 0.2]
    close_shared_kernels()
