"""The line loop with a scripted policy and the interpreter's real core behind the kernel seam."""

import asyncio
import copy
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from exactness import RecordingEngine, assert_exact
from scripted import Execute, HookedKernels, ScriptedEngine, failing_kernels, rollout_of

from repl_rl.dialect import Cell, CellRun
from repl_rl.engine import Vocabulary
from repl_rl.errors import ConfigError, KernelError
from repl_rl.kernel import ExecResult, KernelPool, Limits
from repl_rl.rollout.batch import RolloutBatch
from repl_rl.rollout.execute import TurnResult
from repl_rl.rollout.guests import Repeats
from repl_rl.rollout.service import AttachedKernels
from repl_rl.rollout.state import Transcript
from repl_rl.trajectory import LineKind, StopReason, Task, ToolCall, Trajectory

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
TYPED = [" x = 42\n", " submit_final_answer(x)\n"]
SESSIONS, REPEATING = (
    yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    for name in ("sessions.yaml", "repeating.yaml")
)
Roll = Callable[..., Trajectory]


def tasks_of(*questions: str) -> list[Task]:
    return [replace(TASK, id=f"t{number}", question=question) for number, question in enumerate(questions)]


@pytest.fixture
def roll(vocabulary: Vocabulary) -> Roll:
    """The trajectory of a policy that types these lines."""

    def roll(lines: Sequence[str], kernels: Any = None, **setup: Any) -> Trajectory:
        engine = RecordingEngine(ScriptedEngine(vocabulary, lines))
        [trajectory] = asyncio.run(rollout_of(engine, kernels, **setup).many([TASK]))
        assert_exact([trajectory], engine, vocabulary)
        return trajectory

    return roll


async def test_a_stock_client_looks_into_a_rollout_and_changes_it_and_stays_after_it(vocabulary: Vocabulary) -> None:
    files: list[Path] = []
    seen: list[str] = []

    def ask(code: str) -> str:
        command = [sys.executable, "-c", CLIENT, str(files[0]), code]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout

    async def peek(prompt: str, turn: int, sampling: object) -> None:
        if turn == 1:
            seen.append(await asyncio.to_thread(ask, "print('in the middle:', x); x = 20"))

    typed = [" x = 1\n", " y = x + 1\n", " y\n", " submit_final_answer(y)\n"]
    async with KernelPool(1, Limits(line_s=60), sandbox="bwrap") as pool:
        kernels = AttachedKernels(pool, files.append, lambda: seen.append(ask("print('after:', y)")))
        [trajectory] = await rollout_of(ScriptedEngine(vocabulary, typed, peek), kernels).many([TASK])
    assert seen == ["in the middle: 1\n", "after: 21\n"]
    assert trajectory.answer == ("21",)
    assert [line.output for line in trajectory.lines][2].startswith("21\n")
    assert not files[0].exists()


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: "".join(session["typed"]))
def test_sessions_read_like_a_terminal(roll: Roll, vocabulary: Vocabulary, session: dict[str, Any]) -> None:
    trajectory = roll(session["typed"])
    assert [[line.kind, line.output] for line in trajectory.lines] == session["lines"]
    assert (trajectory.answer and list(trajectory.answer), trajectory.stop_reason) == (
        session["answer"],
        session["stop"],
    )
    whole = vocabulary.decode(trajectory.prompt_ids + trajectory.completion_ids)
    between = "".join(line.text + line.output for line in trajectory.lines[:-1])
    assert f">>> # What is 6 * 7?\n>>>{between}{session['typed'][len(session['lines']) - 1]}" in whole


@pytest.mark.parametrize(
    ("budget", "context_tokens", "reason"),
    [
        ({"lines": 2}, 1024, StopReason.MAX_LINES),
        ({"line_tokens": 3}, 1024, StopReason.LINE_TOKENS),
        ({"tokens": 40}, 1024, StopReason.MAX_TOKENS),
        ({"lines": 1000, "tokens": 10_000}, 100, StopReason.CONTEXT),
        ({"seconds": 1e-9}, 1024, StopReason.SECONDS),
    ],
)
def test_every_budget_has_its_reason(
    roll: Roll, budget: dict[str, Any], context_tokens: int, reason: StopReason
) -> None:
    lines = [f" print('line number {n}')\n" for n in range(100)]
    trajectory = roll(lines, budget=budget, context_tokens=context_tokens)
    assert trajectory.stop_reason is reason
    assert len(trajectory.prompt_ids) + len(trajectory.completion_ids) <= context_tokens
    assert len(trajectory.completion_ids) <= budget.get("tokens", 1024)
    if reason in (StopReason.LINE_TOKENS, StopReason.MAX_LINES, StopReason.SECONDS):
        assert (trajectory.lines[-1].kind is LineKind.OVERLONG) == (reason is StopReason.LINE_TOKENS)


