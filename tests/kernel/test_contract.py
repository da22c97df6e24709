"""What every `KernelSource` does, the fake that other tests use and real sandboxed kernels alike."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kernel.conftest import LIMITS, Typed, in_one_session, sessions, told, typed_in
from kernel.kernelspecs import REAL, SOURCES, kernelspecs
from kernel_fakes import FakeKernelPool

from repl_rl.errors import KernelDiedError
from repl_rl.kernel import ExecResult, ExecStatus, KernelPool, KernelSource
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

__all__ = ["kernelspecs"]
CASES = yaml.safe_load(Path(__file__).with_name("contract.yaml").read_text())
IPYTHONS_OWN = {
    "test_a_session_that_goes_another_way_in_ipython",
    "test_sessions_share_nothing",  # `_` is always there
    "test_an_exit_loses_the_state",
}
"""Tests of what stock ipykernel does in another way: the form of tracebacks, which values are echoed, what exits."""


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
        limits = replace(LIMITS, line_s=10.0, line_wall_s=10.0)  # it falls silent
        return kernel_pools(limits, backend=backend, sandbox=sandbox)
    return pools(backend, sandbox)


@pytest.fixture
def typed(source: KernelSource, loop: BackgroundLoop) -> Typed:
    return lambda *cells: loop.run(in_one_session(source, *cells))


@pytest.mark.parametrize("cells", sessions("contract", "everywhere"))
def test_a_session(cells: list[Any], typed: Typed) -> None:
    told(cells, typed(*typed_in(cells)))


@pytest.mark.parametrize("cells", sessions("contract", "not_in_ipython"))
def test_a_session_that_goes_another_way_in_ipython(cells: list[Any], typed: Typed) -> None:
    told(cells, typed(*typed_in(cells)))


def test_sessions_share_nothing(source: KernelSource, loop: BackgroundLoop) -> None:
    loop.run(in_one_session(source, "x = 1", "5", "import sys; sys.displayhook = None"))
    again = loop.run(in_one_session(source, "x", "_"))
    assert [result.error_name for result in again] == ["NameError", "NameError"]


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
