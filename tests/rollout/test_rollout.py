"""The line loop with a scripted policy and the interpreter's real core behind the kernel seam."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_fakes import FakeKernel, FakeKernelPool
from scripted import LOGPROB, ScriptedEngine

from repl_rl.config import BudgetConfig, DialectConfig, SamplingConfig
from repl_rl.dialect import PythonDialect
from repl_rl.engine import SampledLine, Vocabulary, load_vocabulary
from repl_rl.errors import ConfigError, EngineError, KernelDiedError, KernelError
from repl_rl.kernel import ExecResult, KernelPool, KernelSession, Limits
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.scheduler import Cut
from repl_rl.rollout.service import AttachedKernels
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.rollout.state import Transcript
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory

CLIENT = """
import sys
from jupyter_client import BlockingKernelClient

client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels()
client.wait_for_ready(timeout=600)
client.execute_interactive(sys.argv[2], timeout=600)
client.stop_channels()
"""
TASK = Task("t1", "What is 6 * 7?", "42")


def roll(
    vocabulary: Vocabulary,
    lines: Sequence[str],
    budget: BudgetConfig | None = None,
    context_tokens: int = 1024,
    kernels: object | None = None,
    dialect: DialectConfig | None = None,
) -> tuple[Trajectory, ScriptedEngine]:
    engine = ScriptedEngine(vocabulary, lambda prompt: lines)

    async def go() -> Trajectory:
        rollout = Rollout(
            engine,
            kernels or FakeKernelPool(),
            RolloutSetup(
                vocabulary, PythonDialect(dialect), context_tokens=context_tokens, budget=budget or BudgetConfig()
            ),
        )
        return (await rollout.many([TASK]))[0]

    return asyncio.run(go()), engine


async def test_a_stock_client_looks_into_a_rollout_and_changes_it_and_stays_after_it(vocabulary: Vocabulary) -> None:
    files: list[Path] = []
    seen: list[str] = []

    def ask(code: str) -> str:
        command = [sys.executable, "-c", CLIENT, str(files[0]), code]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout

    class Peeking(ScriptedEngine):
        async def sample_line(self, *arguments: Any, **named: Any) -> SampledLine:
            if len(self.given) == 1:
                seen.append(await asyncio.to_thread(ask, "print('in the middle:', x); x = 20"))
            return await super().sample_line(*arguments, **named)

    async with KernelPool(1, Limits(line_s=60), sandbox="bwrap") as pool:
        kernels = AttachedKernels(pool, files.append, lambda: seen.append(ask("print('after:', y)")))
        rollout = Rollout(
            Peeking(vocabulary, lambda prompt: [" x = 1\n", " y = x + 1\n", " y\n", " submit_final_answer(y)\n"]),
            kernels,
            RolloutSetup(vocabulary, PythonDialect(None), context_tokens=1024),
        )
        trajectory = (await rollout.many([TASK]))[0]
    assert seen == ["in the middle: 1\n", "after: 21\n"]
    assert trajectory.answer == ("21",)
    assert [line.output for line in trajectory.lines][2].startswith("21\n")
    assert not files[0].exists()


def assert_three_views_agree(vocabulary: Vocabulary, trajectory: Trajectory, engine: ScriptedEngine) -> None:
    """The ids, the lines, and what the engine was given are one thing."""
    lines = trajectory.lines
    starts = [trajectory.prompt_ids + trajectory.completion_ids[: line.start] for line in lines]
    assert engine.given == [list(ids) for ids in starts]
    for line, following in pairwise(lines):
        between = trajectory.completion_ids[line.end : following.start]
        assert tuple(between) == vocabulary.encode_output(line.output)
    assert lines[-1].end == len(trajectory.completion_ids)
    expected = [LOGPROB if was else 0.0 for was in trajectory.sampled_mask]
    assert list(trajectory.logprobs) == expected


OUTSIDE = "  File \"<stdin>\", line 1\nSyntaxError: 'return' outside function\n>>>"
HEADER = 'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'
UNKNOWN = f"{HEADER}NameError: name 'y' is not defined\n>>>"


@pytest.mark.parametrize(
    ("typed", "lines", "answer", "stop"),
    [
        (
            [" # Multiply.\n", " r = 6 * 7\n", " r\n", " submit_final_answer(r)\n"],
            [("comment", ">>>"), ("statement", ">>>"), ("expression", "42\n>>>"), ("answer", "")],
            ("42",),
            "answer",
        ),
        (
            [" for i in range(2):\n", "     print(i)\n", "\n", " submit_final_answer(i)\n"],
            [("open", "..."), ("open", "..."), ("statement", "0\n1\n>>>"), ("answer", "")],
            ("1",),
            "answer",
        ),
        (
            [" for i in range(2):\n", "     print(i)\n\n", " submit_final_answer(i)\n"],
            [("open", "..."), ("statement", "0\n1\n>>>"), ("answer", "")],
            ("1",),
            "answer",
        ),
        (
            [" x = 6\n", " y\n", " return 1\n", " submit_final_answer(x * 7, 'a')\n"],
            [("statement", ">>>"), ("exception", UNKNOWN), ("syntax_error", OUTSIDE), ("answer", "")],
            ("42", "'a'"),
            "answer",
        ),
        ([" x = 40\n", " x + 2"], [("statement", ">>>"), ("expression", "42\n")], None, "eos"),
        ([" submit_final_answer(42)"], [("answer", "")], ("42",), "answer"),
        ([" x = 1\n", " raise SystemExit\n", " x\n"], [("statement", ">>>"), ("killed", "")], None, "killed"),
    ],
)
def test_sessions_read_like_a_terminal(
    vocabulary: Vocabulary,
    typed: list[str],
    lines: list[tuple[str, str]],
    answer: tuple[str, ...] | None,
    stop: str,
) -> None:
    trajectory, engine = roll(vocabulary, typed)
    assert [(line.kind, line.output) for line in trajectory.lines] == lines
    assert (trajectory.answer, trajectory.stop_reason) == (answer, stop)
    whole = vocabulary.decode(trajectory.prompt_ids + trajectory.completion_ids)
    between = "".join(line.text + line.output for line in trajectory.lines[:-1])
    assert f">>> # What is 6 * 7?\n>>>{between}{typed[len(lines) - 1]}" in whole
    assert_three_views_agree(vocabulary, trajectory, engine)


@pytest.mark.parametrize(
    ("budget", "context_tokens", "reason"),
    [
        (BudgetConfig(lines=2), 1024, StopReason.MAX_LINES),
        (BudgetConfig(line_tokens=3), 1024, StopReason.LINE_TOKENS),
        (BudgetConfig(tokens=40), 1024, StopReason.MAX_TOKENS),
        (BudgetConfig(lines=1000, tokens=10_000), 100, StopReason.CONTEXT),
        (BudgetConfig(seconds=1e-9), 1024, StopReason.SECONDS),
    ],
)
def test_every_budget_has_its_reason(
    vocabulary: Vocabulary, budget: BudgetConfig, context_tokens: int, reason: StopReason
) -> None:
    trajectory, engine = roll(vocabulary, [f" print('line number {n}')\n" for n in range(100)], budget, context_tokens)
    assert trajectory.stop_reason is reason
    assert len(trajectory.prompt_ids) + len(trajectory.completion_ids) <= context_tokens
    assert len(trajectory.completion_ids) <= budget.tokens
    if reason in (StopReason.LINE_TOKENS, StopReason.MAX_LINES, StopReason.SECONDS):
        assert (trajectory.lines[-1].kind is LineKind.OVERLONG) == (reason is StopReason.LINE_TOKENS)
    assert_three_views_agree(vocabulary, trajectory, engine)


def test_an_output_that_does_not_fit_ends_the_session_and_is_kept(vocabulary: Vocabulary) -> None:
    trajectory, engine = roll(
        vocabulary, [" print('9' * 500)\n", " 1\n"], BudgetConfig(tokens=1000), context_tokens=200
    )
    assert trajectory.stop_reason is StopReason.CONTEXT
    assert trajectory.lines[0].output == "9" * 500 + "\n>>>"
    assert_three_views_agree(vocabulary, trajectory, engine)


def test_a_long_output_is_cut_in_the_middle_before_it_is_encoded(vocabulary: Vocabulary) -> None:
    trajectory, engine = roll(
        vocabulary, [" print('9' * 5000)\n", " submit_final_answer(1)\n"], dialect=DialectConfig(max_output_chars=100)
    )
    output = trajectory.lines[0].output.removesuffix(">>>")
    assert len(output) <= 100
    assert "characters left out" in output
    assert_three_views_agree(vocabulary, trajectory, engine)


def test_chat_models_get_the_problem_by_their_template_and_the_banner_as_prefill() -> None:
    vocabulary = load_vocabulary(str(NANO_PATH))
    vocabulary.tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    engine = ScriptedEngine(vocabulary, lambda prompt: [" submit_final_answer(6 * 7)\n"])
    rollout = Rollout(
        engine, FakeKernelPool(), RolloutSetup(vocabulary, PythonDialect(), context_tokens=1024, chat=True)
    )
    [trajectory] = asyncio.run(rollout.many([TASK]))
    assert trajectory.prompt.startswith("[system] You think inside a live Python interpreter.")
    assert "\n[user] What is 6 * 7?\n[assistant] Python 3.11" in trajectory.prompt
    assert trajectory.prompt.endswith("for more information.\n>>>")
    assert "# What is 6 * 7?" not in trajectory.prompt
    assert vocabulary.decode(trajectory.prompt_ids) == trajectory.prompt
    assert trajectory.answer == ("42",)
    assert_three_views_agree(vocabulary, trajectory, engine)


def test_a_prompt_that_fills_the_context_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(ConfigError, match=r"prompt of task 't1' has \d+ tokens and engine.context_tokens is 8"):
        roll(vocabulary, [], context_tokens=8)


class FailingKernels:
    """Real sessions, of which the first few break: before their first cell, or after `cells` of them."""

    def __init__(self, broken: int, cells: int = 0) -> None:
        self._pool = FakeKernelPool()
        self._broken = broken
        self._cells = cells
        self.opened = 0

    @asynccontextmanager
    async def session(self) -> AsyncIterator[KernelSession]:
        self.opened += 1
        async with self._pool.session() as kernel:
            yield _Breaking(kernel, self._cells) if self.opened <= self._broken else kernel


class _Breaking:
    def __init__(self, kernel: KernelSession, cells: int) -> None:
        self._kernel = kernel
        self._left = cells

    async def execute(self, source: str) -> ExecResult:
        if self._left == 0:
            raise KernelDiedError("the connection broke")
        self._left -= 1
        return await self._kernel.execute(source)


class _Drawing:
    """Each cell draws 3 MiB."""

    def __init__(self, kernel: KernelSession) -> None:
        self._kernel = kernel

    @asynccontextmanager
    async def session(self) -> AsyncIterator[_Drawing]:
        yield self

    async def execute(self, source: str) -> ExecResult:
        return replace(await self._kernel.execute(source), images=(b"\x89PNG" + b"x" * (3 << 20),))


def test_what_lines_draw_is_kept_up_to_8_mib_and_not_shown_to_the_policy(vocabulary: Vocabulary) -> None:
    lines = [" x = 42\n", " x\n", " x\n", " submit_final_answer(x)\n"]
    trajectory, engine = roll(vocabulary, lines, kernels=_Drawing(FakeKernel()))
    assert [len(line.images) for line in trajectory.lines] == [1, 1, 0, 0]
    assert [line.output for line in trajectory.lines] == [">>>", "42\n>>>", "42\n>>>", ""]
    assert_three_views_agree(vocabulary, trajectory, engine)


def test_a_kernel_that_breaks_before_its_first_cell_is_replaced(vocabulary: Vocabulary) -> None:
    kernels = FailingKernels(broken=2)
    trajectory, engine = roll(vocabulary, [" x = 42\n", " submit_final_answer(x)\n"], kernels=kernels)
    assert (kernels.opened, trajectory.answer, trajectory.error) == (3, ("42",), None)
    assert_three_views_agree(vocabulary, trajectory, engine)


async def test_a_trajectory_whose_state_is_lost_is_aborted_and_the_others_go_on(vocabulary: Vocabulary) -> None:
    engine = ScriptedEngine(vocabulary, lambda prompt: [" x = 42\n", " submit_final_answer(x)\n"])
    kernels = FailingKernels(broken=1, cells=1)
    tasks = [TASK, replace(TASK, id="t2", question="What is 7 * 6?")]
    rollout = Rollout(engine, kernels, RolloutSetup(vocabulary, PythonDialect(), context_tokens=512))
    trajectories = await rollout.many(tasks)
    assert sorted(t.stop_reason for t in trajectories) == [StopReason.ABORTED, StopReason.ANSWER]
    aborted = next(t for t in trajectories if t.stop_reason is StopReason.ABORTED)
    assert aborted.is_void
    assert aborted.error == "KernelDiedError: the connection broke"
    assert [line.text for line in aborted.lines] == [" x = 42\n", " submit_final_answer(x)\n"]


def test_a_failing_engine_ends_the_batch_with_its_own_error(vocabulary: Vocabulary) -> None:
    class Broken(ScriptedEngine):
        async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
            raise EngineError("the weights are broken")

    rollout = Rollout(
        Broken(vocabulary, lambda prompt: []),
        FakeKernelPool(),
        RolloutSetup(vocabulary, PythonDialect(), context_tokens=512),
    )
    with pytest.raises(EngineError, match="the weights are broken"):
        asyncio.run(rollout.many([TASK, replace(TASK, id="t2")]))


async def test_a_question_is_encoded_once_for_its_group_when_its_first_trajectory_begins(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Stalling(vocabulary, [""] * 6)
    log: list[str] = []
    encode = Vocabulary.encode_prompt
    monkeypatch.setattr(
        Vocabulary, "encode_prompt", lambda self, text: log.append(text[-13:].strip()) or encode(self, text)
    )
    tasks = [replace(TASK, id=f"t{n}", question=f"Session {n // 3}") for n in range(6)]
    rollout = Rollout(both, both, RolloutSetup(vocabulary, PythonDialect(), context_tokens=512, at_once=3))
    async for index, _ in rollout.as_completed(RolloutBatch(tasks)):
        log.append(f"end {index}")
    frame, *rest = log
    assert frame == "ormation.\n>>>", "the prompt around an empty question tells how much room there is"
    assert rest[:2] == ["Session 0\n>>>", "end 0"]
    assert rest.count("Session 0\n>>>") == rest.count("Session 1\n>>>") == 1
    assert len(rest) == 2 + 6


def test_a_prompt_that_is_too_long_is_refused_before_anything_starts(vocabulary: Vocabulary) -> None:
    both = Stalling(vocabulary, [""] * 3)
    tasks = [TASK, replace(TASK, id="long", question="z" * 300), TASK]
    rollout = Rollout(both, both, RolloutSetup(vocabulary, PythonDialect(), context_tokens=256))
    with pytest.raises(ConfigError, match=r"prompt of task 'long' has \d+ tokens and engine.context_tokens is 256"):
        asyncio.run(rollout.many(tasks))
    assert (both.slots, both.kernels) == (0, 0)


class Telling:
    """Real sessions that say when a cell begins which would take ten minutes."""

    def __init__(self, pool: KernelPool) -> None:
        self._pool = pool
        self.sleeping = asyncio.Event()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        async with self._pool.session() as kernel:

            async def execute(source: str) -> ExecResult:
                if "sleep(600)" in source:
                    self.sleeping.set()
                return await kernel.execute(source)

            yield SimpleNamespace(execute=execute)


@pytest.mark.more
async def test_a_cut_frees_the_real_kernel_of_a_cell_that_runs(vocabulary: Vocabulary) -> None:
    kernels: list[Telling] = []

    def typed(prompt: str) -> list[str]:
        sleep = " time.sleep(600)\n" if "slow" in prompt else " time\n"
        return [" import time\n", sleep, " submit_final_answer(1)\n"]

    class Patient(ScriptedEngine):
        async def sample_line(self, ids: Sequence[int], *arguments: Any) -> SampledLine:
            if "fast" in vocabulary.decode(ids):
                await kernels[0].sleeping.wait()
            return await super().sample_line(ids, *arguments)

    async with KernelPool(3, Limits(line_s=900.0), warm=0) as pool:
        kernels.append(Telling(pool))
        rollout = Rollout(
            Patient(vocabulary, typed), kernels[0], RolloutSetup(vocabulary, PythonDialect(), context_tokens=512)
        )
        tasks = [replace(TASK, id=name, question=name) for name in ("fast 1", "slow", "fast 2")]
        (first, cut, second), alive = await rollout.many(tasks, cut=Cut(share=0.6, group_size=3)), pool.stats.alive
    assert (first.stop_reason, cut.stop_reason, second.stop_reason) == ("answer", "unfinished", "answer")
    assert [line.kind for line in cut.lines] == [LineKind.STATEMENT, LineKind.KILLED]
    assert alive == 0


@pytest.mark.more
def test_a_line_carries_the_state_that_the_real_kernel_had_after_it(vocabulary: Vocabulary) -> None:
    typed = [" x = 1\n", " x\n", " # a thought\n", " x = 2\n", " x = 1\n", " submit_final_answer(x)\n"]

    async def go() -> Trajectory:
        async with KernelPool(1, Limits(line_s=60), warm=0) as pool:
            rollout = Rollout(
                ScriptedEngine(vocabulary, lambda prompt: typed),
                pool,
                RolloutSetup(vocabulary, PythonDialect(), context_tokens=512),
            )
            return (await rollout.many([TASK]))[0]

    one, shown, thought, two, one_again, _ = (line.fingerprint for line in asyncio.run(go()).lines)
    assert one is not None
    assert two is not None
    assert one == one_again != two
    assert thought is None
    assert shown != two


class Stalling:
    """Engine and kernels in one: trajectory n waits for ever for what `stalls[n]` names, or for nothing."""

    def __init__(self, vocabulary: Vocabulary, stalls: Sequence[str]) -> None:
        self._scripted = ScriptedEngine(
            vocabulary, lambda prompt: [" x = 42\n", " y = x\n", " y\n", " submit_final_answer(y)\n"]
        )
        self._pool = FakeKernelPool()
        self._stalls = stalls
        self.version = 0
        self.slots = self.kernels = 0
        self.held = 0

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[Any]:
        number, self.slots = self.slots, self.slots + 1
        if self._stalls[number] == "slot":
            await asyncio.Event().wait()
        self.held += 1
        try:
            yield _StallingSlot(self._scripted, self._stalls[number])
        finally:
            self.held -= 1

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        number, self.kernels = self.kernels, self.kernels + 1
        if self._stalls[number] == "kernel":
            await asyncio.Event().wait()
        self.held += 1
        try:
            async with self._pool.session() as kernel:
                yield _StallingKernel(kernel, self._stalls[number])
        finally:
            self.held -= 1


class _StallingSlot:
    def __init__(self, scripted: ScriptedEngine, stall: str) -> None:
        self._scripted = scripted
        self._stall = stall
        self._lines = 0

    async def sample_line(self, *arguments: Any) -> SampledLine:
        self._lines += 1
        if self._stall == "sampling" and self._lines == 2:
            await asyncio.Event().wait()
        return await self._scripted.sample_line(*arguments)


class _StallingKernel:
    def __init__(self, kernel: KernelSession, stall: str) -> None:
        self._kernel = kernel
        self._stall = stall
        self._cells = 0

    async def execute(self, source: str) -> ExecResult:
        self._cells += 1
        if self._stall == "running" and self._cells == 2:
            await asyncio.Event().wait()
        return await self._kernel.execute(source)


async def test_a_cut_leaves_each_trajectory_as_far_as_it_has_come(vocabulary: Vocabulary) -> None:
    stalls = ["", "", "sampling", "running", "kernel", "slot"]
    both = Stalling(vocabulary, stalls)
    rollout = Rollout(both, both, RolloutSetup(vocabulary, PythonDialect(), context_tokens=512))
    tasks = [replace(TASK, id=f"t{number}", question=f"Session {number}") for number in range(len(stalls))]
    trajectories = await rollout.many(tasks, cut=Cut(share=0.3, group_size=6))
    assert both.held == 0
    assert [t.stop_reason for t in trajectories] == [StopReason.ANSWER] * 2 + [StopReason.UNFINISHED] * 4
    assert [t.is_void for t in trajectories] == [False] * 2 + [True] * 4
    sampling, running, *waiting = ([(line.text, line.kind) for line in t.lines] for t in trajectories[2:])
    assert sampling == [(" x = 42\n", LineKind.STATEMENT)]
    assert running == [(" x = 42\n", LineKind.STATEMENT), (" y = x\n", LineKind.KILLED)]
    assert waiting == [[], []]
    assert [t.lines[-1].end == len(t.completion_ids) for t in trajectories[:4]] == [True] * 4


async def test_trajectories_are_handed_on_as_they_end(vocabulary: Vocabulary) -> None:
    both = Stalling(vocabulary, [""] * 5)
    tasks = [replace(TASK, id=f"t{number}", question=f"Session {number}") for number in range(5)]
    rollout = Rollout(both, both, RolloutSetup(vocabulary, PythonDialect(), context_tokens=512, at_once=2))
    ended = [(index, each.task_id) async for index, each in rollout.as_completed(RolloutBatch(tasks))]
    assert sorted(ended) == [(0, "t0"), (1, "t1"), (2, "t2"), (3, "t3"), (4, "t4")]


class FakeTime:
    """A clock that only moves when somebody works."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class SlowSource:
    """Slots, lines, kernels, cells and the end of a session take their time on a made-up clock, in seconds."""

    def __init__(self, vocabulary: Vocabulary, lines: list[str], **times_s: float) -> None:
        self.clock = FakeTime()
        self._scripted = ScriptedEngine(vocabulary, lambda prompt: lines)
        self._pool = FakeKernelPool()
        self._times_s = times_s
        self.version = 0

    def work(self, on: str) -> None:
        self.clock.now_s += self._times_s[on]

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[Any]:
        self.work("slot")
        yield self

    async def sample_line(self, *arguments: Any) -> SampledLine:
        self.work("line")
        return await self._scripted.sample_line(*arguments)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        self.work("kernel")
        async with self._pool.session() as self._kernel:
            yield self
        self.work("end")

    async def execute(self, source: str) -> ExecResult:
        self.work("cell")
        return await self._kernel.execute(source)