@pytest.mark.parametrize(("typed", "repeats", "length"), REPEATING)
def test_a_session_that_repeats_itself_is_ended(
    roll: Roll, typed: list[str], repeats: int | None, length: int | None
) -> None:
    trajectory = roll([*typed, " submit_final_answer(1)\n"], budget={"repeats": repeats})
    assert len(trajectory.lines) == (len(typed) + 1 if length is None else length)
    assert trajectory.stop_reason is (StopReason.ANSWER if length is None else StopReason.REPEATS)
    assert not trajectory.is_overlong


def test_what_shows_the_same_again_and_changes_nothing_is_repeated() -> None:
    def shown(output: str, fingerprint: str | None = "f", calls: tuple[ToolCall, ...] = ()) -> TurnResult:
        runs = (CellRun(Cell("look()", LineKind.EXPRESSION), output),)
        return TurnResult(LineKind.EXPRESSION, runs, fingerprint=fingerprint, calls=calls)

    def counts(*turns: TurnResult) -> list[int]:
        repetition = Repeats(4)
        return [repetition.after(turn, " look()\n") for turn in turns]

    assert counts(shown("1\n"), shown("1\n"), shown("2\n"), shown("1\n"), shown("1\n")) == [1, 2, 1, 3, 4]
    assert counts(shown("1\n"), TurnResult(LineKind.OPEN), shown("1\n")) == [1, 0, 2]
    assert counts(shown("1\n", "f"), shown("1\n", "g")) == [1, 1]
    assert counts(*[shown("1\n", None)] * 3) == [0, 0, 0]
    assert counts(*[shown("moved\n", calls=(ToolCall("move"),))] * 3) == [0, 0, 0]
    assert counts(*[shown("")] * 3) == [0, 0, 0]


