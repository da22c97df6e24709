"""What code in a kernel can use up, and what becomes of it and of the kernel then; `attacks` tries many more ways."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kernel.conftest import HASTY, Typed, in_pool

from repl_rl.errors import ConfigError, KernelStartError
from repl_rl.kernel import ExecStatus, HostCall, HostReply, KernelPool, Limits, LineLimit
from repl_rl.kernel.results import Kernel


@in_pool(limits=replace(HASTY, grace_s=60.0))
def test_an_endless_loop_is_interrupted_and_the_state_survives(typed: Typed) -> None:
    handling = "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    'handled'\n"
    _, stopped, handled, after = typed("x = 5; import time", "print('begun')\nwhile True: pass\n", handling, "x")
    assert (stopped.status, stopped.error_name, stopped.state_lost) == (ExecStatus.TIMEOUT, "KeyboardInterrupt", False)
    assert stopped.output.startswith("begun\nTraceback (most recent call last):\n")
    assert stopped.output.endswith('  File "<stdin>", line 2, in <module>\nKeyboardInterrupt\n')
    assert stopped.duration_s >= HASTY.line_s
    assert (handled.status, handled.error_name, handled.output) == (ExecStatus.TIMEOUT, None, "'handled'\n")
    assert (handled.limit, handled.duration_s >= HASTY.wall_s) == (LineLimit.LINE_WALL_S, True)
    assert after.output == "5\n"


INTERRUPTS = """\
class Interrupts:
    screen = sys.stdout
    def flush(self):
        sys.stdout = self.screen
        raise KeyboardInterrupt
