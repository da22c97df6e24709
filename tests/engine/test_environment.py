"""What `import repl_rl` sets for libraries that come after it, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

OURS = ("OMP_WAIT_POLICY", "TRL_EXPERIMENTAL_SILENCE", "VLLM_CPU_KVCACHE_SPACE")
TORCH = "import sys, types; sys.modules['torch'] = types.ModuleType('torch'); "
ENGINE = "from repl_rl.engine.environment import prepare_environment; prepare_environment(); "
WARNING = (
    "torch was imported before repl_rl, and sampling may crawl: import repl_rl first, or set OMP_WAIT_POLICY=PASSIVE "
    "in the environment\n"
)


def run(code: str, **environment: str) -> tuple[list[str], str]:
    """The values of `OURS` after a program, and what it wrote to stderr."""
    given = {name: value for name, value in os.environ.items() if name not in OURS} | environment
    code += f"import os; print(*[os.environ.get(name, '-') for name in {OURS}])"
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("code", "environment", "values", "warning"),
    [
        ("import repl_rl; ", {}, ["PASSIVE", "1", "-"], ""),
        ("import repl_rl; ", {"OMP_WAIT_POLICY": "ACTIVE"}, ["ACTIVE", "1", "-"], ""),
        (f"import repl_rl; {TORCH}{ENGINE}", {}, ["PASSIVE", "1", "1"], ""),
        (f"{TORCH}import repl_rl; ", {}, ["-", "1", "-"], ""),
        (f"{TORCH}import repl_rl; {ENGINE}", {}, ["PASSIVE", "1", "1"], WARNING),
        (f"{TORCH}import repl_rl; {ENGINE}", {"OMP_WAIT_POLICY": "ACTIVE"}, ["ACTIVE", "1", "1"], ""),
    ],
)
def test_variables_of_the_environment(code: str, environment: dict[str, str], values: list[str], warning: str) -> None:
    assert run(code, **environment) == (values, warning)


@pytest.mark.slow
def test_the_trainers_imports_warn_of_nothing() -> None:
    assert run("from repl_rl import ReplGRPOConfig, ReplGRPOTrainer; ")[1] == ""
