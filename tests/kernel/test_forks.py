"""Forks of live sessions: a twin has the state of its session, and from then on nothing in common with it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel.conftest import HASTY, LIMITS, SOAK, open_descriptors

from repl_rl.errors import ForkRefusedError, KernelDiedError
from repl_rl.kernel import ExecResult, ExecStatus, KernelPool
from repl_rl.kernel.forked.kernel import ForkedKernel
from repl_rl.kernel.pool import PooledKernel
from repl_rl.kernel.processes import tree
from repl_rl.kernel.sandbox import SandboxKind
from repl_rl.utils.threads import BackgroundLoop

Lines = list[str]
OWN_CODE = "import sys; f = sys._getframe()\nwhile 'repl_fork' not in f.f_globals: f = f.f_back\n"
"""Typed code can reach and change the code that forks its session."""


async def typed(kernel: PooledKernel, *lines: str) -> list[ExecResult]:
    return [await kernel.execute(line) for line in lines]


async def shown(kernel: PooledKernel, line: str) -> str:
    return (await kernel.execute(line)).output


@pytest.fixture
def forked(loop: BackgroundLoop, pool: KernelPool) -> Callable[..., tuple[list[str], list[str]]]:
    """Runs lines in a session and forks it; returns what the lines after that show in the session and in its twin."""

    def run(before: Lines, session: Lines, twin: Lines | None = None, **options: Any) -> tuple[list[str], list[str]]:
        async def use() -> tuple[list[str], list[str]]:
            async with pool.session() as kernel:
                await typed(kernel, *before)
                async with pool.fork(kernel, **options) as other:
                    results = [
                        await typed(each, *lines) for each, lines in ((kernel, session), (other, twin or session))
                    ]
                    return [r.output for r in results[0]], [r.output for r in results[1]]

        return loop.run(use())

    return run


@pytest.mark.parametrize(
    ("before", "line"),
    [
        (["x = [1, 2]", "y = x"], "x is y, x"),
        (["def f(n):\n    return n * k\n", "k = 3"], "f(4)"),
        (["g = (n * n for n in range(9))", "next(g), next(g)"], "next(g), list(g)"),
        (["import math, numpy as np", "a = np.arange(5)"], "math.pi, a.sum()"),
        (["import random", "_ = random.seed(5), random.random()"], "random.random(), random.Random(1).random()"),
        (["import numpy as np", "np.random.seed(3)"], "np.random.rand()"),
        (["import sympy", "x = sympy.symbols('x', positive=True)"], "sympy.integrate(x**2 + 1, x), sympy.sqrt(x**2)"),
        (["6 * 7"], "_"),
        (["from __future__ import annotations", "def f(a: no_such): pass\n"], "f.__annotations__"),
        (["import os", "os.environ['KEY'] = 'v'", "os.makedirs('/tmp/a/b')", "os.chdir('/tmp/a')"],
         "os.getcwd(), os.environ['KEY'], os.listdir()"),
        (["f = open('/tmp/f', 'w+')", "f.write('hello')", "f.seek(2)"], "f.read(), f.tell(), f.closed"),
        (["f = open('/tmp/f', 'w')", "f.write('not flushed')"], "f.flush(), open('/tmp/f').read()"),
        (["import os", "open('/tmp/f', 'w').close()", "os.link('/tmp/f', '/tmp/g')", "os.symlink('f', '/tmp/h')",
          "os.utime('/tmp/f', (1, 2))", "os.chmod('/tmp/f', 0o640)"],
         "[(os.lstat(n).st_nlink, os.lstat(n).st_mode, os.stat(n).st_mtime) for n in ('/tmp/f', '/tmp/g', '/tmp/h')]"),
        (["import os", "d = os.open('/usr', os.O_RDONLY)", "z = open('/dev/null', 'w')"],
         "os.listdir(d) == os.listdir('/usr'), z.write('x')"),
        (["import os, sys, time"], "os.getpid(), os.getppid(), os.getuid(), sys.getrecursionlimit()"),
        (["open('/dev/shm/kept', 'wb').write(bytes(1000))"], "len(open('/dev/shm/kept', 'rb').read())"),
        (["1 / 0"], "type(__import__('sys').last_value).__mro__[1]"),
        (["import itertools", "c = itertools.count(5)", "next(c)"], "next(c), next(c)"),
        (["import subprocess, signal"], "subprocess.run(['false']).returncode, signal.getsignal(signal.SIGCHLD)"),
        (["ids = {id(int), id(str)}", "h = hash('text')"], "ids == {id(int), id(str)}, h == hash('text')"),
    ],
)  # fmt: skip
def test_a_twin_begins_where_its_session_is(forked: Any, before: Lines, line: str) -> None:
    session, twin = forked(before, [line])
    assert session == twin
    assert "Traceback" not in session[0]


def test_from_then_on_they_have_nothing_in_common(forked: Any) -> None:
    before = [
        "import os",
        "x = [1]",
        "f = open('/tmp/f', 'w+')",
        "f.write('abc')",
        "f.flush()",
        "r = open('/usr/bin/env', 'rb')",
    ]
    session, twin = forked(
        before,
        ["x.append(2)", "f.write('SESSION')", "f.flush()", "open('/tmp/mine', 'w').close()", "_ = r.seek(100)",
         "x, open('/tmp/f').read(), sorted(os.listdir('/tmp')), r.tell()"],
        ["x.append(3)", "os.remove('/tmp/f')", "x, sorted(os.listdir('/tmp')), r.tell(), f.read()"],
    )  # fmt: skip
    assert session[-1] == "([1, 2], 'abcSESSION', ['f', 'mine'], 100)\n"
    assert twin[-1] == "([1, 3], [], 0, '')\n"


def test_random_states_are_the_same_or_drawn_anew(forked: Any) -> None:
    before = ["import random, numpy, sympy", "random.seed(1)", "numpy.random.seed(1)"]
    line = "random.random(), numpy.random.rand()"
    session, twin = forked(before, [line])
    assert session == twin
    again, reseeded = forked(before, [line], reseed=True)
    assert again == session != reseeded


def test_a_twin_has_the_host_s_tools_and_hands_in_its_own_answer(loop: BackgroundLoop, pool: KernelPool) -> None:
    async def use() -> tuple[Any, Any]:
        async with pool.session() as kernel:
            await kernel.prepare("import repl_tools")
            await typed(kernel, "x = 20")
            async with pool.fork(kernel) as twin:
                return await kernel.execute("submit_final_answer(x + 1)"), await twin.execute(
                    "submit_final_answer(x + 2)"
                )

    session, twin = loop.run(use())
    assert (session.answer, twin.answer) == (("21",), ("22",))


def test_one_dies_and_the_other_goes_on(loop: BackgroundLoop, pool: KernelPool) -> None:
    async def use() -> list[str]:
        seen = []
        async with pool.session() as kernel:
            await typed(kernel, "x = 1")
            async with pool.fork(kernel) as twin:
                assert (await twin.execute("import os; os._exit(1)")).status is ExecStatus.KILLED
            seen.append(await shown(kernel, "x"))
            async with pool.fork(kernel) as twin:
                assert (await kernel.execute("exit()")).status is ExecStatus.KILLED
                seen.append(await shown(twin, "x"))
                async with pool.fork(twin) as third:
                    seen.append(await shown(third, "x"))
        return seen

    assert loop.run(use()) == ["1\n"] * 3


def test_forks_of_forks_end_at_a_depth(loop: BackgroundLoop, kernel_pools: Callable[..., KernelPool]) -> None:
    """Each stopped session is one of the `processes` of its forks."""

    pool = kernel_pools(replace(LIMITS, processes=64))

    async def use() -> str:
        async with pool.session() as kernel:
            for number in range(40):
                try:
                    async with pool.fork(kernel) as twin:
                        assert await shown(twin, f"x = {number}") == ""
                except ForkRefusedError as error:
                    assert number > 20
                    assert await shown(kernel, "'well'") == "'well'\n"
                    return str(error)
                await typed(kernel, "y = 1")
        raise AssertionError("there was no end")

    assert "levels deep" in loop.run(use())


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["import threading, time", "t = threading.Thread(target=time.sleep, args=(60,), daemon=True)", "t.start()"],
         "2 threads"),
        (["import subprocess", "p = subprocess.Popen(['sleep', '60'])"], "started processes, of which 1"),
        (["import subprocess, time", "p = subprocess.Popen(['true'])", "time.sleep(0.3)"], "wait for them first"),
        (["import socket", "s = socket.socketpair()"], "holds socket:"),
        (["import os", "p = os.pipe()"], "holds pipe:"),
        (["import select", "e = select.epoll()"], "holds anon_inode:"),
        (["import os", "p = os.pidfd_open(1)"], "anon_inode|pidfd"),
        (["import pty", "p = pty.openpty()"], "terminal"),
        (["import os", "f = open('/tmp/f', 'w')", "os.remove('/tmp/f')"], "the file was deleted"),
        (["import os", "f = open('/tmp/f', 'w')", "os.remove('/tmp/f')", "open('/tmp/f (deleted)', 'w').close()"],
         "another file has that name"),
        (["f = open('/tmp/f', 'w+b')", "f.write(bytes(4096))", "f.flush()", "import mmap",
          "m = mmap.mmap(f.fileno(), 4096)", "f.close()"], "shares memory|descriptor"),
        (["import signal", "signal.alarm(50)"], "timer"),
        (["for n in range(3000): open(f'/tmp/{n}', 'w').close()\n"], "more than 2000 entries"),
        (["import socket", "s = socket.socket(socket.AF_UNIX)", "s.bind('/tmp/s')", "s.close()"],
         "neither a file nor a folder"),
        (["if True:"], "a block open"),
    ],
)  # fmt: skip
def test_what_a_twin_could_not_have_exactly_is_refused(
    loop: BackgroundLoop, pool: KernelPool, lines: Lines, reason: str
) -> None:
    async def use() -> None:
        async with pool.session() as kernel:
            await typed(kernel, *lines)
            assert await kernel.can_fork() is not None
            with pytest.raises(ForkRefusedError, match=reason):
                async with pool.fork(kernel):
                    pass
            await kernel.execute("pass")
            assert await shown(kernel, "import os; os.system('exit 3') >> 8") == "3\n"

    loop.run(use())


def test_files_beyond_a_size_are_not_copied(loop: BackgroundLoop, kernel_pools: Callable[..., KernelPool]) -> None:
    pool = kernel_pools(replace(LIMITS, tmp_mb=32, file_mb=32))

    async def use() -> None:
        async with pool.session() as kernel:
            await typed(kernel, "open('/tmp/large', 'wb').write(bytes(20 << 20))")
            assert "holds 20 MiB" in (await kernel.can_fork() or "")

    loop.run(use())


@pytest.mark.parametrize(
    ("backend", "sandbox", "reason"),
    [
        ("fork", "sandlock", "sessions under sandlock"),
        ("fork", "none", "sessions under none"),
        ("repl_rl", "bwrap", "behind Jupyter's channels"),
    ],
)
def test_backends_without_namespaces_of_their_own_refuse(
    loop: BackgroundLoop,
    pools: Callable[[str, SandboxKind], KernelPool],
    backend: str,
    sandbox: SandboxKind,
    reason: str,
) -> None:
    pool = pools(backend, sandbox)

    async def use() -> None:
        async with pool.session() as kernel:
            with pytest.raises(ForkRefusedError, match=reason):
                async with pool.fork(kernel):
                    pass

    loop.run(use())


def test_neither_while_a_line_runs_nor_with_jupyter_nor_after_the_end(loop: BackgroundLoop, pool: KernelPool) -> None:
    async def use() -> list[str]:
        reasons = []
        async with pool.session() as kernel:
            running = asyncio.create_task(kernel.execute("import time; time.sleep(0.5)"))
            await asyncio.sleep(0.1)
            reasons.append(await kernel.can_fork())
            await running
            await kernel.open_jupyter()
            reasons.append(await kernel.can_fork())
            await kernel.execute("exit()")
            with pytest.raises(KernelDiedError):
                await kernel.can_fork()
        return [reason or "" for reason in reasons]

    running, jupyter = loop.run(use())
    assert "a line is running" in running
    assert "Jupyter" in jupyter


def test_a_fork_waits_for_a_place_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> list[str]:
        seen = []
        async with KernelPool(size=2, limits=LIMITS, sandbox="bwrap") as pool, pool.session() as kernel:
            async with pool.session():

                async def fork() -> None:
                    async with pool.fork(kernel) as twin:
                        seen.append(await shown(twin, "'twin'"))

                waiting = asyncio.create_task(fork())
                await asyncio.sleep(1.2)
                assert not seen
                assert not waiting.done()
            await waiting
            seen.append(str(pool.stats.summary()["forks"]))
        return seen

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(use()) == ["'twin'\n", "1"]
    assert "a fork waits for one of 2 places, of which 2 are taken" in caplog.text


def test_forks_that_wait_take_one_place_after_the_other() -> None:
    """One free place is enough for two that wait: the second has it after the first."""

    async def use() -> list[str]:
        seen = []
        async with KernelPool(size=3, limits=LIMITS, sandbox="bwrap") as pool, AsyncExitStack() as stack:
            kernels = [await stack.enter_async_context(pool.session()) for _ in range(2)]

            async def fork(kernel: PooledKernel) -> None:
                async with pool.fork(kernel) as twin:
                    seen.append(await shown(twin, "'twin'"))

            async with pool.session():
                waiting = [asyncio.create_task(fork(kernel)) for kernel in kernels]
                while len(pool._waiting_forks) < 2:
                    await asyncio.sleep(0.01)
            await asyncio.wait_for(asyncio.gather(*waiting), 120)
        return seen

    assert asyncio.run(use()) == ["'twin'\n"] * 2


def test_a_pool_of_one_refuses(caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        async with KernelPool(size=1, limits=LIMITS, sandbox="bwrap") as pool, pool.session() as kernel:
            with pytest.raises(ForkRefusedError, match="its pool has 1 place; make it larger"):
                async with pool.fork(kernel):
                    pass

    asyncio.run(use())


@pytest.mark.parametrize(
    ("meddling", "found"),
    [
        ("own.be_apart = os.setsid", "capabilities"),
        ("real = own.be_apart; own.be_apart = lambda: real() or os.fork() and None", "further processes"),
        ("own.Belongings.move = lambda self: None", "a working folder|descriptor"),
        ("own.objection_at_fork = lambda *a: None; own._open_descriptors = list; kept = os.pipe()", "descriptor"),
        ("own.objection_at_fork = lambda *a: None; import mmap; f = open('/tmp/f', 'w+b'); f.write(bytes(4096)); "
         "f.flush(); m = mmap.mmap(f.fileno(), 4096); f.close(); own._open_descriptors = list", "memory|descriptor"),
        ("own._open_descriptors = list; kept = open('/usr/bin/env', 'rb')", "descriptor"),
        ("own.os = type('O', (), {'setsid': lambda s: 0, '__getattr__': lambda s, n: getattr(os, n)})()",
         "a process group"),
        ("own.clone = lambda is_last: 1", "did so 0 times|ended as it began"),
        ("own.seccomp_filter.TWIN_FLAGS = own.seccomp_filter.SUCCESSOR_FLAGS", "a namespace"),
        ("own.objection_at_fork = lambda *a: None; import subprocess; p = subprocess.Popen(['sleep', '60'])",
         "further processes"),
    ],
)  # fmt: skip
def test_a_fork_that_kept_something_is_found_and_ended(
    loop: BackgroundLoop, pool: KernelPool, meddling: str, found: str
) -> None:
    """Code that a model typed may have changed how its session forks: the host looks for itself."""

    async def use() -> None:
        async with pool.session() as kernel:
            *_, result = await typed(kernel, OWN_CODE, "import os; own = f.f_globals['repl_fork']", meddling)
            assert result.status is ExecStatus.OK, result
            pid = _pid(kernel)
            before = set(tree(pid))
            with pytest.raises((ForkRefusedError, KernelDiedError), match=found):
                async with pool.fork(kernel):
                    pass
            await _until(lambda: set(tree(pid)) <= before)

    loop.run(use())


def test_a_session_can_not_make_namespaces_by_itself(
    loop: BackgroundLoop, kernel_pools: Callable[..., KernelPool]
) -> None:
    """The call waits for the host, and is refused as soon as the host forks the session; until then time runs out."""
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    call = f"import ctypes; ctypes.CDLL(None).syscall({clone}, 0x78020011, 0, 0, 0, 0)"

    pool = kernel_pools(HASTY)

    async def use() -> tuple[ExecStatus, str]:
        async with pool.session() as kernel:
            [hung] = await typed(kernel, call)
            async with pool.fork(kernel) as twin:
                return hung.status, await shown(twin, "'well'")

    assert loop.run(use()) == (ExecStatus.TIMEOUT, "'well'\n")


PIECES = st.sampled_from(
    [
        "x = {n}", "x = x + {n}", "y = [x] * 3", "y.append({n})", "def f(a):\n    return a + x + {n}\n", "f({n})",
        "g = (i + {n} for i in range(9))", "next(g)", "import math", "math.comb({n} + 9, 3)", "import random",
        "random.seed({n})", "random.random(), random.getrandbits(9)", "h = open('/tmp/h', 'a+')", "h.write('{n}')",
        "h.seek({n}), h.read()", "h.close()", "open('/tmp/h').read()", "import sympy", "s = sympy.symbols('s{n}')",
        "sympy.expand((s + {n}) ** 2), sympy.diff(s ** 3, s)", "1 / ({n} - 3)", "del x", "z = dict(a=x, b={n})", "z",
        "import os", "sorted(os.listdir('/tmp'))", "os.makedirs('/tmp/d{n}', exist_ok=True); os.chdir('/tmp/d{n}')",
        "os.getcwd()", "class C:\n    k = {n}\n", "c = C(); c.k += x; c.k", "print(x, end='{n}')", "_",
        "import numpy as np", "np.random.seed({n})", "np.random.rand(2)", "e = iter(y); next(e)", "next(e)",
    ]
)  # fmt: skip
LINES = st.lists(
    st.builds(lambda piece, n: piece.replace("{n}", str(n)), PIECES, st.integers(0, 6)), min_size=1, max_size=8
)
SEEDED = ["import random, numpy", "random.seed(0)", "numpy.random.seed(0)"]
EXAMPLES = [pytest.param(25), pytest.param(200, marks=pytest.mark.slow)]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_both_go_on_as_fresh_sessions_would(loop: BackgroundLoop, pool: KernelPool, examples: int) -> None:
    def outcomes(results: list[ExecResult]) -> list[tuple[Any, ...]]:
        return [(r.status, r.output, r.error_message, r.fingerprint) for r in results]

    async def fresh(lines: Lines) -> list[tuple[Any, ...]]:
        async with pool.session() as kernel:
            return outcomes(await typed(kernel, *lines))

    async def compare(before: Lines, session: Lines, twin: Lines) -> None:
        async with pool.session() as kernel:
            first = outcomes(await typed(kernel, *before))
            async with pool.fork(kernel) as other:
                ones, others = await asyncio.gather(typed(kernel, *session), typed(other, *twin))
        assert first + outcomes(ones) == await fresh(before + session)
        assert first + outcomes(others) == await fresh(before + twin)

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(LINES, LINES, LINES)
    def check(before: Lines, session: Lines, twin: Lines) -> None:
        loop.run(compare(SEEDED + before, session, twin))

    check()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_forks_leave_nothing_behind() -> None:
    _fork_often(10_000 if SOAK else 2_000)


def test_forks_leave_nothing_behind() -> None:
    _fork_often(40)


def _fork_often(count: int) -> None:
    async def use() -> None:
        async with KernelPool(size=6, limits=LIMITS, sandbox="bwrap") as pool:
            async with pool.session():
                server = pool._backend._server.pid  # type: ignore[attr-defined]

            async def family(number: int) -> None:
                async with pool.session() as kernel:
                    await typed(kernel, f"x = {number}", "f = open('/tmp/f', 'w')")
                    async with pool.fork(kernel) as twin:
                        assert await shown(twin if number % 2 else kernel, "x") == f"{number}\n"
                        if number % 5 == 0:
                            async with pool.fork(twin) as third:
                                await typed(third, "import os; os._exit(0)")

            def used() -> tuple[int, int, int]:
                mounts = len(Path("/proc/self/mountinfo").read_text().splitlines())
                return len(list(tree(server))), open_descriptors(), mounts

            def is_settled() -> bool:
                return len(pool._ready) == pool.size and not pool.stats.starting and used()[0] <= pool.size + 10

            await asyncio.gather(family(0), family(1))
            await _until(is_settled)
            before = used()
            for start in range(0, count, 2):
                await asyncio.gather(family(start), family(start + 1))
            await _until(lambda: is_settled() and all(now <= then for now, then in zip(used(), before, strict=True)))
            assert pool.stats.forks >= count

    asyncio.run(use())


async def _until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def _pid(kernel: PooledKernel) -> int:
    inner = kernel._kernel
    assert isinstance(inner, ForkedKernel)
    return inner.pid


def test_several_twins_at_once_are_strangers(loop: BackgroundLoop, pool: KernelPool) -> None:
    async def use() -> list[list[str]]:
        async with pool.session() as kernel, AsyncExitStack() as stack:
            await typed(kernel, "x = [1]", "import random; random.seed(5)", "open('/tmp/f', 'w').write('a')")
            stacks = [await stack.enter_async_context(AsyncExitStack()) for _ in range(2)]
            twins = await pool.twins(kernel, stacks)
            everyone = [kernel, *twins]
            for number, each in enumerate(everyone):
                await typed(each, f"x.append({number})", f"open('/tmp/f', 'a').write('{number}')")
            await stacks[0].aclose()
            assert not twins[0].is_alive
            left = [kernel, *twins[1:]]
            return [
                [await shown(each, line) for line in ("x", "open('/tmp/f').read()", "random.random()")] for each in left
            ]

    seen = loop.run(use())
    assert [values[:2] for values in seen] == [[f"[1, {n}]\n", f"'a{n}'\n"] for n in (0, 2)]
    assert len({values[2] for values in seen}) == 1


def test_without_waiting_there_are_as_many_twins_as_places(loop: BackgroundLoop) -> None:
    async def use() -> tuple[int, str]:
        async with KernelPool(3, LIMITS, sandbox="bwrap") as pool, pool.session() as kernel, AsyncExitStack() as stack:
            twins = await pool.twins(kernel, [stack] * 5, wait=False)
            with pytest.raises(ForkRefusedError) as refused:
                await pool.twins(kernel, [stack], wait=False)
            return len(twins), str(refused.value)

    assert loop.run(use()) == (2, "no place in the pool is free for a fork of the session")