"""


def test_an_interrupt_as_a_line_ends_costs_neither_its_text_nor_its_answer(typed: Typed) -> None:
    cell = "print('shown'); submit_final_answer(42); sys.stdout = Interrupts()"
    _, _, ended, after = typed("import sys", INTERRUPTS, cell, "6 * 7")
    assert (ended.status, ended.error_name, ended.answer) == (ExecStatus.ERROR, "KeyboardInterrupt", ("42",))
    assert (ended.output, after.output) == ("shown\nKeyboardInterrupt\n", "42\n")


INTERRUPTED = yaml.safe_load(Path(__file__).with_name("interrupted.yaml").read_text())
ENDS_ITSELF = INTERRUPTED.pop("ends itself")
KEPT = "import os, sys, time, itertools, signal, subprocess; kept = [1]"


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=cell, marks=[pytest.mark.more] if cell != INTERRUPTED["waits for a process"][0] else [])
        for cells in INTERRUPTED.values()
        for cell in cells
    ],
)
def test_a_line_that_is_slow_to_listen_costs_no_state(cell: str, typed_in_haste: Typed) -> None:
    _, _, late, after = typed_in_haste(KEPT, "kept += [2]; len(kept)", cell, "kept, sum(kept)")
    assert (late.status, late.state_lost) == (ExecStatus.TIMEOUT, False)
    assert "([1, 2], 3)\n" in after.output, "beside what a child may print as it is interrupted"


@pytest.mark.more
def test_after_an_endless_line_the_state_is_known(typed_in_haste: Typed) -> None:
    before, late = typed_in_haste("x = 1", "sum(range(10**12))")
    assert (late.status, late.error_message) == (ExecStatus.TIMEOUT, "KeyboardInterrupt")
    assert late.fingerprint == before.fingerprint is not None


@pytest.mark.more
@in_pool(limits=HASTY)
async def test_what_could_not_be_repeated_is_lost(pool: KernelPool) -> None:
    """Of an endless loop in C, where the lines before it do not do the same again, or called the host."""

    async def answers(call: HostCall) -> HostReply:
        return HostReply(value=1)

    for cells in (("import random; x = random.random()",), ("import time", "while True: pass\n"), ("asked()",)):
        async with pool.session() as kernel:
            await kernel.prepare("import repl_tools; repl_tools.host_proxy('asked', '()', 'Ask.')")
            for cell in cells:
                await kernel.execute(cell, answers)
            lost = await kernel.execute("sum(range(10**12))")
            assert (lost.status, kernel.is_alive) == (ExecStatus.KILLED, False)


@pytest.mark.parametrize(
    "cell",
    [ENDS_ITSELF[0], *(pytest.param(cell, marks=pytest.mark.more) for cell in ENDS_ITSELF[1:])],
    ids=ENDS_ITSELF,
)
@in_pool(limits=replace(HASTY, grace_s=60.0))
async def test_a_session_that_ends_itself_is_lost_though_its_line_was_late(cell: str, pool: KernelPool) -> None:
    async with pool.session() as kernel:
        await kernel.execute(KEPT)
        lost = await kernel.execute(cell)
        assert (lost.status, lost.limit, kernel.is_alive) == (ExecStatus.KILLED, None, False)


@pytest.mark.more
async def test_a_session_is_not_restored_for_longer_than_a_line_may_take(tmp_path: Path) -> None:
    """Each of its lines takes less than that when it runs again, and all of them together more."""
    (tmp_path / "mine.toml").write_text("mounts = {speed = 'speed'}")
    (tmp_path / "speed").write_text("fast")
    limits = Limits(line_s=2.0, grace_s=1.0)
    async with KernelPool(1, limits, profile=str(tmp_path / "mine.toml")) as pool, pool.session() as kernel:
        for _ in range(4):
            shown = await kernel.execute("import time; time.sleep(1.2 * (open('speed').read() == 'slow'))")
            assert shown.status is ExecStatus.OK, shown
        (tmp_path / "speed").write_text("slow")
        lost = await kernel.execute("sum(range(10**12))")
        assert (lost.status, lost.limit is None, kernel.is_alive) == (ExecStatus.KILLED, False, False)


@pytest.mark.more
async def test_without_a_fresh_kernel_a_session_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> Kernel:
        raise KernelStartError("no room")

    async with KernelPool(1, replace(HASTY, line_s=0.5, grace_s=0.2), warm=0) as pool, pool.session() as kernel:
        monkeypatch.setattr(pool.backend, "start", fail)
        lost = await kernel.execute("sum(range(10**12))")
        assert (lost.status, kernel.is_alive) == (ExecStatus.KILLED, False)


@pytest.mark.slow
@in_pool(limits=Limits(line_s=3.0, grace_s=30.0))
async def test_time_in_which_the_whole_machine_stands_still_is_given_back(pool: KernelPool) -> None:
    async with pool.session() as kernel:

        def pause() -> None:
            os.kill(kernel.kernel.pid, signal.SIGSTOP)
            time.sleep(7)
            os.kill(kernel.kernel.pid, signal.SIGCONT)

        asyncio.get_running_loop().call_later(0.2, pause)
        awake = await kernel.execute("import time\nfor _ in range(10): time.sleep(0.1)\n")
        endless = await kernel.execute("while True: pass\n")
    assert (awake.status, endless.status) == (ExecStatus.OK, ExecStatus.TIMEOUT)
    assert awake.duration_s >= 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("line_s", value) for value in (0, -1, float("nan"), float("inf"))),
        *((name, 0) for name in ("grace_s", "memory_mb", "cpu_s", "processes", "output_bytes")),
        *((name, 512.0) for name in ("memory_mb", "cpu_s", "tmp_mb", "output_bytes")),
        *(("line_s", value) for value in ("5", True)),
    ],
)
def test_a_limit_that_no_kernel_can_live_with_is_refused(name: str, value: object) -> None:
    wanted = "finite" if name.endswith("_s") and name != "cpu_s" else "whole"
    with pytest.raises(ConfigError, match=f"kernel limit {name} is {value!r}; give it a {wanted} number from"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_a_line_may_take_five_times_its_processor_time() -> None:
    assert (Limits(line_s=2.0).wall_s, Limits(line_s=2.0, line_wall_s=3.0).wall_s) == (10.0, 3.0)
    with pytest.raises(ConfigError, match=r"line_wall_s is 1.5, and line_s 2.0: .*; give at least"):
        Limits(line_s=2.0, line_wall_s=1.5)


def test_an_unknown_limit_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="'memory' is not a kernel limit; did you mean 'memory_mb'"):
        Limits.from_mapping({"memory": 5})


@pytest.mark.parametrize("memory_mb", [0.0, float("inf"), float("nan")])
def test_a_budget_that_no_pool_can_keep_is_refused(memory_mb: float) -> None:
    with pytest.raises(ConfigError, match=f"memory_mb of a kernel pool is {memory_mb!r}; give it a finite number"):
        KernelPool(memory_mb=memory_mb)


def test_a_pool_without_kernels_is_refused() -> None:
    with pytest.raises(ConfigError, match="size 0"):
        KernelPool(size=0)
