"""What TRL rolls out at a time is at least a step's groups, and no more than there are problems."""

from typing import Any

import pytest

from repl_rl.config import parse_config
from repl_rl.errors import ConfigError
from repl_rl.run.training import _groups_of_batch, check_inputs

EIGHTHS: dict[str, Any] = {"prompts_per_step": 8, "group_size": 8, "micro_batch": 8}


def checked(trl: dict[str, Any], problems: int = 16, **train: Any) -> int:
    """How many problems a run with these settings would train on."""
    tasks = {"families": ["gcd"], "train": problems}
    values = {"tasks": tasks, "train": EIGHTHS | {"trl": trl} | train, "eval": {"problems": 1}}
    return len(check_inputs(parse_config(values)).train_tasks)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("trl", "message"),
    [
        ({"steps_per_generation": 1}, r"train\.trl\.steps_per_generation: 1: 8 of the 64 trajectories"),
        ({"generation_batch_size": 16}, r"train\.trl\.generation_batch_size: 16: 16 of the 64 .* train\.micro_batch"),
        ({"steps_per_generation": 2, "num_iterations": 2}, r"steps_per_generation: 2: 16 of the 64 trajectories"),
    ],
)
def test_a_step_of_several_batches_is_refused_with_the_way_out(
    trl: dict[str, Any], message: str, processes: int
) -> None:
    """Each of them would write the step's file of rollouts anew."""
    micro_batch = 8 // processes  # as many trajectories of all processes
    config = parse_config({"train": EIGHTHS | {"trl": trl, "micro_batch": micro_batch, "processes": processes}})
    with pytest.raises(ConfigError, match=message):
        _groups_of_batch(config.train)
    if processes == 1:
        with pytest.raises(ConfigError, match=message):
            checked(trl)


@pytest.mark.parametrize(
    ("trl", "groups"),
    [
        ({}, 8),
        ({"steps_per_generation": 8}, 8),
        ({"num_iterations": 3}, 8),
        ({"steps_per_generation": 4, "num_iterations": 2}, 4),
        ({"steps_per_generation": 32}, 32),
        ({"generation_batch_size": 128}, 16),
    ],
)
def test_groups_that_are_rolled_out_at_a_time(trl: dict[str, Any], groups: int) -> None:
    assert _groups_of_batch(parse_config({"train": EIGHTHS | {"trl": trl}}).train) == groups


def test_a_batch_of_several_steps_needs_as_many_problems() -> None:
    """TRL would end without a step, and the run would count as interrupted."""
    lasting: dict[str, Any] = {"trl": {"steps_per_generation": 4}, "micro_batch": None}
    message = r"there are 16 different problems to train on, and 32 are rolled out at a time \(train\.trl\.steps_per"
    with pytest.raises(ConfigError, match=message):
        checked(**lasting)
    assert checked(**lasting, problems=32) == 32
    with pytest.raises(ConfigError, match=r"a step takes train\.prompts_per_step 8; lower that, raise tasks\.train"):
        checked({}, problems=7)
