"""What the CPU engine needs, set before torch is imported anywhere; which tests share a process, and what in it."""

import functools
import inspect
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from installed import build_wheel, install
from xdist.scheduler import LoadScopeScheduling

from repl_rl.cli import main
from repl_rl.engine.environment import prepare_environment
from repl_rl.kernel import KernelPool, Limits, landlock
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

prepare_environment()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts in the background so, and all that tests start would hear no interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    # Read by OpenMP as torch is imported. With a thread for each core in each worker, all wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

# A busy machine is no fault of the code; pytest's own time limit catches what hangs.
settings.register_profile("repl_rl", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=150)
settings.load_profile("repl_rl")

GROUPS = {
    "vocabulary": ("tests/engine/test_vocabulary.py", "tests/rollout/test_three_views.py", "tests/view/test_tokens.py"),
    "engine": ("tests/engine/", "tests/rollout/test_exact_tokens.py"),
}
"""Tests of one group run in one process and share its engines and pools. Each other file is a group of its own."""
ROOMS = ("kernel", "trainer", "run", "rollout", "integrations", "tools", "dialect", "view", "tasks")
"""Those that take long."""


class GroupScheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """For `--dist loadgroup`: groups follow from paths. xdist looks for marks, which pytest 9.2 hides from it."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first: a process that comes to it last would leave the other one idle."""
    order = [*GROUPS, *(f"tests/{room}/" for room in ROOMS)]

    def place(item: pytest.Item) -> int:
        return next((place for place, start in enumerate(order) if group_of(item.nodeid).startswith(start)), len(order))

    items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """An `async def` test runs on the fixture `loop`, where the pools live; so does one of hypothesis."""
    if isinstance(item, pytest.Function) and _coroutine_of(item) is not None:
        item.fixturenames.append("loop")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    if (coroutine := _coroutine_of(pyfuncitem)) is None:
        return
    run = pyfuncitem.funcargs["loop"].run

    @functools.wraps(coroutine)
    def in_loop(*args: Any, **named: Any) -> None:
        run(coroutine(*args, **named))

    if hypothesis := getattr(pyfuncitem.obj, "hypothesis", None):
        hypothesis.inner_test = in_loop
    else:
        pyfuncitem.obj = in_loop


def _coroutine_of(item: pytest.Function) -> Callable[..., Any] | None:
    function = item.obj.hypothesis.inner_test if hasattr(item.obj, "hypothesis") else item.obj
    return function if inspect.iscoroutinefunction(function) else None


def group_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return next((name for name, starts in GROUPS.items() if file.startswith(starts)), file)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls `repl-rl` in this process: what it printed, on both streams. It has to end with `code`."""

    def said(*arguments: str, code: int = 0) -> str:
        ended = main(list(arguments))
        printed = "".join(capsys.readouterr())
        assert ended == code, printed
        return printed

    return said


Pools = Callable[..., KernelPool]


@pytest.fixture(scope="session")
def loop() -> Iterator[BackgroundLoop]:
    """An event loop in a thread, as a trainer has one."""
    with BackgroundLoop() as loop:
        yield loop


@pytest.fixture(scope="session")
def kernel_pools(loop: BackgroundLoop) -> Iterator[Pools]:
    """Real pools on that loop by their settings: each is opened once, when it is first asked for."""
    opened: dict[tuple[Limits, int, str, str, str], KernelPool] = {}

    def pool(
        limits: Limits,
        *,
        size: int = 3,
        backend: str = "fork",
        sandbox: SandboxKind = "bwrap",
        profile: str = "default",
    ) -> KernelPool:
        if sandbox == "sandlock" and (problem := landlock.problem()):
            pytest.skip(problem)
        settings = limits, size, backend, sandbox, profile
        if settings not in opened:
            made = KernelPool(size=size, limits=limits, backend=backend, sandbox=sandbox, profile=profile)
            loop.run(made.__aenter__())
            opened[settings] = made
        return opened[settings]

    yield pool
    for each in opened.values():
        loop.run(each.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a venv that holds the wheel and nothing else of ours."""
    return install(wheel, tmp_path_factory.mktemp("venv"))
