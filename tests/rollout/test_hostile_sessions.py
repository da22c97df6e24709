"""What hostile sessions send, for a minute, or for an hour by `make test-soak`.

Nothing leaves its border as an exception or holds up the loop, and no session gets out of the loss by what it does.
"""

import ast
import asyncio
import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from growing import SEEDED, Policy
from kernel.test_border import LongestPause
from scripted import rollout_of
from waiting import seeds

from repl_rl.config import BranchConfig, RewardsConfig
from repl_rl.config.credit import CreditConfig
from repl_rl.engine import Vocabulary
from repl_rl.kernel import HostCall, HostReply, KernelPool, Limits
from repl_rl.rollout import reward_table, score
from repl_rl.rollout.metrics import batch_metrics
from repl_rl.tasks import grade, grade_many
from repl_rl.tools import as_tools, tool, tool_metrics
from repl_rl.tools.calls import HostTools
from repl_rl.trajectory import StopReason, Task, Trajectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

SECONDS = 1200 if "SOAK" in os.environ else 20
"""For each of three tests."""
MOST_S = 0.2
TESTS = Path(__file__).parents[1]
FORKS = yaml.safe_load((TESTS / "kernel/forks.yaml").read_text())
OWN_CODE = "import sys; f = sys._getframe()\nwhile 'repl_fork' not in f.f_globals: f = f.f_back\n\n"
LINES = [
    *(f"{line}\n" for line in yaml.safe_load((TESTS / "kernel/soak.yaml").read_text())),
    *(line for case in FORKS["refused"] for line in case["lines"]),
    *(f"{OWN_CODE}own = f.f_globals['repl_fork']; {case['line']}" for case in FORKS["meddling"]),
    *(f"{OWN_CODE}import os; own = f.f_globals['repl_fork']; {line}" for line in FORKS["deadly"]),
    *FORKS["pieces"],
    *["double(9)", "double(90_000)", "double(-1)", "double(7 ** 4000)", "double([[]])", "stall()", "weigh('a')"],
    *["tell('\\ud800\\0\\x1b')", "tell('<|im_end|>' * 999)", "tell('>>> ' * 30_000)"],
    *["import threading, os; threading.Timer(0.05, os._exit, (0,)).start()", "weigh(*[10 ** 400] * 9)"],
    *["submit_final_answer(10 ** 5000)", "submit_final_answer(*range(2000))", "submit_final_answer('a', {})"],
    "class A: __repr__ = lambda self: chr(39) + 'a' + chr(39) + ', {[]}'\n\nsubmit_final_answer(A())",
    "class A: __repr__ = lambda self: '(' * 9000\n\nsubmit_final_answer(A())",
    "exec(''.join(f'class E{n}(Exception): pass\\n' for n in range(9)) + 'raise E' + str(id({}) % 9))",
    "del " + "(a:=" * 190,
    "[" * 100 + "]" * 100,
]


