"""Rollouts in a process of their own, with real kernels there and a scripted policy here."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import psutil
import pytest
from scripted import ScriptedEngine, locked
from small import without_times
from waiting import until

from repl_rl.config import KernelConfig, SamplingConfig
from repl_rl.engine import Engine, Vocabulary
from repl_rl.errors import ConfigError, EngineError, ExtensionError, KernelError, ReplRLError
from repl_rl.rollout.batch import RolloutBatch, RolloutService
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup, make_extensions
from repl_rl.trajectory import Task, Trajectory

TASKS = [Task(f"t{number}", f"What is {number} * 7?", str(number * 7)) for number in range(1, 5)]


def lines_for(prompt: str) -> Sequence[str]:
    number = next(number for number in range(1, 5) if f"{number} * 7" in prompt)
    return [f" r = {number} * 7\n", " r, nothing\n", " # Well.\n", " submit_final_answer(r)\n"]


def open_service(
    engine: Engine, vocabulary: Vocabulary, apart: bool = True, kernel: KernelConfig | None = None, **more: Any
) -> RolloutService:
    return start_service(
        engine,
        RolloutSetup(vocabulary, context_tokens=1024, chat=False, kernel=kernel or KernelConfig(size=2), **more),
        apart=apart,
    )


def worker() -> psutil.Process:
    """The one process of ours that runs the worker's program."""
    [found] = [each for each in psutil.Process().children() if "repl_rl.rollout.worker.program" in each.cmdline()]
    return found


def is_alive(process: psutil.Process) -> bool:
    """A zombie is gone: it holds nothing and only waits for its parent."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def test_trajectories_are_those_of_rollouts_in_this_process(vocabulary: Vocabulary) -> None:
    made, temperatures, watched = [], list[float](), list[int]()

    async def note(prompt: str, turn: int, sampling: SamplingConfig) -> None:
        temperatures.append(sampling.temperature)

    for apart in (False, True):
        engine = ScriptedEngine(vocabulary, lines_for, note)
        engine.version = 3
        with open_service(engine, vocabulary, apart) as service:
            told: dict[int, Trajectory] = {}
            service.watched = lambda count: nullcontext(lambda: watched.append(count))
            first = service.generate(TASKS, SamplingConfig(temperature=0.25), on_end=told.__setitem__)
            assert [told[index] for index in range(len(TASKS))] == first
            engine.version = 4
            engine.sessions.clear()
            second = service.generate(TASKS[:1])
            made.append([without_times(trajectory) for trajectory in first + second])
            numbers = service.kernel_numbers()
            assert (numbers["sessions"], numbers["executions"], numbers["failed_starts"]) == (5, 15, 0)
            assert (numbers["status_ok"], numbers["status_error"]) == (10, 5)
            assert 0 < service.loop_share <= 1
    here, there = made
    assert here == there
    assert watched == 2 * [*[len(TASKS)] * len(TASKS), 1]
    assert [each["task_id"] for each in there] == ["t1", "t2", "t3", "t4", "t1"]
    assert [each["answer"] for each in there] == [("7",), ("14",), ("21",), ("28",), ("7",)]
    assert [each["version"] for each in there] == [3, 3, 3, 3, 4]
    assert [line["error_name"] for line in there[1]["lines"]] == [None, "NameError", None, None]
    assert temperatures == ([0.25] * 16 + [SamplingConfig().temperature] * 4) * 2, "of a call, and then the usual one"


@pytest.mark.more
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (EngineError("out of memory on the third line"), r"^out of memory on the third line$"),
        (
            ZeroDivisionError("by zero"),
            r"^engine '.*ScriptedEngine.sample_line' raised ZeroDivisionError: by zero",
        ),
    ],
)
def test_a_failure_of_the_engine_is_raised_and_the_next_batch_works(
    vocabulary: Vocabulary, error: Exception, message: str
) -> None:
    async def fail(prompt: str, turn: int, sampling: object) -> None:
        if len(engine.given) == 5 and not failed:
            failed.append(prompt)
            raise error

    failed: list[str] = []
    engine = ScriptedEngine(vocabulary, lines_for, fail)
    with open_service(engine, vocabulary) as service:
        with pytest.raises(EngineError, match=message):
            service.generate(TASKS)
        engine.sessions.clear()
        assert [t.answer for t in service.generate(TASKS)] == [("7",), ("14",), ("21",), ("28",)]


async def stumbling(tasks: Sequence[Task], engine: Any, kernels: Any) -> list[Trajectory]:
    raise KeyError(tasks[0].id)


@pytest.mark.more
def test_an_exception_of_a_loop_of_the_users_says_where_it_was_raised(vocabulary: Vocabulary) -> None:
    extensions = make_extensions(sampler=stumbling)
    with (
        open_service(ScriptedEngine(vocabulary, lines_for), vocabulary, extensions=extensions) as service,
        pytest.raises(ExtensionError, match=r"^rollout '.*:stumbling' raised KeyError: 't1' \(") as caught,
    ):
        service.generate(TASKS)
    [note] = caught.value.__notes__
    assert "in stumbling\n    raise KeyError(tasks[0].id)" in note


@pytest.mark.more
def test_a_worker_that_is_killed_takes_its_kernels_along_and_who_waits_hears_of_it(vocabulary: Vocabulary) -> None:
    kernels: list[psutil.Process] = []

    async def kill(prompt: str, turn: int, sampling: object) -> None:
        if "2 * 7" in prompt and turn == 2:
            kernels.extend(process.children(recursive=True))
            process.kill()
            await asyncio.Event().wait()

    service = open_service(ScriptedEngine(vocabulary, lines_for, kill), vocabulary)
    process = worker()
    with pytest.raises(KernelError, match=r"runs the rollouts was killed \(Killed\).*a smaller kernel\.size"):
        service.generate(TASKS)
    assert len(kernels) >= 2
    with pytest.raises(KernelError, match="was killed"):
        service.generate(TASKS)
    with pytest.raises(KernelError, match="was killed"):
        service.kernel_numbers()
    service.close()
    service.close()
    until(lambda: not any(map(is_alive, kernels)))


ENDLESS = """
from scripted import ScriptedEngine
from vocabularies import nano
from repl_rl.config import KernelConfig, SamplingConfig
from repl_rl.rollout.service import start_service
from repl_rl.rollout.setup import RolloutSetup
from repl_rl.trajectory import Task

