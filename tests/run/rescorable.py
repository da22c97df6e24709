"""A run whose sessions are worth rescoring: of each group, one is right, one wrong and full of expressions."""

from dataclasses import replace
from pathlib import Path

from made_trajectories import line, made

from repl_rl.config import CreditConfig, RewardsConfig, dump_config, parse_config
from repl_rl.credit.critic import Critic
from repl_rl.rollout import credit, reward_table, score
from repl_rl.tasks import grade
from repl_rl.trajectory import LineKind, StopReason, Task, Trajectory, write_jsonl

TASK = Task("t", "What is 6 * 7?", "42")


def right_session() -> Trajectory:
    lines = [line("x = 6 * 7", fingerprint="a"), line("submit(x)", LineKind.ANSWER, fingerprint="a")]
    return replace(made(lines), answer=("42",))


def wrong_session() -> Trajectory:
    """It looks at three things, and runs into an error between them."""
    lines = [line(str(number), LineKind.EXPRESSION, output=f"{number}\n", fingerprint="b") for number in (1, 2, 3)]
    failed = line("y", LineKind.EXCEPTION, "NameError", "NameError: name 'y' is not defined\n", fingerprint="b")
    return replace(made([*lines[:2], failed, lines[2]]), stop_reason=StopReason.MAX_LINES)


def write_rescorable(
    folder: Path, rewards: RewardsConfig | None = None, credit_config: CreditConfig | None = None, steps: int = 2
) -> None:
    """Steps of one group of two sessions each, as training leaves them."""
    rewards = rewards or RewardsConfig()
    credit_config = credit_config or CreditConfig()
    values = {
        "name": "run",
        "rewards": rewards.model_dump(mode="json"),
        "credit": credit_config.model_dump(mode="json"),
        "train": {"group_size": 2, "prompts_per_step": 1, "steps": steps},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump_config(parse_config(values)))
    table = reward_table(rewards, credit_config)
    critic = Critic() if credit_config.estimator == "critic" else None
    for step in range(steps):
        scored = score([TASK, TASK], [right_session(), wrong_session()], grade, table, step, 2)
        credited = credit(scored, 2, credit_config, rewards.outcome, critic)
        path = folder / "rollouts" / f"step_{step + 1:05d}.jsonl"
        write_jsonl(path, [item.trajectory for item in credited])
