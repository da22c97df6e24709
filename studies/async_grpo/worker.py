"""Sessions of ours for TRL's `AsyncGRPOTrainer`: our line loop, kernels, rewards and credit, its trainer and loss.

    worker = SessionWorker("my.yaml")
    trainer = AsyncGRPOTrainer(
        model=worker.model_path,
        args=AsyncGRPOConfig("out", max_steps=100, **worker.arguments),
        train_dataset=worker.dataset,
        rollout_worker=worker,
        weight_transfer=worker,
    )
    trainer.train()

TRL's trainer takes rows with one advantage each. A session becomes a row for each advantage that its lines have: all
its tokens, with those lines in the loss that have this advantage. The trainer packs rows that begin alike into one
pass, so that a session costs one pass, however many rows it becomes.

TRL's protocols are `RolloutWorkerProtocol` and `WeightTransferProtocol` in `trl.experimental.async_grpo`; a worker is
both. Tested with TRL 1.16, by its command at its smallest size.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch

from repl_rl.config import Config
from repl_rl.credit import BATCH_STEPS
from repl_rl.engine import TrainableEngine
from repl_rl.errors import ConfigError, EngineError
from repl_rl.models import resolve_model
from repl_rl.rewards import RewardFunction, ScoredTrajectory
from repl_rl.rollout import (
    CreditedTrajectory,
    Grader,
    RolloutBatch,
    batch_metrics,
    config_of,
    credit,
    load_engine,
    refuse_if_all_aborted,
    reward_table,
    score,
    start_service,
)
from repl_rl.tasks import grade, load_tasks
from repl_rl.trajectory import Task, Trajectory

if TYPE_CHECKING:
    from datasets import Dataset
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

_NOT_HERE = ("budget.compact_at", "subcalls.train", "train.redraws", "rollout", "cluster")
"""Options that need the other groups of a step, or a loop that is not ours."""


class SessionWorker:
    """`rollout_worker` and `weight_transfer` of TRL's `AsyncGRPOTrainer`.

    Uses the sections model, dialect, tools, tasks, budget, sampling, branch, kernel, engine, rewards and credit of a
    config, and of `train` only `group_size`, `mask.overlong`, and, for how much is rolled out ahead, `prompts_per_step`
    and `asynchronous`. The rest is the business of TRL's arguments.

    The model is loaded here, and `close`, which TRL calls when training ends (`stop`), ends engine and kernels. Raises
    ConfigError for what needs the other groups of a step, which this trainer does not have, and what `load_engine`
    raises.
    """

    def __init__(
        self,
        config: Config | Path | str,
        overrides: Sequence[str] = (),
        *,
        tasks: Sequence[Task] | None = None,
        grader: Grader = grade,
        line_rewards: Sequence[RewardFunction] = (),
    ) -> None:
        """`config` and `overrides` are as for `open_rollout`. Without `tasks`, those of the config are taken."""
        self.config = config_of(config, overrides)
        self.config.sampling.require_gradient()
        estimator, scale = self.config.credit.estimator, self.config.credit.scale
        if estimator in ("critic", *BATCH_STEPS) or scale == "batch":
            raise ConfigError(
                f"credit: estimator {estimator} with scale {scale} compares the groups of a step, and TRL's "
                "asynchronous trainer takes them one by one; take another estimator with scale none, floor or group, "
                "or train.asynchronous of repl-rl train"
            )
        for name in _NOT_HERE:
            if (value := self.config.if_set(name)) is not None:
                raise ConfigError(f"{name} is not for TRL's asynchronous trainer; leave it out (got {value!r})")
        train = self.config.train
        self._table = reward_table(self.config.rewards, self.config.credit, line_rewards)
        self._tasks = list(tasks or load_tasks(self.config.tasks, "train", self.config.seed, self.config.tasks.train))
        self._grader = grader
        ahead = 1 if train.asynchronous is None else train.asynchronous.ahead
        self._room = (1 + ahead) * train.prompts_per_step
        """Groups that may be there: under way, or with rows that the trainer has not taken."""
        self._events: queue.SimpleQueue[_Sessions | None] = queue.SimpleQueue()
        """Groups that are finished; None if there is room for another one, or if all is over."""
        self.rollout_buffer: queue.Queue[RolloutSample] = _Rows(self._group_taken)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._under_way: set[_Sessions] = set()
        self._begun = 0
        self._updates = 0
        """Version of the trainer's weights, less that of the engine's."""
        self._is_over = False
        self._failure: BaseException | None = None
        self._lived_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="repl-rl-sessions", daemon=True)
        self._open = ExitStack()
        try:
            self._engine, setup = load_engine(self.config)
            self._open.callback(self._engine.close)
            if not isinstance(self._engine, TrainableEngine):
                raise ConfigError(f"engine.backend {self.config.engine.backend!r}: it can't be given new weights")
            self._service = self._open.enter_context(start_service(self._engine, setup))
        except BaseException:
            self._open.close()
            raise

    @property
    def model_path(self) -> str:
        """The checkpoint, for the trainer."""
        return resolve_model(self.config.model.path)

    @property
    def dataset(self) -> Dataset:
        """The questions, in the column `prompt`: the trainer counts its epochs in them."""
        from datasets import Dataset

        return Dataset.from_list([{"prompt": task.question} for task in self._tasks])

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `AsyncGRPOConfig` that have to agree with the config."""
        return {
            "num_generations": self.config.train.group_size,
            "temperature": self.config.sampling.temperature,
            "max_completion_length": self.config.budget.tokens,
            "token_budget": self.config.engine.context_tokens,
        }

    def start(self) -> None:
        """Begin with the sessions. TRL calls it when the engine has the trainer's weights."""
        self._lived_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End sessions, kernels and engine; rows that were not taken are dropped. A second call does nothing."""
        self._is_over = True
        self._events.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        for group in self._under_way:
            group.done.cancel()
        self._open.close()

    close = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def update_model_version(self, model_version: int) -> None:
        """The engine has these weights now. Raises ConfigError if they did not come through `send_weights`."""
        updates = model_version - self._engine.version
        if self._thread.ident is not None and updates != self._updates:
            raise ConfigError(
                f"the trainer has weights {model_version}, and they were not given to the sessions' engine: give the "
                "worker to AsyncGRPOTrainer twice, as rollout_worker and as weight_transfer"
            )
        self._updates = updates

    def check_health(self, stale_after_s: float) -> None:
        """Raises what ended the sessions, or EngineError if none has ended for `stale_after_s`."""
        if self._failure is not None:
            raise self._failure
        silent_s = time.monotonic() - self._lived_at
        if silent_s > stale_after_s:
            raise EngineError(
                f"no session has ended for {silent_s:.0f} s, and TRL's heartbeat_stale_after_s is {stale_after_s:g}"
            )

    def init_weight_transfer(self) -> None:
        """Nothing is needed."""

    def pause(self) -> None:
        """The engine sees to it that no line is sampled with two versions of the weights."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Give the engine new weights. Sessions under way go on with them."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the engine reads them on a stream of its own
        cast(TrainableEngine, self._engine).load_weights(iterator)

    def resume(self) -> None:
        """Nothing was paused."""

    def destroy(self) -> None:
        """`stop` has ended it all."""

    def _run(self) -> None:
        try:
            while not self._is_over:
                while self._room > 0:
                    running = sum(group.left for group in self._under_way)
                    if running and running + self.config.train.group_size > self._service.at_once:
                        break
                    self._begin()
                if (group := self._events.get()) is not None and not self._is_over:
                    self._finish(group)
        except BaseException as error:  # noqa: BLE001 - the trainer's thread raises it, in check_health
            self._failure = error

    def _begin(self) -> None:
        number, self._begun = self._begun, self._begun + 1
        group = _Sessions(number, self._task(number), self.config.train.group_size, self._engine.version)
        self._room -= 1
        self._under_way.add(group)
        seed = self.config.sampling.seeded(f"{self.config.seed}/group/{number}")

        def ended(index: int, trajectory: Trajectory) -> None:
            group.left -= 1
            self._lived_at = time.monotonic()
            self._events.put(None)

        group.done = self._service.begin(RolloutBatch(group.tasks, seed, self.config.branch), ended)
        group.done.add_done_callback(lambda _: self._events.put(group))

    def _task(self, number: int) -> Task:
        """All tasks once, in an order that the seed says, then again in another one."""
        epoch, index = divmod(number, len(self._tasks))
        order = list(range(len(self._tasks)))
        random.Random(f"{self.config.seed}/{epoch}").shuffle(order)
        return self._tasks[order[index]]

    def _finish(self, group: _Sessions) -> None:
        self._under_way.discard(group)
        trajectories = group.done.result()
        refuse_if_all_aborted(trajectories)
        seconds = time.monotonic() - group.began_s
        size = None if self.config.branch is None else self.config.branch.group_size
        scored = score(group.tasks, trajectories, self._grader, self._table, self._engine.version, size)
        credited = credit(scored, len(scored), self.config.credit, self.config.rewards.outcome)
        kernels = {f"kernels/{name}": value for name, value in self._service.kernel_numbers().items()}
        self.metrics_queue.put(batch_metrics([each.trajectory for each in credited], seconds) | kernels)
        rows = list(self._rows(group, scored, credited))
        if not rows:
            self._room += 1
        for row in rows:
            self.rollout_buffer.put((row, row is rows[-1]))

    def _group_taken(self) -> None:
        self._room += 1
        self._events.put(None)

    def _rows(
        self, group: _Sessions, scored: Sequence[ScoredTrajectory], credited: Sequence[CreditedTrajectory]
    ) -> Iterator[RolloutSample]:
        """The version of all of them is that of the group's oldest token, so that none of them is dropped alone."""
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        trained = [
            (item, each)
            for item, each in zip(scored, credited, strict=True)
            if not (each.trajectory.is_void or (self.config.train.mask.overlong and each.trajectory.is_overlong))
        ]
        version = self._updates + min([group.version, *(each.trajectory.version for _, each in trained)])
        totals = [sum(item.line_rewards) for item, _ in trained]
        for (_, each), total in zip(trained, totals, strict=True):
            trajectory = each.trajectory
            text = "".join(line.text + line.output for line in trajectory.lines)
            metrics = {"reward": total, "reward_std": float(np.std(totals))}
            metrics |= {f"rewards/{name}": sum(values) for name, values in each.components.items()}
            advantages = np.array(each.token_advantages, dtype=np.float64)
            typed = np.array(trajectory.sampled_mask, dtype=bool)
            prompt = np.zeros(len(trajectory.prompt_ids))
            # each typed token is in one row; those with advantage 0 too, because the trainer takes means over tokens
            for advantage in np.unique(advantages[typed]):
                mask = typed & (advantages == advantage)
                logprobs = np.where(mask, trajectory.logprobs, 0.0)
                yield RolloutSample(
                    prompt=[{"role": "user", "content": group.task.question}],
                    completion=[{"role": "assistant", "content": text}],
                    input_ids=np.array([*trajectory.prompt_ids, *trajectory.completion_ids], dtype=np.int64),
                    completion_mask=np.concatenate([prompt, mask]).astype(np.int64),
                    old_log_probs=np.concatenate([prompt, logprobs]).astype(np.float32),
                    advantage=float(advantage),
                    model_version=version,
                    group_id=group.number,
                    metrics=metrics,
                    enqueued_at=time.time(),
                )
                metrics = {}  # TRL takes means over the rows that have them, and these are means over sessions


class _Sessions:
    """Sessions on one task. `done` is there once they have begun."""

    done: Future[list[Trajectory]]

    def __init__(self, number: int, task: Task, size: int, version: int) -> None:
        self.number = number
        self.task = task
        self.tasks = [task] * size
        self.version = version
        """Of the engine's weights, when it began."""
        self.left = size
        """Sessions that have not ended."""
        self.began_s = time.monotonic()


class _Rows(queue.Queue[Any]):
    """Rows and whether they are their group's last; the reader gets the rows alone."""

    def __init__(self, group_taken: Callable[[], None]) -> None:
        super().__init__()
        self._group_taken = group_taken

    def _get(self) -> Any:
        row, is_last = super()._get()
        if is_last:
            self._group_taken()
        return row
