"""What every `KernelSource` does, the fake that other tests use and real sandboxed kernels alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kernel.conftest import LIMITS, Typed, in_one_session
from kernel.kernelspecs import REAL, SOURCES, kernelspecs
from kernel_fakes import FakeKernelPool

from repl_rl.errors import KernelDiedError
from repl_rl.kernel import ExecResult, ExecStatus, KernelPool, KernelSource
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

__all__ = ["kernelspecs"]
CASES = yaml.safe_load(Path(__file__).with_name("contract.yaml").read_text())
IPYTHONS_OWN = {
    "test_an_exception_without_a_name_is_one_too",
    "test_sessions_share_nothing",  # `_` is always there
    "test_an_exception_is_a_result",
    "test_a_cell_that_is_no_python_did_not_compile",  # it dedents
    "test_several_statements_run_in_order",
    "test_output_keeps_its_order",
    "test_a_submission_without_a_value_is_a_type_error",
    "test_a_submission_whose_repr_fails_shows_no_frame_of_ours",
    "test_an_exit_loses_the_state",
}
"""Tests of what stock ipykernel does in another way: the form of tracebacks, which values are echoed, what exits."""

TRACEBACK = 'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'


@pytest.fixture(params=SOURCES)
def source(
    request: pytest.FixtureRequest,
    pools: Callable[[str, SandboxKind], KernelPool],
    kernel_pools: Callable[..., KernelPool],
) -> KernelSource:
    if request.param == "fake":
        return FakeKernelPool()
    if request.param == "stock ipykernel" and request.node.originalname in IPYTHONS_OWN:
        pytest.skip("IPython's own ways: tracebacks, echoes, exits")
    backend, sandbox = REAL[request.param]
    if backend != "fork" and request.node.originalname == "test_what_a_session_rebinds_is_its_own":
        return kernel_pools(replace(LIMITS, line_s=10.0), backend=backend, sandbox=sandbox)  # it falls silent
    return pools(backend, sandbox)


@pytest.fixture
def typed(source: KernelSource, loop: BackgroundLoop) -> Typed:
    return lambda *cells: loop.run(in_one_session(source, *cells))


def test_an_expression_is_echoed(typed: Typed) -> None:
    [result] = typed("1 + 1")
    assert (result.status, result.output, result.error_name, result.compiled, result.answer) == (
        ExecStatus.OK,
        "2\n",
        None,
        True,
        None,
    )
    assert not result.state_lost
    assert result.omitted_bytes == 0


def test_state_is_kept_between_cells(typed: Typed) -> None:
    assert [result.output for result in typed("x = 20", "x += 1", "x * 2", "_ + 1")] == ["", "", "42\n", "43\n"]


def test_sessions_share_nothing(source: KernelSource, loop: BackgroundLoop) -> None:
    loop.run(in_one_session(source, "x = 1", "5", "import sys; sys.displayhook = None"))
    again = loop.run(in_one_session(source, "x", "_"))
    assert [result.error_name for result in again] == ["NameError", "NameError"]


def test_an_exception_is_a_result(typed: Typed) -> None:
    raised, after = typed("1 / 0", "'alive'")
    assert (raised.status, raised.error_name, raised.compiled) == (ExecStatus.ERROR, "ZeroDivisionError", True)
    assert raised.output == f"{TRACEBACK}ZeroDivisionError: division by zero\n"
    assert after.output == "'alive'\n"


def test_an_exception_without_a_name_is_one_too(typed: Typed) -> None:
    [raised] = typed("raise type('', (Exception,), {})()")
    assert (raised.status, raised.error_name, raised.compiled) == (ExecStatus.ERROR, "", True)


@pytest.mark.parametrize("cell", ["x = = 1", "return 1", "  x", "if True: x = 1 2\n", "f(", "'"])
def test_a_cell_that_is_no_python_did_not_compile(cell: str, typed: Typed) -> None:
    [result] = typed(cell)
    expected = ExecStatus.INCOMPLETE if cell == "f(" else ExecStatus.ERROR
    assert result.status is expected
    assert result.compiled is (expected is ExecStatus.INCOMPLETE)


@pytest.mark.parametrize(
    "cell", ["eval('1 +')", "exec('return 1')", "raise SyntaxError('x')", "import ast; ast.parse('(')"]
)
def test_a_syntax_error_at_run_time_is_an_exception(cell: str, typed: Typed) -> None:
    [result] = typed(cell)
    assert (result.status, result.error_name, result.compiled) == (ExecStatus.ERROR, "SyntaxError", True)


def test_an_incomplete_cell_runs_nothing(typed: Typed) -> None:
    incomplete, after = typed("for i in range(3):", "i")
    assert (incomplete.status, incomplete.output) == (ExecStatus.INCOMPLETE, "")
    assert after.error_name == "NameError"


def test_several_statements_run_in_order(typed: Typed) -> None:
    [result] = typed("x = 2\nx + 1\nprint('end')")
    assert result.output == "3\nend\n"


def test_output_keeps_its_order(typed: Typed) -> None:
    [result] = typed("import sys\nprint('a')\nprint('b', file=sys.stderr)\n'c'\nprint('d')\n1/0")
    assert result.output.split("\n")[:5] == ["a", "b", "'c'", "d", "Traceback (most recent call last):"]


def test_text_may_be_any_unicode(typed: Typed) -> None:
    shown, zero, surrogate = typed("print('é 漢字 🎉 \\x1b[1m')", "print('a\\0b')", "'\\ud800'")
    assert shown.output == "é 漢字 🎉 \x1b[1m\n"
    assert zero.output == "a\0b\n"
    assert surrogate.output == "'\\ud800'\n"


@pytest.mark.parametrize("case", CASES["answers"], ids=lambda case: case["cell"])
def test_an_answer_is_what_was_handed_in(case: dict[str, Any], typed: Typed) -> None:
    [result] = typed(case["cell"])
    assert result.answer == (None if case["answer"] is None else tuple(case["answer"]))


@pytest.mark.parametrize(
    ("cell", "forms"),
    [
        ("submit_final_answer(391, [1, 'x'])", None),
        ("submit_final_answer(lambda x: 2 * x)", ("lambda x: 2 * x",)),
        (
            "import sympy as s; submit_final_answer(s.Matrix([[s.pi, 2]]), 5)",
            ("MutableDenseMatrix([[pi, Integer(2)]])", None),
        ),
    ],
)
def test_a_submitted_object_comes_with_its_form(cell: str, forms: tuple[str | None, ...] | None, typed: Typed) -> None:
    [result] = typed(cell)
    assert result.answer is not None
    assert (result.status, result.answer_forms) == (ExecStatus.OK, forms)


def test_a_function_of_an_earlier_cell_comes_with_its_source(typed: Typed) -> None:
    *_, result = typed("def f(x):\n    return x + 1\n", "f = lambda x: x + 2", "g = f", "submit_final_answer(g)")
    assert result.answer_forms == ("lambda x: x + 2",)


def test_an_answer_belongs_to_its_cell(typed: Typed) -> None:
    assert [result.answer for result in typed("submit_final_answer(1)", "2")] == [("1",), None]


def test_a_submission_without_a_value_is_a_type_error(typed: Typed) -> None:
    [result] = typed("submit_final_answer()")
    assert result.output == (
        f"{TRACEBACK}TypeError: submit_final_answer() missing 1 required positional argument: 'value'\n"
    )


def test_a_submission_whose_repr_fails_shows_no_frame_of_ours(typed: Typed) -> None:
    *_, result = typed("class A:\n    def __repr__(self): return 1 / 0\n", "submit_final_answer(A())")
    assert (result.answer, result.error_name) == (None, "ZeroDivisionError")
    assert result.output == (f'{TRACEBACK}  File "<stdin>", line 2, in __repr__\nZeroDivisionError: division by zero\n')


@pytest.mark.parametrize(
    ("cell", "output"),
    [("exit()", ""), ("quit(3)", ""), ("raise SystemExit", ""), ("import sys; sys.exit('bye')", "bye\n")],
)
def test_an_exit_loses_the_state(cell: str, output: str, source: KernelSource, loop: BackgroundLoop) -> None:
    async def exit_and_go_on() -> ExecResult:
        async with source.session() as kernel:
            result = await kernel.execute(cell)
            with pytest.raises(KernelDiedError):
                await kernel.execute("1")
            return result

    result = loop.run(exit_and_go_on())
    assert (result.status, result.output, result.state_lost) == (ExecStatus.KILLED, output, True)


def test_an_answer_before_the_exit_counts(typed: Typed) -> None:
    [result] = typed("submit_final_answer(5); exit()")
    assert (result.status, result.answer) == (ExecStatus.KILLED, ("5",))


@pytest.mark.parametrize("cell", CASES["rebinds"])
def test_what_a_session_rebinds_is_its_own(cell: str, source: KernelSource, loop: BackgroundLoop) -> None:
    if isinstance(source, FakeKernelPool) and any(
        word in cell for word in ("builtins.repr", "modules.clear", ".close()")
    ):
        pytest.skip("would take down the process of the tests, which is the fake's own")
    results = loop.run(in_one_session(source, cell, "submit_final_answer(5)"))
    assert all(result.status is not ExecStatus.INCOMPLETE for result in results)
    fresh = loop.run(in_one_session(source, "print(1 + 1)", "submit_final_answer(5)"))
    assert [(result.output, result.answer) for result in fresh] == [("2\n", None), ("", ("5",))]
