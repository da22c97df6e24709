"""What TRL's checkpoints lack so that a resumed run goes on as if it had never stopped.

TRL's checkpoints hold weights, optimiser, schedule and random states. Added here, in one more file per process:

- the batch and the position in it, if one generated batch lasts for several steps (`num_iterations`,
  `steps_per_generation`): TRL would sample a new one and stay out of phase from then on;
- the number of weight updates that the engine has seen, which trajectories carry as their version;
- what the critic remembers of earlier batches (`credit.estimator: critic`), and how often each problem was solved;
- with `train.asynchronous`, which groups have been trained on. The others are rolled out again.

With `sync_ref_model`, the reference model follows the policy in memory alone. Its weights are one more file, which the
main process writes.

The problems' order after the first epoch follows from the seed (`EpochSampler`); TRL's sampler restarts its shuffles in
each new process. Random numbers of rollouts need no state either: they follow from the run's seed, the step and the
trajectory's index.

Not covered: the version of servers, which outlive the run; iterable data sets, which have no sampler; with
`sync_ref_model`, a reference model that is divided among processes (FSDP, DeepSpeed's ZeRO-3). Its weights are not
saved, and a checkpoint without them is refused once they would differ from those of the start.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from repl_rl.config import SeededSampling
from repl_rl.credit.critic import Critic
from repl_rl.engine import Engine, SharedEngine
from repl_rl.errors import RunError
from repl_rl.files import open_file
from repl_rl.rollout import RolloutService
from repl_rl.trainer.asynchronous import EpochSampler
from repl_rl.trainer.pass_rates import PassRates
from repl_rl.trainer.step_log import KeepRun, TraceSteps
from repl_rl.trainer.trainer_queue import TrainerQueue

logger = logging.getLogger(__name__)


class ResumableTrainer(GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` that saves and restores its whole position, and seeds the sampling of every batch."""

    engine: Engine
    service: RolloutService

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.rollout_dir: str | None = self.args.rollout_dir
        if self.args.keep_run and self.rollout_dir is None:
            self.add_callback(KeepRun(self))
        if self.args.trace:
            self.add_callback(TraceSteps(self))
        self._batches: Counter[tuple[int, str]] = Counter()
        """The number of batches by step and mode, kept only for the step in progress."""
        self.critic = Critic()
        self.pass_rates = PassRates()
        self.queue = TrainerQueue(self)
        if self.args.sync_ref_model and self._divides_models and self.accelerator.is_main_process:
            logger.warning(
                "sync_ref_model with a model that is divided among processes: checkpoints will lack the reference "
                "model, so training can't be resumed after step %d, when it has changed for the first time",
                self.args.ref_model_sync_steps,
            )

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Like TRL's `train`, but `engine.deterministic` makes torch use deterministic operations, and passes are
        counted anew, as steps are: TRL would go on within the batch in which the training before was stopped."""
        self._step = 0
        self._buffered_inputs = None
        with _deterministic_algorithms(self.args.engine.deterministic):
            return super().train(*arguments, **named)

    def _run_epoch(self, *arguments: Any, **named: Any) -> None:
        """As transformers', but none of a run that has all its steps already: it would train one more."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*arguments, **named)

    def batch_sampling(self, count: int) -> SeededSampling:
        """The sampling of this process's `count` trajectories of the next batch: that of one process with the whole
        batch. No two batches of a run have the same seed."""
        step = self.state.global_step
        mode = "train" if self.model.training else "eval"
        for earlier in [key for key in self._batches if key[0] != step]:
            del self._batches[earlier]
        number = self._batches[step, mode]
        self._batches[step, mode] += 1
        return self._seeded(f"{mode}/{step}/{number}/0", self.accelerator.process_index * count)

    def group_sampling(self, group: int) -> SeededSampling:
        """The sampling of the group of this number in the order of all, as it would be in its batch."""
        batch, index = divmod(group, self.groups_per_batch)
        passes_of_batch = self.args.steps_per_generation * self.num_iterations
        passes_of_step = self.args.gradient_accumulation_steps
        step = batch * passes_of_batch // passes_of_step
        first_batch_of_step = -(-step * passes_of_step // passes_of_batch)  # rounded up
        number = batch - first_batch_of_step
        process, _ = self.place
        groups_before = process * self.groups_per_batch + index
        return self._seeded(f"train/{step}/{number}/0", groups_before * self.num_generations)

    @property
    def groups_per_batch(self) -> int:
        """Groups that are rolled out at a time in each of the processes that do so."""
        trajectories: int = self.args.per_device_train_batch_size * self.args.steps_per_generation
        groups_of_all: int = trajectories * self.accelerator.num_processes // self.num_generations
        _, processes = self.place
        return groups_of_all // processes

    @property
    def place(self) -> tuple[int, int]:
        """Which of how many processes rolls out for this one: itself, or the only one that does so."""
        if self.service.is_shared:
            return 0, 1
        return self.accelerator.process_index, self.accelerator.num_processes

    def _seeded(self, batch: str, first: int) -> SeededSampling:
        sampling: SeededSampling = self.args.sampling.seeded(f"{self.args.seed}/{batch}")
        return sampling.model_copy(update={"first": first})

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler[int]:
        sampler: Sampler[int] = super()._get_train_sampler(dataset)
        if not (isinstance(sampler, RepeatSampler) and sampler.shuffle):
            return sampler
        return EpochSampler(sampler, lambda: int(self.state.epoch or 0))

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        is_inside = self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        # a resumed run loads the weights of this step into the engine again, which counts once more
        counts_again = getattr(self, "_last_loaded_step", -1) == self.state.global_step
        position = {
            "micro_step": self._step,
            "batch": self._buffered_inputs if is_inside else None,
            "critic": torch.from_numpy(self.critic.sums),
            "pass_rates": self.pass_rates.rates,
            "queue": self.queue.position(),
            "version": self.engine.version - int(counts_again),
        }
        torch.save(position, self._position_path(output_dir))
        if self.args.sync_ref_model and not self._divides_models and self.args.should_save:
            weights = {name: weight.data for name, weight in self._reference.named_parameters()}
            torch.save(weights, _reference_path(output_dir))
        self.accelerator.wait_for_everyone()  # before the state is written that makes the checkpoint complete

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if checkpoint is None:
            return
        device = self.accelerator.device
        where = "cpu" if device.type == "cpu" else device  # torch can't load to cpu:0, as it is in several processes
        if self.args.sync_ref_model:
            self._load_reference(checkpoint)
        if not self._position_path(checkpoint).is_file():
            return
        with open_file(self._position_path(checkpoint)) as file:
            position = torch.load(file, map_location=where, weights_only=True)
        self._step = position["micro_step"]
        self._buffered_inputs = position["batch"]
        self._last_loaded_step = -1
        self.critic.sums = position["critic"].cpu().numpy()
        self.pass_rates.rates = position.get("pass_rates", {})
        self.queue.restore(position["queue"])
        if not isinstance(self.engine, SharedEngine):
            # never reuse an earlier number: the cache identifies keys and values by it
            self.engine.version = max(position["version"], self.engine.version)  # type: ignore[misc]

    def _position_path(self, checkpoint: str) -> Path:
        return Path(checkpoint) / f"position_{self.accelerator.process_index}.pt"

    def _load_reference(self, checkpoint: str) -> None:
        """Give the reference model the weights that it had at the checkpoint. Raises RunError if they are not there."""
        path = _reference_path(checkpoint)
        if not path.is_file():
            if self.state.global_step < self.args.ref_model_sync_steps:
                return  # it has not changed by then
            raise RunError(
                f"{checkpoint} does not hold the reference model, which sync_ref_model had changed by step "
                f"{self.state.global_step}: the run was without sync_ref_model, its model was divided among processes "
                "(FSDP, ZeRO-3), or an earlier version of repl_rl wrote it. The KL term would pull towards the model "
                f"of the start; begin a new run with {checkpoint} as its model"
            )
        with open_file(path) as file:
            weights = torch.load(file, map_location="cpu", weights_only=True)
        for name, weight in self._reference.named_parameters():
            weight.data.copy_(weights[name])

    @property
    def _reference(self) -> torch.nn.Module:
        """The model that the KL term pulls towards, without what wraps it."""
        model: torch.nn.Module = self.accelerator.unwrap_model(self.ref_model)
        return model

    @property
    def _divides_models(self) -> bool:
        """Whether each process holds a part of the weights alone."""
        deepspeed = self.accelerator.state.deepspeed_plugin
        return bool(self.is_fsdp_enabled or (deepspeed is not None and deepspeed.zero_stage == 3))


def _reference_path(checkpoint: str) -> Path:
    return Path(checkpoint) / "reference.pt"


@contextmanager
def _deterministic_algorithms(deterministic: bool) -> Iterator[None]:
    """Use torch's deterministic algorithms in the whole process. Warns about operations that have none."""
    mode_before = torch.are_deterministic_algorithms_enabled()
    warn_only_before = torch.is_deterministic_algorithms_warn_only_enabled()
    if deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode_before, warn_only=warn_only_before)