def test_chat_models_get_the_problem_by_their_template_and_the_banner_as_prefill(
    roll: Roll, vocabulary: Vocabulary
) -> None:
    tokenizer = copy.deepcopy(vocabulary.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    trajectory = roll([" submit_final_answer(6 * 7)\n"], vocabulary=Vocabulary(tokenizer), chat=True)
    assert trajectory.prompt.startswith("[system] You think inside a live Python interpreter.")
    assert "\n[user] What is 6 * 7?\n[assistant] Python 3.11" in trajectory.prompt
    assert trajectory.prompt.endswith("for more information.\n>>>")
    assert "# What is 6 * 7?" not in trajectory.prompt
    assert vocabulary.decode(trajectory.prompt_ids) == trajectory.prompt
    assert trajectory.answer == ("42",)


def test_what_lines_draw_is_kept_up_to_8_mib_and_not_shown_to_the_policy(roll: Roll) -> None:
    async def draw(session: int, cell: int, source: str, execute: Execute) -> ExecResult:
        return replace(await execute(), images=(b"\x89PNG" + b"x" * (3 << 20),))

    trajectory = roll([" x = 42\n", " x\n", " x\n", " submit_final_answer(x)\n"], HookedKernels(draw))
    assert [len(line.images) for line in trajectory.lines] == [1, 1, 0, 0]
    assert [line.output for line in trajectory.lines] == [">>>", "42\n>>>", "42\n>>>", ""]


def test_a_kernel_that_breaks_before_its_first_cell_is_replaced(roll: Roll) -> None:
    kernels = failing_kernels(broken=2)
    trajectory = roll(TYPED, kernels)
    assert (kernels.opened, trajectory.answer, trajectory.error) == (3, ("42",), None)


def test_no_kernel_at_all_raises_instead_of_training_on_nothing(roll: Roll) -> None:
    with pytest.raises(KernelError, match="not one of 1 trajectories could run"):
        roll(TYPED, failing_kernels(broken=100))


async def test_a_trajectory_whose_state_is_lost_is_aborted_and_the_others_go_on(vocabulary: Vocabulary) -> None:
    rollout = rollout_of(ScriptedEngine(vocabulary, TYPED), failing_kernels(broken=1, cells=1))
    trajectories = await rollout.many(tasks_of("What is 6 * 7?", "What is 7 * 6?"))
    assert sorted(t.stop_reason for t in trajectories) == [StopReason.ABORTED, StopReason.ANSWER]
    aborted = next(t for t in trajectories if t.stop_reason is StopReason.ABORTED)
    assert aborted.is_void
    assert aborted.error == "KernelDiedError: the connection broke"
    assert [(line.text, line.kind) for line in aborted.lines] == list(zip(TYPED, ["statement", "killed"], strict=True))


async def test_a_question_is_encoded_once_for_its_group_when_its_first_trajectory_begins(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    encode = Vocabulary.encode_prompt
    monkeypatch.setattr(
        Vocabulary, "encode_prompt", lambda self, text: log.append(text[-13:].strip()) or encode(self, text)
    )

    async def typed(prompt: str, turn: int, sampling: object) -> None:
        if turn == 0:
            log.append("typed")

    tasks = tasks_of(*(f"Session {number // 3}" for number in range(6)))
    rollout = rollout_of(ScriptedEngine(vocabulary, TYPED, typed), at_once=3)
    async for index, each in rollout.as_completed(RolloutBatch(tasks)):
        assert each.task_id == f"t{index}"
    frame, *rest = log
    assert frame == "ormation.\n>>>", "the prompt around an empty question tells how much room there is"
    assert rest[:2] == ["Session 0\n>>>", "typed"]
    assert rest.count("Session 0\n>>>") == rest.count("Session 1\n>>>") == 1
    assert len(rest) == 2 + 6


async def test_a_prompt_that_is_too_long_is_refused_before_anything_starts(vocabulary: Vocabulary) -> None:
    engine, kernels = ScriptedEngine(vocabulary, TYPED), failing_kernels(broken=0)
    tasks = [TASK, replace(TASK, id="long", question="z" * 300), TASK]
    with pytest.raises(ConfigError, match=r"prompt of task 'long' has \d+ tokens and engine.context_tokens is 256"):
        await rollout_of(engine, kernels, context_tokens=256).many(tasks)
    assert (engine.given, kernels.opened) == ([], 0)


class Clock:
    """Only moves when somebody works, in seconds."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    thread_time = monotonic


async def roll_slowly(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, lines: list[str], seconds: float = 60.0, **times_s: float
) -> list[Trajectory]:
    """Two trajectories, one after the other: slots, lines, kernels, cells, outputs and ends take this long."""
    clock = Clock()

    def work(on: str) -> None:
        clock.now_s += times_s.get(on, 0.0)

    class Slow(ScriptedEngine):
        @asynccontextmanager
        async def slot(self, tokens: int) -> AsyncIterator[ScriptedEngine]:
            work("slot")
            yield self

    async def sample(prompt: str, turn: int, sampling: object) -> None:
        work("line")

    async def run(session: int, cell: int, source: str, execute: Execute) -> ExecResult:
        work("cell")
        return await execute()

    class Kernels(HookedKernels):
        @asynccontextmanager
        async def session(self) -> AsyncIterator[Any]:
            work("kernel")
            async with super().session() as kernel:
                yield kernel
            work("end")

    append_output = Transcript.append_output
    monkeypatch.setattr(Transcript, "append_output", lambda *given: work("output") or append_output(*given))
    monkeypatch.setattr("repl_rl.rollout.state.time", clock)
    monkeypatch.setattr("repl_rl.rollout.loop.time", clock)
    rollout = rollout_of(Slow(vocabulary, lines, sample), Kernels(run), budget={"seconds": seconds}, at_once=1)
    return await rollout.many(tasks_of("What is 6 * 7?", "What is 7 * 6?"))


async def test_the_time_of_a_trajectory_is_split(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [" # Think.\n", " x = 42\n", " submit_final_answer(x)\n"]
    times_s = {"slot": 1.0, "line": 4.0, "kernel": 2.0, "cell": 0.5, "output": 0.25, "end": 16.0}
    first, second = await roll_slowly(vocabulary, monkeypatch, lines, **times_s)
    assert (first.engine_s, first.kernel_s, first.queue_s, first.own_s) == (12.0, 1.0, 3.0, 0.5)
    assert first.duration_s == 16.5
    assert (second.engine_s, second.kernel_s, second.queue_s, second.own_s) == (12.0, 1.0, 16.5 + 16.0 + 3.0, 0.5)


async def test_the_budget_of_seconds_begins_where_slot_and_kernel_are_there(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_s = {"slot": 60.0, "line": 4.0, "kernel": 60.0, "cell": 1.0, "end": 60.0}
    made = await roll_slowly(vocabulary, monkeypatch, [f" {n}\n" for n in range(9)], seconds=14.0, **times_s)
    assert [len(each.lines) for each in made] == [3, 3]
    assert {each.stop_reason for each in made} == {StopReason.SECONDS}