def roll_slowly(
    vocabulary: Vocabulary, slow: SlowSource, monkeypatch: pytest.MonkeyPatch, budget: BudgetConfig
) -> list[Trajectory]:
    """Two trajectories, one after the other."""
    monkeypatch.setattr("repl_rl.rollout.state.time", slow.clock)
    monkeypatch.setattr("repl_rl.rollout.loop.time", slow.clock)

    async def go() -> list[Trajectory]:
        rollout = Rollout(
            slow, slow, RolloutSetup(vocabulary, PythonDialect(), context_tokens=512, budget=budget, at_once=1)
        )
        return await rollout.many([TASK, replace(TASK, id="t2", question="What is 7 * 6?")])

    return asyncio.run(go())


def test_the_time_of_a_trajectory_is_split(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [" # Think.\n", " x = 42\n", " submit_final_answer(x)\n"]
    slow = SlowSource(vocabulary, lines, slot=1.0, line=4.0, kernel=2.0, cell=0.5, end=16.0)
    append_output = Transcript.append_output

    def work_and_append(*arguments: Any) -> Any:
        slow.clock.now_s += 0.25
        return append_output(*arguments)

    monkeypatch.setattr(Transcript, "append_output", work_and_append)
    first, second = roll_slowly(vocabulary, slow, monkeypatch, BudgetConfig())
    assert (first.engine_s, first.kernel_s, first.queue_s, first.own_s) == (12.0, 1.0, 3.0, 0.5)
    assert first.duration_s == 16.5
    assert (second.engine_s, second.kernel_s, second.queue_s, second.own_s) == (12.0, 1.0, 16.5 + 16.0 + 3.0, 0.5)


def test_the_budget_of_seconds_begins_where_slot_and_kernel_are_there(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowSource(vocabulary, [f" {n}\n" for n in range(9)], slot=60.0, line=4.0, kernel=60.0, cell=1.0, end=60.0)
    trajectories = roll_slowly(vocabulary, slow, monkeypatch, BudgetConfig(seconds=14.0))
    assert [len(t.lines) for t in trajectories] == [3, 3]
    assert {t.stop_reason for t in trajectories} == {StopReason.SECONDS}


def test_no_kernel_at_all_raises_instead_of_training_on_nothing(vocabulary: Vocabulary) -> None:
    with pytest.raises(KernelError, match="not one of 1 trajectories could run"):
        roll(vocabulary, [" x = 1\n"], kernels=FailingKernels(broken=100))
