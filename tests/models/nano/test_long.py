"""nano-long: what it is shown, and the checkpoint as it ships: it gets on with long sessions, and wastes lines."""

from __future__ import annotations

from collections import Counter

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from repl_rl.bench.branching import habits_seen, move_of, overrides
from repl_rl.config import load_config
from repl_rl.models import resolve_model
from repl_rl.models.nano import LONG_PATH
from repl_rl.models.nano.long import LOCK_HABITS, MOST_LINES, lock_habits
from repl_rl.models.nano.sessions import LONG_FAMILIES, make_long
from repl_rl.rollout.service import open_service
from repl_rl.tasks import make_tasks
from repl_rl.tasks.worlds.lock import LockWorld
from repl_rl.tasks.worlds.world import LENGTHS, value
from repl_rl.trajectory import LineKind

RECORDS = make_long(400, seed=3)


def test_each_family_has_its_share_of_training_problems() -> None:
    count = Counter(record.task.family for record in RECORDS)
    assert count == {family: round(share * 400) for family, share in LONG_FAMILIES.items()}
    assert len({record.task.id for record in RECORDS}) == len(RECORDS)


def test_no_session_types_more_lines_than_it_may() -> None:
    for record in RECORDS:
        typed = sum(segment.sampled for segment in record.segments)
        assert typed <= MOST_LINES * record.task.metadata["operands"][1]
        assert record.answer == ("1",) or typed == int(MOST_LINES * record.task.metadata["operands"][1])


@pytest.mark.parametrize("length", LENGTHS)
def test_about_a_quarter_of_the_locks_open_at_each_length(length: int) -> None:
    worlds = [LockWorld(number, length) for number in range(40)]
    lines = int(MOST_LINES * length)
    opened = [value(world, world.start, lines, lock_habits(world, *LOCK_HABITS[length])) for world in worlds]
    assert 0.18 < sum(opened) / len(opened) < 0.32


def test_the_checkpoint_is_small_and_has_room_for_the_longest_session() -> None:
    assert resolve_model("nano-long") == str(LONG_PATH)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(LONG_PATH), AutoTokenizer.from_pretrained(LONG_PATH)
    assert model.num_parameters() < 1_000_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 2048
    assert sum(path.stat().st_size for path in LONG_PATH.iterdir()) <= 4_000_000


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
def test_the_checkpoint_has_the_habits_that_it_was_shown(length: int) -> None:
    config = load_config("locks", overrides(length, "rloo", 0, 1))
    tasks = make_tasks(f"lock-{length}", 64, seed=1, split="heldout")
    with open_service(config) as service:
        made = service.generate(tasks, config.sampling.seeded("habits"))
    sessions = [
        {
            "lock": task.metadata["operands"],
            "moves": [move_of(line.text, line.kind is LineKind.ANSWER) for line in each.lines],
            "own": len(each.lines),
        }
        for task, each in zip(tasks, made, strict=True)
    ]
    idle, wrong = habits_seen([{"credit": sessions}])
    assert (wrong, idle) == pytest.approx(LOCK_HABITS[length], abs=0.08)
    assert 3 <= sum(each.environment_reward or 0 for each in made) <= 32
