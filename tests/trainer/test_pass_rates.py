"""Problems that are neither always nor never solved are drawn more often, alike in all processes and after a resume."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pages import says
from recorded import RecordedTrainer, make_tasks_named, recorded, recorded_trainer

from repl_rl.errors import ConfigError, KernelError
from repl_rl.trainer import step
from repl_rl.trainer.pass_rates import PassRates
from repl_rl.trajectory import Task, Trajectory

IDS = ["half", "new", "never", "always"]
WEIGHTS = {"half": 1.0, "new": 0.5, "never": 0.1, "always": 0.05}
TASKS = make_tasks_named("easy", "fair", "hard", "more")


def known() -> PassRates:
    made = PassRates()
    made.learn([("half", 0.5), None, ("never", 0.0), ("always", 1.0)])
    return made


def test_they_are_drawn_as_their_weights_say() -> None:
    """Pairs in order: the chance of the first by weight, of the second by weight among those that are left."""
    rates, random, draws = known(), Random(3), 6000
    found = Counter(tuple(IDS[place] for place in rates.draw(IDS, 2, random)) for _ in range(draws))
    for first, second in permutations(IDS, 2):
        chance = WEIGHTS[first] / 1.65 * WEIGHTS[second] / (1.65 - WEIGHTS[first])
        assert found[first, second] / draws == pytest.approx(chance, abs=0.025)
    assert sorted(rates.draw(IDS, 6, random))[::3] in ([0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3], [0, 0], [1, 1])


def test_the_newest_group_counts_as_much_as_all_before() -> None:
    rates = known()
    rates.learn([("half", 1.0), ("half", 1.0), ("new", 0.25)])
    assert rates.rates == {"half": 0.875, "never": 0.0, "always": 1.0, "new": 0.25}
    shares = {"tasks/between": 0.25, "tasks/resting": 0.125, "tasks/retired": 0.125, "tasks/unseen": 0.5}
    assert rates.numbers(8) == shares


def drawn_as_often(rate: float, size: int = 8) -> float:
    """How often a problem that is solved so often is drawn in the long run, beside one that is always in between.

    The running rate from draw to draw is a chain, here on a grid of 1,024; the time between two draws is one over the
    weight of where it stands.
    """
    grid = 1024
    shares = [math.comb(size, right) * rate**right * (1 - rate) ** (size - right) for right in range(size + 1)]
    chances = Counter({round(right / size * grid): chance for right, chance in enumerate(shares)})
    for _ in range(30):
        later: Counter[int] = Counter()
        for at, chance in chances.items():
            for right, share in enumerate(shares):
                later[round((at + right / size * grid) / 2)] += chance * share  # type: ignore[assignment]
        chances = later
    return 1 / sum(chance / PassRates._weight(at / grid) for at, chance in chances.items())


@pytest.mark.more
def test_how_narrow_the_band_is_in_the_long_run() -> None:
    """The figures of docs/algorithms.md, and the band that docs/config.md names: drawn half as often, or more."""
    assert drawn_as_often(0.5) == pytest.approx(1.0, abs=1e-3)
    assert says("algorithms.md", f"one in {1 / 0.8**8:.0f} groups of a problem that is solved a fifth of the time")
    assert says(
        "algorithms.md",
        f"is drawn {drawn_as_often(0.2):.2f} times as often as one that is solved half of the time, one that is solved "
        f"15% of the time {drawn_as_often(0.15):.2f} times, 80% {drawn_as_often(0.8):.2f} times, and 85% "
        f"{drawn_as_often(0.85):.2f} times",
    )
    for rate in (0.2, 0.75):
        assert drawn_as_often(rate) > 0.5
    for rate in (0.15, 0.2, 0.8):
        assert drawn_as_often(rate, 16) > drawn_as_often(rate)
    for rate in (0.15, 0.8):
        assert drawn_as_often(rate) < 0.5


def of_their_names(task: Task, index: int) -> Trajectory:
    return recorded(task, index, is_right=task.id == "easy" or (task.id != "hard" and index == 0))


def trainer_of(folder: Path, steps: int) -> RecordedTrainer:
    return recorded_trainer(
        folder, of_their_names, TASKS, task_sampling="pass_rate", max_steps=steps, save_strategy="steps", save_steps=6
    )


@pytest.mark.more
def test_a_run_comes_to_what_teaches_and_goes_on_alike_after_a_checkpoint(tmp_path: Path) -> None:
    whole = trainer_of(tmp_path / "a", 12)
    whole.train()
    drawn = [tuple(sorted(set(call))) for call in whole.service.calls]
    late = Counter(name for call in drawn[4:] for name in call)
    assert late["fair"] + late["more"] > 2 * (late["easy"] + late["hard"])
    assert whole.pass_rates.rates["easy"] == 1.0
    assert whole.pass_rates.rates["hard"] == 0.0
    assert whole.state.log_history[-2]["tasks/between"] == 0.5
    first = trainer_of(tmp_path / "b", 12)
    first.args.max_steps = 6
    first.train()
    resumed = trainer_of(tmp_path / "b", 12)
    resumed.train(resume_from_checkpoint=True)
    assert [*first.service.calls, *resumed.service.calls] == whole.service.calls
    assert resumed.pass_rates.rates == whole.pass_rates.rates


def test_what_is_drawn_again_has_told_its_rate(tmp_path: Path) -> None:
    trainer = recorded_trainer(tmp_path, of_their_names, TASKS, task_sampling="pass_rate", redraws=2, oversample=2)
    trainer.batch()
    drawn = {name for call in trainer.service.calls for name in call}
    assert len(trainer.service.calls) > 1
    assert trainer.pass_rates.rates.keys() == drawn


@pytest.mark.parametrize("fails", [False, True])
def test_a_process_that_can_draw_none_again_gathers_as_often_as_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    trainer = recorded_trainer(tmp_path, of_their_names, TASKS, task_sampling="pass_rate", redraws=1)
    gathered: list[Sequence[Any]] = []
    monkeypatch.setattr(step, "gather_objects", lambda values: gathered.append(values) or list(values))
    roll_out = trainer.service.roll_out

    def rolled_out(*arguments: Any) -> Any:
        if fails and trainer.service.calls:
            raise KernelError("not a single kernel")
        return roll_out(*arguments)

    monkeypatch.setattr(trainer.service, "roll_out", rolled_out)
    trainer.batch()
    _ids, redrawn, shares = gathered
    assert len(shares) == (2 if fails else 2 + redrawn[0])


def test_groups_that_are_sampled_ahead_can_t_be_drawn_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.asynchronous and tasks.sampling 'pass_rate' exclude one another"):
        recorded_trainer(tmp_path, of_their_names, TASKS, task_sampling="pass_rate", asynchronous={})