vocabulary = nano()
vocabulary.tokenizer.chat_template = (
    "{{ messages[-1].content }}{% if 'ever' in messages[-1].content %}{% for a in range(99999) %}"
    "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
)
setup = RolloutSetup(vocabulary, context_tokens=1024, chat=True, kernel=KernelConfig(size=1))
with start_service(ScriptedEngine(vocabulary, [" 1\\n"]), setup, apart=True) as service:
    print("begins", flush=True)
    service.generate([Task("t1", "How long is for ever?", "7")], SamplingConfig())
"""


@pytest.mark.more
def test_a_worker_that_renders_for_ever_ends_with_its_command() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = [sys.executable, "-c", ENDLESS]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "begins\n"
        started = psutil.Process(command.pid).children(recursive=True)
        [renders] = [each for each in started if "repl_rl.rollout.worker.program" in each.cmdline()]
        begun_s = renders.cpu_times().user
        until(lambda: renders.cpu_times().user > begun_s + 1)
        command.kill()
    until(lambda: not any(map(is_alive, started)))


@pytest.mark.more
def test_closing_ends_the_process_and_its_kernels(vocabulary: Vocabulary) -> None:
    service = open_service(ScriptedEngine(vocabulary, lines_for), vocabulary)
    service.generate(TASKS)
    processes = [worker(), *worker().children(recursive=True)]
    assert len(processes) > 1
    service.close()
    assert [process for process in processes if is_alive(process)] == []
    service.close()


@pytest.mark.more
def test_closing_ends_what_is_under_way(vocabulary: Vocabulary) -> None:
    """At once: nobody waits for the process to end in the thread that tells it so."""
    has_begun = threading.Event()

    async def hang(prompt: str, turn: int, sampling: object) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    service = open_service(ScriptedEngine(vocabulary, lines_for, hang), vocabulary)
    call = service.begin(RolloutBatch(TASKS[:1]))
    assert has_begun.wait(60)
    service.close()
    with pytest.raises(KernelError, match=r"has ended \(exit status 0\)"):
        call.result(60)


@contextmanager
def nothing_is_left() -> Iterator[None]:
    """No process, no thread, but for those that make one call each, as pools of other tests may have."""

    def found() -> tuple[list[psutil.Process], set[threading.Thread]]:
        threads = {thread for thread in threading.enumerate() if thread.name != "repl-rl-call"}
        return psutil.Process().children(), threads

    before = found()
    yield
    assert found() == before


@pytest.mark.more
def test_functions_of_the_users_script_and_closures_are_sent(vocabulary: Vocabulary) -> None:
    script: dict[str, Any] = {"__name__": "__main__"}
    exec("LIMIT = 10\ndef capped(a: int) -> int:\n    'Cap.'\n    return min(a, LIMIT)\n", script)
    factor = 3

    def scaled(a: int) -> int:
        """Scale."""
        return a * factor

    extensions = make_extensions([script["capped"], scaled], where="host")
    engine = ScriptedEngine(vocabulary, [" submit_final_answer(scaled(capped(99)))\n"])
    with open_service(engine, vocabulary, extensions=extensions) as service:
        assert service.generate(TASKS[:1])[0].answer == ("30",)


def test_what_can_not_be_sent_is_refused_before_a_process_starts(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    for wrap_kernels, extensions, why in (
        (locked(), make_extensions(), "it holds something"),
        (None, make_extensions([locked()], where="host"), "'guarded' holds"),
    ):
        engine = ScriptedEngine(vocabulary, lines_for)
        with nothing_is_left(), pytest.raises(ConfigError, match=rf"can't be sent to the.*{why}.*with apart=False"):
            open_service(engine, vocabulary, wrap_kernels=wrap_kernels, extensions=extensions)


@pytest.mark.parametrize(
    "kernel", [KernelConfig(size=2, backend="no-such-kernel"), KernelConfig(size=2, profile="no-such-profile")]
)
@pytest.mark.more
def test_a_pool_that_can_not_open_raises_here_what_it_raised_there(
    vocabulary: Vocabulary, kernel: KernelConfig
) -> None:
    raised: list[tuple[type, str]] = []
    for apart in (False, True):
        with nothing_is_left(), pytest.raises(ReplRLError) as failure:
            open_service(ScriptedEngine(vocabulary, lines_for), vocabulary, apart, kernel)
        raised.append((type(failure.value), str(failure.value)))
    here, there = raised
    assert here == there
    assert "no-such-" in there[1]


@pytest.mark.more
def test_tasks_that_can_not_be_sent_are_refused_and_the_next_ones_run(vocabulary: Vocabulary) -> None:
    with open_service(ScriptedEngine(vocabulary, lines_for), vocabulary) as service:
        with pytest.raises(ConfigError, match=r"pickle.*apart=False"):
            service.generate([replace(TASKS[0], metadata={"value": threading.Lock()})])
        assert service.generate([replace(TASKS[0], metadata={"value": lambda: 1})])[0].answer == ("7",)
        assert service.generate(TASKS[1:2])[0].answer == ("14",)
