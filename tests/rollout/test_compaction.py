"""A session that is longer than the context: its transcript is compacted, and its interpreter lives on."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vocabularies
from exactness import (
    RecordingEngine,
    assert_masked_text_is_the_outputs,
    assert_the_engine_was_given_the_sequence_so_far,
)
from scripted import AskedEngine, rollout_of

from repl_rl.config import BranchConfig
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool, Limits
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.metrics import batch_metrics
from repl_rl.trajectory import StopReason, Task, Trajectory, read_jsonl, write_jsonl
from repl_rl.utils.threads import BackgroundLoop

pytestmark = pytest.mark.more

Pools = Callable[..., KernelPool]
TASK = Task("t", "Add.", "780")
TYPED = [" total = 0\n", *(line for n in range(40) for line in (f" total += {n}\n", " total\n"))]


def compacting(
    engine: Any, pool: KernelPool, dialect: str = "python", context_tokens: int = 200, **budget: Any
) -> Rollout:
    given: dict[str, Any] = {"environment": budget.pop("environment", None), "context_tokens": context_tokens}
    given["budget"] = {"compact_at": 0.9, "lines": 200, "tokens": 5000, "line_tokens": 60, "seconds": 3600}
    given["budget"] |= {"repeats": None, **budget}
    return rollout_of(engine, pool, dialect=dialect, **given)


@pytest.fixture
def pool(kernel_pools: Pools) -> KernelPool:
    return kernel_pools(Limits(line_s=60), size=3)


Play = Callable[..., tuple[Trajectory, list[Any]]]
"""Types lines, and returns what the engine was given and sampled besides."""


@pytest.fixture
def play(loop: BackgroundLoop, pool: KernelPool) -> Play:
    def play(typed: Any, task: Task = TASK, **settings: Any) -> tuple[Trajectory, list[Any]]:
        engine = RecordingEngine(AskedEngine(vocabularies.nano(), typed))  # type: ignore[arg-type]
        [trajectory] = loop.run(compacting(engine, pool, **settings).many([task]))
        return trajectory, engine.calls

    return play


def test_a_session_goes_on_beyond_its_context(play: Play, tmp_path: Path) -> None:
    trajectory, calls = play([*TYPED, " submit_final_answer(total)\n"])
    vocabulary = vocabularies.nano()
    assert (trajectory.answer, trajectory.stop_reason) == (("780",), StopReason.ANSWER)
    assert len(trajectory.lines) == 82
    assert len(trajectory.completion_ids) > 400
    assert len(trajectory.compactions) > 2
    parts = trajectory.parts
    assert_the_engine_was_given_the_sequence_so_far(parts, calls)
    assert max(len(given) + len(line.ids) for given, line in calls) <= 200
    assert_masked_text_is_the_outputs(trajectory, vocabulary)
    assert [line.text for part in parts for line in part.lines] == [line.text for line in trajectory.lines]
    assert all(part.sampled_mask[-1] for part in parts), "nothing follows what a part has sampled last"
    assert sum(sum(part.sampled_mask) for part in parts) == sum(trajectory.sampled_mask)
    first = trajectory.compactions[0]
    before = [line for line in trajectory.lines if line.start < first.start]
    left_out = int(re.findall(r"# (\d+) lines are left out", first.prompt)[0])
    assert 1 <= len(before) - left_out <= 4
    kept = "".join(line.text + line.output for line in before[left_out:])
    told = f" # {left_out} lines are left out here; what they have bound is still there: total (int)\n>>>"
    assert first.prompt == trajectory.prompt + told + kept
    assert vocabulary.decode(first.prompt_ids) == first.prompt
    assert first.prompt_ids[: len(trajectory.prompt_ids)] == trajectory.prompt_ids
    kept_ids = trajectory.completion_ids[before[left_out].start : first.start]
    assert first.prompt_ids[-len(kept_ids) :] == kept_ids, "the same tokens, not encoded again"
    assert batch_metrics([trajectory], 1.0)["compactions_per_trajectory"] == len(trajectory.compactions)
    write_jsonl(tmp_path / "made.jsonl", [trajectory])
    assert list(read_jsonl(tmp_path / "made.jsonl")) == [trajectory]
    text, written = (tmp_path / "made.jsonl").read_text(), f'"start": {first.start}, "prompt":'
    assert written in text
    for spoilt in ('"start": 3, "prompt":', '"start": "x", "prompt":'):
        (tmp_path / "spoilt.jsonl").write_text(text.replace(written, spoilt))
        assert list(read_jsonl(tmp_path / "spoilt.jsonl", notes := [])) == []
        assert notes


def test_blocks_and_what_names_are_bound_to_are_whole(play: Play) -> None:
    """Nothing is compacted inside of a block; names that begin with _ and those of the session's own are not told."""
    block = [" def f(x):\n", *(f"     x += {n}\n" for n in range(12)), "     return x\n", "\n"]
    typed = [" import math; _hidden = 1; words = ['a']\n", *block, " f(0)\n", *[" words.append('b')\n"] * 9]
    trajectory, _ = play([*typed, " submit_final_answer(_hidden, len(words), f(1), _)\n"], context_tokens=260)
    assert trajectory.answer == ("1", "10", "67", "66")
    starts = {line.start: number for number, line in enumerate(trajectory.lines)}
    assert trajectory.compactions
    for each in trajectory.compactions:
        assert trajectory.lines[starts[each.start] - 1].output.endswith(">>>")
        assert "math (module), words (list)" in each.prompt
        assert "submit_final_answer (" not in each.prompt
        assert "_hidden (" not in each.prompt


