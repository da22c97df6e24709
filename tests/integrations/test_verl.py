"""Our credit in verl: its real registry, its real `compute_advantage`, and its own config."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from repl_rl.errors import ConfigError

pytestmark = [pytest.mark.more, pytest.mark.usefixtures("verl_path")]

MASK = [
    [1, 1, 0, 0, 1, 0, 0],  # two turns; the tool's answer after the second is the end
    [1, 0, 1, 0, 0, 1, 1],  # three
    [1, 1, 1, 0, 0, 0, 0],
    [1, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0],  # rejected by verl
]
REWARDS = [
    [0, 0, -0.5, 0, 0, 0, 1.0],
    [0, 0, 0.25, 0, 0, 0, 0],
    [0, 0, 2.0, 0, 0, 0, 0],
    [1.0, 0, 0, 0, 0, 0, 0],
    [0, 0, 5.0, 0, 0, 0, 0],
]
UIDS = ["b", "b", "a", "a", "a"]
RETURN_TO_GO = [
    [0.25, 0.25, 0, 0, 0.75, 0, 0],  # 0.5 and 1, beside 0.25 and 0.25
    [-0.25, 0, -0.75, 0, 0, -1.0, -1.0],  # 0.25, 0.25 and 0, beside 0.5, 1 and 1
    [1.0, 1.0, 1.0, 0, 0, 0, 0],
    [-1.0, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0],
]


def algorithm(**options: Any) -> Any:
    """verl's section as its trainer has it: from verl's own file, and closed to keys that are not there."""
    import verl
    from omegaconf import OmegaConf

    path = Path(verl.__file__).parent / "trainer" / "config" / "ppo_trainer.yaml"
    section = OmegaConf.merge(OmegaConf.load(path).algorithm, options)
    OmegaConf.set_struct(section, True)
    return section


def advantages(name: str, uids: list[str] | None = UIDS, **options: Any) -> list[list[float]]:
    """Through verl's own function."""
    import numpy as np
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    tensors = {"token_level_rewards": torch.tensor(REWARDS), "response_mask": torch.tensor(MASK)}
    uids_of_rows = {} if uids is None else {"uid": np.array(uids, dtype=object)}
    section = algorithm(adv_estimator=name, **options)
    data = compute_advantage(
        DataProto.from_dict(tensors, non_tensors=uids_of_rows),
        adv_estimator=section.adv_estimator,
        gamma=section.gamma,
        lam=section.lam,
        config=section,
    )
    assert torch.equal(data.batch["advantages"], data.batch["returns"])
    assert data.batch["advantages"].dtype is torch.float32
    made: list[list[float]] = data.batch["advantages"].tolist()
    return made


def test_verl_gets_an_advantage_for_each_turn() -> None:
    assert advantages("repl_rl/return_to_go") == RETURN_TO_GO
    halved = advantages("repl_rl/return_to_go", repl_rl={"baseline": "none", "gamma": 0.5})
    assert halved[0] == [0, 0, 0, 0, 1.0, 0, 0]  # -0.5 + 0.5 * 1, and 1
    assert halved[4] == [0] * 7


def test_our_rloo_is_verls_where_no_row_is_rejected() -> None:
    verls = advantages("rloo", uids=["b", "b", "a", "a", "c"])
    assert advantages("repl_rl/rloo", uids=["b", "b", "a", "a", "c"])[:4] == verls[:4]
    assert advantages("repl_rl/rloo") == advantages("repl_rl/rloo", uids=["b", "b", "a", "a", "c"])


def test_what_verl_can_name_is_all_that_needs_neither_states_nor_trees() -> None:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    ours = [name.removeprefix("repl_rl/") for name in ADV_ESTIMATOR_REGISTRY if name.startswith("repl_rl/")]
    assert ours == ["outcome", "dr_grpo", "rloo", "maxrl", "reinforce++", "return_to_go", "turn", "critic"]
    for name in ours:
        made = torch.tensor(advantages(f"repl_rl/{name}"))
        assert made.isfinite().all()
        assert made.any()
        assert not made[torch.tensor(MASK) == 0].any()
    with pytest.raises(ValueError, match="Unknown advantage estimator simply: repl_rl/gigpo"):
        advantages("repl_rl/gigpo")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": 0.9}, r"algorithm\.gamma is 0\.9, verl's discount of a token; .* \+algorithm\.repl_rl\.gamma=0\.9"),
        ({"uids": None}, "verl gave no uid with its rows"),
        ({"uids": list("abcde")}, "each of these 5 groups has one session"),
        ({"repl_rl": {"baseline": "state"}}, r"algorithm\.repl_rl\.baseline is state, and verl says of no turn"),
        ({"repl_rl": {"omega": 0.5}}, r"algorithm\.repl_rl \{'omega': 0\.5\}: .*omega means nothing to estimator"),
        ({"repl_rl": {"bseline": "none"}}, r"algorithm\.repl_rl \{'bseline': 'none'\}"),
    ],
)
def test_what_we_do_not_take_is_said_with_verls_keys(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        advantages("repl_rl/return_to_go", **arguments)


ASKS = """
import ray
import verl
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

@ray.remote(num_cpus=1)
def names():
    import verl.trainer.ppo.core_algos
    return len(verl.trainer.ppo.core_algos.ADV_ESTIMATOR_REGISTRY)

if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, runtime_env=get_ppo_ray_runtime_env())
    print(len(ADV_ESTIMATOR_REGISTRY), ray.get(names.remote()))
    ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("modules", "count"), [("repl_rl.integrations.verl", 22), ("", 14)])
def test_the_variable_reaches_the_workers_of_ray_where_verl_trains(
    modules: str, count: int, tmp_path: Path, verl_path: Path
) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    paths = [str(verl_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"VERL_USE_EXTERNAL_MODULES": modules, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "asks.py"],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.stdout.split() == [str(count)] * 2, done.stderr[-4000:]
