"""Training that does not wait for its rollouts: the queue by itself, and real steps with real engines and kernels."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import ENGINE, small_trainer, without_times
from trl.trainer.utils import RepeatSampler
from waiting import until

from repl_rl import ReplGRPOTrainer, read_jsonl
from repl_rl.config import AsynchronousConfig
from repl_rl.errors import ConfigError, KernelError, TrainingError
from repl_rl.tasks import make_tasks
from repl_rl.trainer.asynchronous import EpochSampler, GroupOrder, GroupQueue, Taken
from repl_rl.trajectory import Line, LineKind, StopReason, Trajectory

SIZE = 2


def typed(version: int) -> Trajectory:
    """A trajectory of one token."""
    line = Line(0, 1, "x\n", LineKind.EXPRESSION)
    return Trajectory("t", ">>>", (1,), (2,), (True,), (-0.5,), StopReason.EOS, (line,), version=version)


class Rollouts:
    """Groups that end when they are told to."""

    opened: ClassVar[list[Rollouts]] = []

    def __init__(self, **settings: Any) -> None:
        self.opened.append(self)
        self.version = 0
        self.under_way: dict[int, tuple[Future[list[Trajectory]], Callable[[], None], int]] = {}
        self.begun: list[int] = []
        self.most_at_once = 0
        self.quick = settings.pop("quick", ())
        values = {"groups": 2, "group_size": SIZE, "at_once": 100, **settings}
        config = AsynchronousConfig(max_staleness=values.pop("max_staleness", 2), queue=values.pop("queue", None))
        self.queue = GroupQueue(self.begin, config, **values)

    def begin(self, number: int, on_end: Callable[[], None]) -> Future[list[Trajectory]]:
        done: Future[list[Trajectory]] = Future()
        self.begun.append(number)
        if number in self.quick:
            done.set_result([typed(self.version)] * SIZE)
            return done
        self.under_way[number] = done, on_end, self.version
        self.most_at_once = max(self.most_at_once, SIZE * len(self.under_way))
        return done

    def end(self, *numbers: int) -> None:
        for number in numbers:
            done, on_end, version = self.under_way.pop(number)
            for _ in range(SIZE):
                on_end()
            done.set_result([typed(version)] * SIZE)

    def take(self, version: int, updates: int | None = None) -> Taken:
        """What a step takes from what is finished, or will be at once."""
        self.version = version
        return self.queue.take(version, updates)

    def wait_for(self, *numbers: int) -> None:
        """Until these groups have begun, in this order, and no others."""
        until(lambda: self.begun == [*numbers])

    def step(
        self, threads: ThreadPoolExecutor, version: int, begun: Iterable[int], *ends: int, updates: int | None = None
    ) -> Taken:
        """What a step takes when these groups have begun, and those have ended."""
        taking = threads.submit(self.take, version, updates)
        self.wait_for(*begun)
        self.end(*ends)
        return taking.result(60)


def numbers_of(taken: Taken) -> list[int]:
    return [number for number, _ in taken.groups]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool
        for rollouts in Rollouts.opened:  # a failed test may have left a step that waits
            rollouts.queue.close()
        Rollouts.opened.clear()


def test_others_are_under_way_while_a_step_trains_and_the_first_that_finish_are_taken(
    threads: ThreadPoolExecutor,
) -> None:
    rollouts = Rollouts(max_staleness=2, queue=1)
    taken = rollouts.step(threads, 0, range(4), 3, 0, 2)  # four: its own and those of the next step
    assert numbers_of(taken) == [0, 2]
    assert taken.ready == 1
    assert rollouts.queue.position() == (4, [1, 3])
    taken = rollouts.step(threads, 1, range(6), 5)
    assert numbers_of(taken) == [3, 5]
    assert taken.metrics(1) == pytest.approx(
        {
            "asynchronous/staleness_mean": 0.5,
            "asynchronous/staleness_max": 1,
            "asynchronous/ready_groups": 0,
        }
    )


def test_staleness_counts_updates_of_which_there_may_be_several_to_a_version(threads: ThreadPoolExecutor) -> None:
    """Two updates a batch: what is one version old has missed two."""
    rollouts = Rollouts(max_staleness=3, queue=1, groups=1, updates=2, quick=[3])
    for version, staleness in ((0, 0), (1, 2)):
        taken = rollouts.step(threads, version, range(version + 2), version, updates=10 + 2 * version)
        assert taken.metrics(version)["asynchronous/staleness_max"] == staleness
    taking = threads.submit(rollouts.take, 2, 14)
    rollouts.wait_for(*range(4))
    rollouts.end(2)
    taken = taking.result(10)
    assert numbers_of(taken) == [2], "it began with version 1, and the next step is four updates after that"
    assert taken.ready == 1, "number 3, which had ended before"


def test_at_rest_nothing_is_under_way(threads: ThreadPoolExecutor) -> None:
    rollouts = Rollouts(max_staleness=1)
    rollouts.step(threads, 0, range(4), 0, 1)
    is_inside, may_leave = threading.Event(), threading.Event()

    def rest() -> None:
        with rollouts.queue.at_rest():
            is_inside.set()
            may_leave.wait(10)

    resting = threads.submit(rest)
    rollouts.end(2)
    assert not is_inside.wait(0.05)
    rollouts.end(3)
    assert is_inside.wait(10)
    may_leave.set()
    resting.result(10)
    assert numbers_of(rollouts.take(1)) == [2, 3]


def test_a_failure_reaches_the_step_and_closing_ends_what_is_under_way(threads: ThreadPoolExecutor) -> None:
    rollouts = Rollouts()
    taking = threads.submit(rollouts.take, 0)
    rollouts.wait_for(*range(4))
    done, *_ = rollouts.under_way[1]
    done.set_exception(KernelError("the worker is gone"))
    with pytest.raises(KernelError, match="the worker is gone"):
        taking.result(10)
    rollouts.queue.close()
    rollouts.queue.close()
    assert all(done.cancelled() for number, (done, *_) in rollouts.under_way.items() if number != 1)

    def refuse(number: int, on_end: Callable[[], None]) -> Future[list[Trajectory]]:
        raise ConfigError("this can't be sent")

    queue = GroupQueue(refuse, AsynchronousConfig(), groups=1, group_size=1, at_once=1)
    with pytest.raises(ConfigError, match="can't be sent"):
        queue.take(0)


def test_a_step_that_nothing_is_left_for_says_so_and_does_not_wait(threads: ThreadPoolExecutor) -> None:
    rollouts = Rollouts(last=3)
    assert numbers_of(rollouts.step(threads, 0, range(3), 0, 1)) == [0, 1]
    with pytest.raises(TrainingError, match=r"a step takes 2 groups, and 1 are left: the queue was opened for 3"):
        threads.submit(rollouts.take, 1).result(10)
    last = Rollouts(last=2)
    assert numbers_of(last.step(threads, 0, range(2), 0, 1)) == [0, 1]
    with pytest.raises(TrainingError, match="and 0 are left"):
        threads.submit(last.take, 1).result(10)


@pytest.mark.more
@given(st.data())
def test_each_group_is_taken_once_and_none_is_too_old(data: st.DataObject) -> None:
    """Groups end in any order and at any time, a quarter of them not before a step waits for them, and nothing is
    sampled in vain; what is begun before a queue is closed comes first in the next one.

    Which groups are under way as one is chosen depends on threads, so the choices are not drawn one by one."""
    max_staleness = data.draw(st.integers(0, 4))
    ahead = data.draw(st.integers(0, max_staleness))
    groups, at_once, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12)), 8
    settings: dict[str, Any] = {"max_staleness": max_staleness, "queue": ahead, "groups": groups, "at_once": at_once}
    rollouts = Rollouts(**settings, last=groups * steps)
    ends = random.Random(data.draw(st.integers(0, 2**32 - 1)))
    taken: Counter[int] = Counter()
    with ThreadPoolExecutor(1) as thread:
        for step in range(steps):
            if step and ends.random() < 0.5:
                first, again = rollouts.queue.position()
                rollouts.queue.close()
                assert len(rollouts.begun) == len(set(rollouts.begun))
                rollouts = Rollouts(**settings, last=groups * steps, first=first, again=again)
            taking = thread.submit(rollouts.take, step)
            while not taking.done():
                numbers = sorted(rollouts.under_way)
                if quick := [number for number in numbers if number % 4] or numbers:
                    rollouts.end(ends.choice(quick))
            found = taking.result(10)
            assert found.metrics(step)["asynchronous/staleness_max"] <= max_staleness
            assert len(found.groups) == groups
            taken.update(numbers_of(found))
            assert len(rollouts.queue.position()[1]) <= ahead * groups
    assert taken == dict.fromkeys(range(groups * steps), 1)
    assert rollouts.most_at_once <= max(at_once, SIZE)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_order_is_that_of_trls_sampler(shuffle: bool) -> None:
    def sampler() -> RepeatSampler:
        return RepeatSampler(
            list(range(13)), mini_repeat_count=3, batch_size=4, repeat_count=2, shuffle=shuffle, seed=9
        )

    for processes in (1, 2):
        groups = 4 // processes
        orders = [GroupOrder(sampler(), groups, process, processes) for process in range(processes)]
        for epoch in range(3):
            drawn = list(EpochSampler(sampler(), lambda epoch=epoch: epoch)) if shuffle else list(sampler())  # type: ignore[misc]
            batches = [drawn[start : start + 12 : 3] for start in range(0, len(drawn), 24)]
            assert len(batches) == 3
            for number, batch in enumerate(batches):
                first = (3 * epoch + number) * groups
                found = [order.row(first + index) for order in orders for index in range(groups)]
                assert found == batch
        assert orders[0].row(0) == orders[0].row(0)  # a group of an epoch that is over may come again


SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "num_generations": 2,
    "budget": {"lines": 4, "tokens": 96, "line_tokens": 24},
    "rewards": {"kinds": {"exception": -0.1, "syntax_error": -0.1}},
}


def trained(folder: Path, problems: int = 30, checkpoint: Path | None = None, **settings: Any) -> ReplGRPOTrainer:
    tasks = make_tasks(["product", "gcd"], problems, seed=1, split="train")
    with small_trainer(folder, tasks, **{**SETTINGS, **settings}) as trainer:
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    return trainer


def facts(folder: Path) -> list[Any]:
    """All of the trajectories but their times."""
    return [without_times(each) for path in sorted((folder / "rollouts").iterdir()) for each in read_jsonl(path)]


def tasks_of(folder: Path, step: int) -> list[str]:
    return [each.task_id for each in read_jsonl(folder / "rollouts" / f"step_{step:05d}.jsonl")][::2]


@pytest.mark.more
@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"gradient_accumulation_steps": 2, "num_iterations": 2}, marks=pytest.mark.slow),
        pytest.param(
            {
                "branch": {"roots": 2, "forks": 1, "branches": 2},
                "num_generations": 4,
                "credit": {"estimator": "branch"},
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["plain", "batches that last for two steps", "trees"],
)
def test_without_staleness_the_bits_are_those_of_waiting(more: dict[str, Any], tmp_path: Path) -> None:
    engine = {**ENGINE, "deterministic": True}
    weights = []
    for name, asynchronous in (("waiting", None), ("asynchronous", {"max_staleness": 0})):
        settings = {"max_steps": 4, "engine": engine, "asynchronous": asynchronous, **more}
        trainer = trained(tmp_path / name, problems=9, **settings)  # more than an epoch
        weights.append(trainer.model.state_dict())
    assert facts(tmp_path / "waiting") == facts(tmp_path / "asynchronous")
    assert any(trajectory["version"] > 1 for trajectory in facts(tmp_path / "waiting"))
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name]), name


@pytest.mark.more
@pytest.mark.covers(
    "one process, `asynchronous`",
    "sessions go on while it trains; each task is trained on once, and no token is too old",
)
def test_a_run_trains_on_each_task_once_on_tokens_that_are_not_too_old(tmp_path: Path) -> None:
    steps = 6
    trainer = trained(
        tmp_path, max_steps=steps, engine={"context_tokens": 384, "places": 16}, asynchronous={"max_staleness": 2}
    )
    rows = [row for row in trainer.state.log_history if "asynchronous/staleness_mean" in row]
    assert len(rows) == steps
    assert all(row["asynchronous/staleness_max"] <= 2 for row in rows)
    assert any(row["asynchronous/staleness_max"] > 0 for row in rows)
    assert all(row["time/waited_s"] >= 0 for row in rows)
    assert all(row["drift/logprob_mean"] < 0.2 for row in rows)
    trained_on = [task for step in range(1, steps + 1) for task in tasks_of(tmp_path, step)]
    assert len(trained_on) == len(set(trained_on)) == 2 * steps
    assert not trainer.queue.is_open
    assert trainer.args.to_dict()["asynchronous"]["max_staleness"] == 2


@pytest.mark.more
@pytest.mark.covers(
    "one process, `asynchronous`, vLLM that sleeps", "lines under way wait and go on with the next weights"
)
def test_sessions_that_are_under_way_as_vllm_falls_asleep_go_on_with_the_next_weights(tmp_path: Path) -> None:
    """On a CPU, vLLM has no sleep mode: its scheduler pauses as it does for a sleep, and memory stays."""
    tasks = make_tasks(["product", "gcd"], 30, seed=1, split="train")
    settings = SETTINGS | {"engine": {"backend": "vllm", "context_tokens": 384, "places": 16, "kv_cache_gib": 1}}
    asleep: list[int] = []
    steps: list[int] = []
    with small_trainer(tmp_path, tasks, **settings, max_steps=5, asynchronous={"max_staleness": 2}) as trainer:
        engine = trainer.engine
        core = engine.llm.llm_engine.engine_core.engine_core

        def sleep(level: int, mode: str) -> None:
            core.pause_scheduler(mode)
            asleep.append(len(engine._running))
            steps.append(engine.steps)

        def wake_up(tags: list[str]) -> None:
            assert not steps or engine.steps == steps[-1], "the engine has stepped in its sleep"
            if "kv_cache" in tags:
                core.resume_scheduler()

        engine._sleeps, engine.llm.sleep, engine.llm.wake_up = True, sleep, wake_up
        trainer.train()
    assert len(asleep) == 5
    assert any(asleep), "a line was under way"
    rows = [row for row in trainer.state.log_history if "asynchronous/staleness_mean" in row]
    assert any(row["asynchronous/staleness_max"] > 0 for row in rows)
    assert all(row["drift/logprob_mean"] < 0.2 for row in rows)
    trained_on = [task for step in range(1, 6) for task in tasks_of(tmp_path, step)]
    assert len(trained_on) == len(set(trained_on)) == 10


@pytest.mark.more
def test_a_resumed_run_rolls_out_again_what_was_under_way(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"asynchronous": {"max_staleness": 2}, "save_strategy": "steps", "save_steps": 1}
    trained(tmp_path, max_steps=3, **settings)
    first, again = torch.load(tmp_path / "checkpoint-2" / "position_0.pt", weights_only=True)["queue"]
    assert first == len(again) + 4
    trained(tmp_path, checkpoint=tmp_path / "checkpoint-2", max_steps=5, **settings)
    trained_on = [task for step in range(1, 6) for task in tasks_of(tmp_path, step)]
    assert len(trained_on) == len(set(trained_on)) == 10


@pytest.mark.more
def test_held_out_problems_are_rolled_out_at_rest(tmp_path: Path) -> None:
    heldout = make_tasks(["product"], 4, seed=1, split="heldout")
    evaluated = {"num_generations_eval": 1, "per_device_eval_batch_size": 4, "eval_strategy": "steps", "eval_steps": 1}
    settings = {**SETTINGS, **evaluated, "asynchronous": {}}
    with small_trainer(tmp_path, trainer={"eval_dataset": heldout}, **settings) as trainer:
        trainer.train()
    assert sum("eval_reward" in row for row in trainer.state.log_history) == 2


def test_the_default_queue_is_one_step() -> None:
    configs = [AsynchronousConfig(max_staleness=most).ahead for most in (0, 1, 2, 4)]
    assert configs == [0, 1, 1, 1]
    assert AsynchronousConfig(max_staleness=4, queue=3).ahead == 3
