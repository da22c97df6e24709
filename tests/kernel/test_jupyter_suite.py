"""Jupyter's own tests of kernels, on ours: what they look at is what its clients rely on. All areas apply."""

import unittest
from pathlib import Path
from typing import Any

import pytest

from repl_rl.kernel.jupyter.provisioner import register
from repl_rl.kernel.paths import program_folder

pytestmark = pytest.mark.more

PACKAGE = Path(__file__).parents[2] / ".venv" / "jupyter_kernel_test"
NAME = "repl_rl"
TIMEOUT_S = 600
SAMPLES: dict[str, Any] = {
    "language_name": "python",
    "file_extension": ".py",
    "code_hello_world": "print('hello, world')",
    "code_stderr": "import sys; print('test', file=sys.stderr)",
    "completion_samples": [
        {"text": "zi", "matches": {"zip"}},
        {"text": "import zipf", "matches": {"zipfile"}},
        {"text": "from os.path import splitd", "matches": {"splitdrive"}},
    ],
    "complete_code_samples": ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n", "a = 1\nb = 2"],
    "incomplete_code_samples": ["print('''hello", "def f(x):\n  x*2"],
    "invalid_code_samples": ["import = 7q"],
    "code_page_something": "zip?",
    "code_generate_error": "raise",
    "code_execute_result": [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
        {"code": "import sympy; sympy.sqrt(2)", "mime": "text/latex", "result": r"$\displaystyle \sqrt{2}$"},
    ],
    "code_display_data": [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('x'))", "mime": "text/latex"},
    ],
    "code_history_pattern": "1?2*",
    "supported_history_operations": ("tail", "range", "search"),
    "code_inspect_sample": "zip",
    "code_clear_output": "from IPython.display import clear_output; clear_output()",
}


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`jupyter_kernel_test`, which waits as long as a busy machine takes; our kernelspec is where Jupyter looks."""
    missing = f"{PACKAGE} is missing; `make .venv/{PACKAGE.name}/.installed` brings it"
    assert (PACKAGE / "jupyter_kernel_test").is_dir(), missing
    monkeypatch.syspath_prepend(str(PACKAGE))
    import jupyter_kernel_test

    register()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / NAME).symlink_to(program_folder())
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    patiently = jupyter_kernel_test.ensure_sync
    monkeypatch.setattr(jupyter_kernel_test, "TIMEOUT", TIMEOUT_S)
    monkeypatch.setattr(
        jupyter_kernel_test, "ensure_sync", lambda function: lambda timeout: patiently(function)(timeout=TIMEOUT_S)
    )
    return jupyter_kernel_test


def test_every_area_passes(suite: Any) -> None:
    class Areas(suite.KernelTests):  # type: ignore[misc, name-defined]
        kernel_name = NAME

        @classmethod
        def setUpClass(cls) -> None:
            cls.km, cls.kc = suite.start_new_kernel(kernel_name=NAME, startup_timeout=TIMEOUT_S)

        def flush_channels(self) -> None:
            """Wait for the end of a request, instead of for a tenth of a second without a message."""
            request = self.kc.kernel_info()
            while self.kc.get_shell_msg(timeout=TIMEOUT_S)["parent_header"].get("msg_id") != request:
                pass
            while True:
                message = self.kc.get_iopub_msg(timeout=TIMEOUT_S)
                suite.validate_message(message)
                is_its = message["parent_header"].get("msg_id") == request
                if is_its and message["content"].get("execution_state") == "idle":
                    return

    class Welcome(suite.IopubWelcomeTests):  # type: ignore[misc, name-defined]
        kernel_name = NAME
        support_iopub_welcome = True

    for name, sample in SAMPLES.items():
        assert hasattr(Areas, name), f"{name} is not one of the suite's"
        setattr(Areas, name, sample)
    tests = [unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in (Areas, Welcome)]
    result = unittest.TestResult()
    unittest.TestSuite(tests).run(result)
    assert [(str(test), said) for test, said in result.failures + result.errors] == []
    assert [(str(test), said) for test, said in result.skipped] == []
    assert result.testsRun == 13
