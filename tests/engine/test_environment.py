"""What `import repl_rl` sets for libraries that come after it, and what it leaves alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from repl_rl.engine.environment import has_gpu_driver

OURS = ("OMP_WAIT_POLICY", "TRL_EXPERIMENTAL_SILENCE", "VLLM_CPU_KVCACHE_SPACE")
TORCH = "import sys, types; sys.modules['torch'] = types.ModuleType('torch')"
ENGINE = "from repl_rl.engine.environment import prepare_environment; prepare_environment()"
WARNING = (
    "torch was imported before repl_rl, and sampling may crawl: import repl_rl first, or set OMP_WAIT_POLICY=PASSIVE "
    "in the environment\n"
)

CASES = yaml.safe_load(Path(__file__).with_name("environment.yaml").read_text(encoding="utf-8"))


def run(code: str, **environment: str) -> tuple[list[str], str]:
    """The values of `OURS` after a program, and what it wrote to stderr."""
    given = {name: value for name, value in os.environ.items() if name not in OURS} | environment
    code += f"import os; print(*[os.environ.get(name, '-') for name in {OURS}])"
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize(("code", "environment", "values", "warns"), CASES)
def test_variables_of_the_environment(code: str, environment: dict[str, str], values: str, warns: bool) -> None:
    code = code.replace("TORCH", TORCH).replace("ENGINE", ENGINE)
    assert run(code, **environment) == (values.split(), WARNING * warns)


def test_a_thread_keeps_its_openmp_threads_where_torch_was_given_another_number() -> None:
    """vLLM's attention on a CPU ends with an error if the number changes within a step."""
    code = """if True:
        import torch; from concurrent.futures import ThreadPoolExecutor
        from repl_rl.engine.environment import limit_openmp
        torch.set_num_threads(2)
        thread = ThreadPoolExecutor(1)
        thread.submit(limit_openmp, 1).result()
        assert thread.submit(torch.get_num_threads).result() == 1
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(has_gpu_driver(), reason="only on a CPU")
def test_freed_memory_stays_with_the_process_only_while_it_is_to() -> None:
    """Blocks of 200 MiB in and after the block of `freed_memory_kept`, and the memory that is held once they are
    freed."""
    code = """if True:
        from pathlib import Path
        import numpy as np
        from repl_rl.engine.environment import freed_memory_kept
        def held_after_freeing():
            np.ones(200 * 2**17)  # freed at once
            [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
            return int(line.split()[1]) // 1024
        before = held_after_freeing()
        with freed_memory_kept():
            within = held_after_freeing() - before
        print(within, held_after_freeing() - before)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    within, after = map(int, done.stdout.split())
    assert within >= 190
    assert after <= 50


@pytest.mark.slow
def test_the_trainers_imports_warn_of_nothing() -> None:
    assert run("from repl_rl import ReplGRPOConfig, ReplGRPOTrainer; ")[1] == ""