def test_the_last_output_is_kept_or_the_session_ends(play: Play) -> None:
    ended, _ = play([" 1\n", " print('word ' * 150)\n", " 2\n"])
    assert ended.stop_reason is StopReason.CONTEXT
    assert [line.text for line in ended.lines] == [" 1\n", " print('word ' * 150)\n"]
    assert ended.compactions == ()
    kept, _ = play([*[" print('word ' * 30)\n"] * 6, " submit_final_answer(2)\n"], context_tokens=300)
    assert kept.answer == ("2",)
    assert kept.compactions
    assert all(each.prompt.endswith(f"{'word ' * 30}\n>>>") for each in kept.compactions)


@pytest.mark.parametrize(
    ("spoilt", "answer"),
    [
        ("print = type = globals = list = None", ("780",)),
        ("import builtins; builtins.print = lambda *a, **k: __import__('os')._exit(0)", None),
    ],
)
def test_a_session_that_spoils_the_list_of_names(play: Play, spoilt: str, answer: Any) -> None:
    trajectory, _ = play([f" {spoilt}\n", *TYPED, " submit_final_answer(total)\n"])
    assert trajectory.answer == answer
    if answer is None:
        assert trajectory.stop_reason is StopReason.KILLED
    else:
        assert "and nothing is bound" in trajectory.compactions[0].prompt


def test_sessions_of_an_environment_are_compacted_too(play: Play) -> None:
    task = Task("t", "Add", "", metadata={"context": "x"})
    trajectory, calls = play([*TYPED, " FINAL(total)\n"], task, context_tokens=700, environment="rlm")
    assert trajectory.answer == ("780",)
    assert trajectory.compactions
    assert "FINAL (" not in trajectory.compactions[0].prompt
    assert_the_engine_was_given_the_sequence_so_far(trajectory.parts, calls)


async def test_what_can_not_be_compacted_is_refused(pool: KernelPool) -> None:
    engine = AskedEngine(vocabularies.nano(), [])
    with pytest.raises(
        ConfigError, match=r"budget.compact_at 0.9: dialect 'ipython' has no form .*dialect.name python"
    ):
        compacting(engine, pool, "ipython")
    with pytest.raises(ConfigError, match=r"takes lines out of a transcript that branches would begin with"):
        await compacting(engine, pool).many([TASK] * 4, branch=BranchConfig(roots=2, forks=1, branches=2))
