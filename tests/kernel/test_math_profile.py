"""The profile for mathematics: what is missing is named, what is there is warm, works in the sandbox, and forks."""

import importlib.util
import logging
from dataclasses import replace
from typing import Any

import pytest
from kernel.conftest import LIMITS, a_fork_backend, in_one_session, in_pool

from repl_rl.kernel import ExecResult, ExecStatus, KernelPool, Limits, Profile
from repl_rl.utils.threads import BackgroundLoop
from studies.profile.study import USES

SERVER = "repl_rl.kernel.forked.server"
MATH_LIMITS = replace(LIMITS, memory_mb=512, cpu_s=120, processes=64, start_s=300.0)
FORKING: dict[str, Any] = {"limits": MATH_LIMITS, "profile": "math", "sandbox": "bwrap"}
HARD = (
    "import z3; s = z3.Solver(); a, b, c = z3.Ints('a b c'); s.add(a > 2, b > 2, c > 2, a**3 + b**3 == c**3 + 41);"
    " s.check()"
)
NEW_MODULES = "import sys; before = set(sys.modules)\n", "print(sorted(set(sys.modules) - before))\n"


def _needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; pip install 'repl-rl[math]'")


async def said_by(profile: Profile, cell: str, caplog: pytest.LogCaptureFixture) -> tuple[list[str], ExecResult]:
    """What is logged as a server of this profile starts, and what a session says."""
    caplog.clear()
    caplog.set_level(logging.WARNING, logger=SERVER)
    async with a_fork_backend(profile) as backend:
        kernel = await backend.start()
        result = await kernel.execute(cell)
        await kernel.close()
    return [each.message for each in caplog.records if each.name == SERVER], result


def test_the_profile_is_the_default_with_more_packages() -> None:
    default, math = Profile.load(), Profile.load("math")
    assert (math.read_only, math.hostname) == (default.read_only, default.hostname)
    assert math.environment == {**default.environment, "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    assert math.limits == Limits(start_s=120.0)
    assert set(default.preload) < set(math.preload)
    compile(math.warm_up, "<warm_up>", "exec")


async def test_what_is_missing_is_left_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    preload = ("json", "no_such_solver", "no_such_solver.linear", "no_such_algebra")
    warm_up = "try:\n    import no_such_solver\nexcept ImportError:\n    import string\n"
    math = replace(Profile.load("math"), preload=preload, warm_up=warm_up)
    said, result = await said_by(math, "import no_such_solver", caplog)
    assert said == [
        "the kernel profile 'math' goes without no_such_solver, no_such_algebra; pip install 'repl-rl[math]' installs "
        "all of it"
    ]
    assert result.error_message == "ModuleNotFoundError: No module named 'no_such_solver'"
    said, result = await said_by(math, "import sys; print('json' in sys.modules)", caplog)
    assert (said, result.output) == ([], "True\n")


async def test_a_thread_that_the_warm_up_leaves_is_named(caplog: pytest.LogCaptureFixture) -> None:
    warm_up = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    said, result = await said_by(replace(Profile.load(), preload=(), warm_up=warm_up), "1", caplog)
    assert [text.partition(": ")[0] for text in said] == [
        "what the kernel profile preloads has left threads running, which no session has"
    ]
    assert result.output == "1\n"


@pytest.mark.slow
@pytest.mark.parametrize("pool", [FORKING, FORKING | {"sandbox": "sandlock"}], indirect=True, ids=["bwrap", "sandlock"])
@pytest.mark.parametrize("package", USES)
def test_a_package_works_in_sessions_and_its_first_use_imports_nothing(
    package: str, pool: KernelPool, loop: BackgroundLoop
) -> None:
    _needs(package)
    before, after = NEW_MODULES
    results = loop.run(in_one_session(pool, before, USES[package], after, USES[package]))
    assert [result.status for result in results] == [ExecStatus.OK] * 4, [result.output for result in results]
    assert results[2].output == "[]\n"


@pytest.mark.slow
@in_pool(**FORKING)
async def test_a_session_with_solvers_can_be_forked(pool: KernelPool) -> None:
    for package in ("z3", "ortools"):
        _needs(package)
    async with pool.session() as kernel:
        for package in ("z3", "ortools", "flint"):
            await kernel.execute(USES[package])
        async with pool.fork(kernel) as fork:
            await fork.execute("s2 = cp_model.CpSolver(); s2.solve(m)")
            cell = "import z3; t = z3.Solver(); t.add(z3.Int('k') == 7); print(t.check(), s2.value(v))"
            assert (await fork.execute(cell)).output == "sat 3\n"


@pytest.mark.slow
@in_pool(limits=replace(MATH_LIMITS, line_s=2.0), profile="math", sandbox="bwrap")
async def test_a_solver_that_takes_too_long_is_a_timeout(pool: KernelPool) -> None:
    _needs("z3")
    [result] = await in_one_session(pool, HARD)
    assert result.status in (ExecStatus.TIMEOUT, ExecStatus.KILLED)