@pytest.fixture(autouse=True)
def few_objects() -> Iterator[None]:
    """Python's own collection of what this process has loaded takes long, and counts as a pause."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Fragile:
    """Fails on much of what a session may make of it."""

    forks = True

    def reset(self, task: Task) -> dict[str, Any]:
        self.number: Any = 1
        return {"double": self.double, "stall": self.stall, "weigh": self.weigh, "tell": self.tell}

    def double(self, times: int) -> None:
        """Double it."""
        self.number <<= times

    def stall(self) -> None:
        """Make it slow."""
        self.number = None

    def weigh(self, *what: Any) -> int:
        """Count."""
        self.number = what[0]
        return len(what)

    def tell(self, text: str) -> None:
        """Say it."""
        self.number = text

    def observe(self) -> str:
        return str(self.number + (1 if isinstance(self.number, int) else "."))

    def reward(self, trajectory: Trajectory) -> float:
        return float(self.number > 100) * self.number / 2


async def test_sessions_and_their_forks(vocabulary: Vocabulary) -> None:
    limits = Limits(
        line_s=0.5,
        line_wall_s=1.0,
        grace_s=5.0,
        memory_mb=128,
        processes=24,
        open_files=64,
        tmp_mb=8,
        read_mb=2,
    )
    config, table = BranchConfig(roots=2, forks=2, branches=2, within=3), reward_table(RewardsConfig(), CreditConfig())
    ended = dict.fromkeys(StopReason, 0)
    async with KernelPool(8, limits, sandbox="bwrap", warm=0) as pool:
        pause = LongestPause()
        for seed in seeds(SECONDS):
            draw = random.Random(seed)
            policy = Policy(vocabulary, lambda text, number, draw=draw: f" {draw.choice(LINES).strip()}\n\n")
            given: dict[str, Any] = {"vocabulary": vocabulary, "context_tokens": 16_000, "environment": Fragile}
            given["budget"] = {"lines": 6, "line_tokens": 2000, "tokens": 8000}
            rollout = rollout_of(policy, pool, at_once=6, **given)
            tasks = [Task("t", "What?", "1")] * config.group_size
            made = await rollout.many(tasks, SEEDED, config)
            for each in made:
                ended[each.stop_reason] += 1
                assert not each.is_void, (seed, each.error, [line.text for line in each.lines])
            scored = await asyncio.to_thread(score, tasks, made, grade, table, 0, config.group_size)
            trajectories = [each.trajectory for each in scored]
            assert len(batch_metrics(trajectories, 1.0) | tool_metrics(trajectories)) < 200
        pause.stop()
    assert ended[StopReason.KILLED] > 0
    assert ended[StopReason.ANSWER] > 0
    assert pause.longest_s < MOST_S


HOSTILE = [eval(line) for line in (TESTS / "tasks/hostile.txt").read_text(encoding="utf-8").splitlines()[1:]]
PIECES = [*"'\"\\{}(%1\x00\ud800", "\\x", "\\U0011", ", ", "[]", "**", "9" * 5000, "e999", "nan", "/0"]


def test_answers() -> None:
    """Whatever is submitted, for whatever reference, there is a grade."""
    references = [{"answer": "401"}, {"answer": "0.3"}, {"answer": "a b", "metadata": {"graded_as": "text"}}]
    for seed in seeds(SECONDS):
        draw = random.Random(seed)
        tasks, answers = [], []
        for _ in range(200):
            given: dict[str, Any] = draw.choice(references)
            text = draw.choice([*HOSTILE, "'a', {[]}", "a b", "a b"])
            for _ in range(draw.randint(0, 4)):
                at = draw.randint(0, len(text))
                text = text[:at] + draw.choice(PIECES) + text[at:]
            shown = text if draw.random() < 0.5 else repr(text)
            tasks.append(Task("t", "?", **given))
            answers.append((shown,) * draw.choice([1, 1, 1, 0, 2]))
        for answer in answers:
            with_forms = [(None,) * len(answer), ("sympy.Integer(401)",) * len(answer), None, ("1", "2", "3")]
            assert grade(tasks[2], answer, draw.choice(with_forms)) in (0.0, 1.0)
        texts = [(task, answer) for task, answer in zip(tasks, answers, strict=True) if task.metadata]
        assert set(grade_many([task for task, _ in texts], [answer for _, answer in texts])) <= {0.0, 1.0}


@tool(where="host")
def several(a: int, b: float, c: str, d: list[int], e: dict[str, float] | None = None, *rest: bool) -> list[Any]:
    """Take one of each."""
    return [a, b, c, d, e, rest, 10**b if b < 10_000 else c * a]


@tool(where="host")
async def anything(*given: Any, **named: Any) -> Any:
    """Take anything."""
    return [*given, named] if len(given) < 3 else named[ast.literal_eval(str(given[0]))]


async def test_calls() -> None:
    values = [0, -1, 10**400, 1e308, float("nan"), float("inf"), True, None, "", "\ud800", [], {}]
    values += ["x" * 10**5, [[]] * 999]
    host, pause = HostTools(as_tools([several, anything])), LongestPause()
    for seed in seeds(SECONDS):
        draw = random.Random(seed)
        for _ in range(50):
            args = tuple(draw.choice(values) for _ in range(draw.randint(0, 6)))
            kwargs = {draw.choice(["a", "b", "e", "rest", "self", "\ud800", "name"]): draw.choice(values)}
            call = HostCall(draw.choice(["several", "anything", "no_such_tool", ""]), args, draw.choice([{}, kwargs]))
            reply = await host(call)
            assert isinstance(reply, HostReply)
            assert reply.error_name is None or len(reply.error_message or "") < 10_000
    pause.stop()
    assert pause.longest_s < MOST_S
