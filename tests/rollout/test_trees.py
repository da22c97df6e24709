"""Trees in the rollout: real forks of real sandboxed interpreters, a policy that types what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from kernel_fakes import FakeKernelPool

from repl_rl.config import BranchConfig, BudgetConfig, SamplingConfig
from repl_rl.dialect import PythonDialect
from repl_rl.engine import Finish, SampledLine, Vocabulary, load_vocabulary
from repl_rl.errors import ConfigError, RewardError
from repl_rl.kernel import KernelPool
from repl_rl.models.nano import NANO_PATH
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.scheduler import Cut
from repl_rl.rollout.setup import Extensions, RolloutSetup
from repl_rl.rollout.tree import Trees
from repl_rl.tools.environments import environment_factory
from repl_rl.trajectory import StopReason, Task, Trajectory, whole_session

TASK = Task("t", "What?", "1")
SEEDED = SamplingConfig().seeded("7")


class Policy:
    """Types `line(text so far, number of the answer)`; token log-probabilities are `logprob` of the same."""

    version = 0

    def __init__(
        self,
        vocabulary: Vocabulary,
        line: Callable[[str, int], str],
        logprob: Callable[[str], float] = lambda line: -0.25,
    ) -> None:
        self.sampled = 0
        self._vocabulary, self._line, self._logprob = vocabulary, line, logprob
        self._answers = 0

    @asynccontextmanager
    async def slot(self, tokens: int, depth: int = 0) -> AsyncIterator[Policy]:
        yield self

    async def sample_line(self, ids: Sequence[int], max_tokens: int, sampling: SamplingConfig) -> SampledLine:
        typed = self._line(self._vocabulary.decode(ids), self._answers)
        self._answers += 1
        sampled = self._vocabulary.encode_output(typed)
        self.sampled += len(sampled)
        return SampledLine(tuple(sampled), (self._logprob(typed),) * len(sampled), Finish.NEWLINE)

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(str(NANO_PATH))


def lines_so_far(text: str) -> int:
    return text.count(">>>") + text.count("...") - 1


def typing(*lines: str) -> Callable[[str, int], str]:
    """The same lines in every session, the last one again and again."""
    return lambda text, number: lines[min(lines_so_far(text), len(lines)) - 1]


def grow(
    policy: Policy,
    vocabulary: Vocabulary,
    config: BranchConfig,
    kernels: Any = None,
    groups: int = 1,
    environment: Any = None,
    sampling: SamplingConfig = SEEDED,
    cut: Cut | None = None,
    budget: BudgetConfig | None = None,
    size: int = 16,
) -> list[Trajectory]:
    """One batch of trees; with real kernels unless others are given."""
    setup = RolloutSetup(
        vocabulary,
        PythonDialect(None),
        context_tokens=4096,
        budget=budget or BudgetConfig(lines=6, tokens=2000),
        at_once=size,
        extensions=Extensions(environment=None if environment is None else environment_factory(environment)),
    )
    tasks = [TASK] * config.group_size * groups

    async def go() -> list[Trajectory]:
        if kernels is not None:
            return await Rollout(policy, kernels, setup).many(tasks, sampling, cut, config)
        async with KernelPool(size, sandbox="bwrap") as pool:
            made = await Rollout(policy, pool, setup).many(tasks, sampling, cut, config)
            async with AsyncExitStack() as stack, asyncio.timeout(60):  # no session and no fork is left in the pool
                for _ in range(size):
                    await stack.enter_async_context(pool.session())
            return made

    return asyncio.run(go())


def texts(trajectory: Trajectory) -> list[str]:
    return [line.text for line in trajectory.lines]


def test_branches_go_on_in_forks_of_their_roots_interpreter(vocabulary: Vocabulary) -> None:
    """Each line typed is a number of its own, so what a session prints says which lines it has run."""
    policy = Policy(
        vocabulary,
        lambda text, number: " x = []\n" if lines_so_far(text) == 1 else f" x.append({number}); x\n",
    )
    config = BranchConfig(roots=2, forks=1, branches=3)
    made = grow(policy, vocabulary, config)
    assert [each.branch and each.branch.by for each in made] == [None, None, "fork", "fork", "fork", "fork"]
    assert [each.branch and each.branch.parent for each in made] == [None, None, 0, 0, 1, 1]
    assert policy.sampled == sum(each.sampled_tokens for each in made)  # each token belongs to one trajectory
    for each in made:
        session = whole_session(each, made)
        assert len(session.lines) == 6
        assert session.prompt_ids == made[0].prompt_ids
        numbers = [int(line.text.split("(")[1].split(")")[0]) for line in session.lines[1:]]
        assert session.lines[-1].shown == f"{numbers}\n"
        assert (
            vocabulary.decode(session.completion_ids)
            == "".join(line.text + line.output for line in session.lines[:-1]) + session.lines[-1].text
        )
    for branch in made[2:]:
        assert branch.branch is not None
        parent = made[branch.branch.parent]
        assert branch.branch.weight == pytest.approx(1 / 3)
        assert 1 <= branch.branch.line < 6
        assert branch.prompt_ids == parent.prompt_ids + parent.completion_ids[: parent.lines[branch.branch.line].start]
        assert vocabulary.decode(branch.prompt_ids) == branch.prompt
        assert set(texts(branch)).isdisjoint(texts(parent))


@pytest.mark.parametrize("kernels", ["real", "that do not fork"])
def test_where_nothing_can_be_forked_the_lines_run_again(vocabulary: Vocabulary, kernels: str) -> None:
    policy = Policy(
        vocabulary, lambda text, number: f" x = {number}; [k for k in [*globals(), 'x'] if k == 'x'][-1]; x\n"
    )
    config = BranchConfig(roots=1, forks=1, branches=3, by="replay")
    made = grow(policy, vocabulary, config, None if kernels == "real" else FakeKernelPool())
    assert [each.branch and each.branch.by for each in made] == [None, "replay", "replay"]
    assert all(len(whole_session(each, made).lines) == 6 for each in made)


def test_a_session_with_threads_is_no_fork_but_a_branch(vocabulary: Vocabulary) -> None:
    line = " import threading; e = threading.Event(); threading.Thread(target=e.wait, daemon=True).start()\n"
    config = BranchConfig(roots=1, branches=2)
    made = grow(Policy(vocabulary, typing(line, " 1\n")), vocabulary, config)
    assert made[1].branch is not None
    assert made[1].branch.by == "replay"


def test_lines_that_show_something_else_are_no_branch_point(vocabulary: Vocabulary) -> None:
    """The place types a session from the prompt, and nothing of the failed replay is left in it."""
    policy = Policy(vocabulary, typing(" import time; time.perf_counter_ns()\n", " 1\n"))
    made = grow(policy, vocabulary, BranchConfig(roots=1, branches=3, by="replay"))
    for each in made[1:]:
        assert each.branch is not None
        assert (each.branch.parent, each.branch.line, each.branch.weight, each.branch.by) == (0, 0, 1.0, "anew")
        assert each.prompt_ids == made[0].prompt_ids
        assert len(each.lines) == 6


def test_a_root_that_ends_before_its_forks_leaves_their_places_to_others(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" submit_final_answer(1)\n"))
    made = grow(policy, vocabulary, BranchConfig(roots=2, branches=2))
    assert [each.branch and each.branch.by for each in made] == [None, None, "anew", "anew"]
    assert [each.answer for each in made] == [("1",)] * 4


def test_a_tree_has_as_many_forks_as_it_was_asked_for(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, lambda text, number: f" x = {number}\n")
    made = grow(
        policy, vocabulary, BranchConfig(roots=1, forks=3, branches=2), budget=BudgetConfig(lines=12, tokens=2000)
    )
    begun = [each.branch.line for each in made[1:] if each.branch is not None]
    assert len(begun) == 3
    assert begun == sorted(set(begun))
    assert [each.branch.weight for each in made[1:] if each.branch is not None] == [1 / 2, 1 / 4, 1 / 8]


def test_equal_seeds_fork_at_equal_lines_and_lines_are_drawn_evenly(vocabulary: Vocabulary) -> None:
    def places(seed: str) -> list[int]:
        policy = Policy(vocabulary, typing(" 1\n"))
        config = BranchConfig(roots=1, branches=2)
        made = grow(policy, vocabulary, config, FakeKernelPool(), groups=200, sampling=SamplingConfig().seeded(seed))
        return [each.branch.line for each in made if each.branch is not None]

    first = places("a")
    assert first == places("a")
    assert first != places("b")
    assert all(20 <= first.count(line) <= 60 for line in range(1, 6))  # 40 each


def test_entropy_forks_after_the_line_that_surprised(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" 1\n", " 1\n", " 22\n", " 1\n"), lambda line: -2.0 if "22" in line else -0.5)
    made = grow(policy, vocabulary, BranchConfig(roots=1, branches=2, at="entropy"), FakeKernelPool())
    assert made[1].branch is not None
    assert made[1].branch.line == 3


def test_nothing_forks_after_what_is_skipped_or_inside_a_block(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" # think\n", " for i in range(2):\n", "     i\n", " \n", " # again\n"))
    made = grow(policy, vocabulary, BranchConfig(roots=1, branches=2), FakeKernelPool(), groups=20)
    places = {each.branch.line for each in made if each.branch is not None}
    assert places == {0, 4}  # 0 where the fork was drawn for line 5, which is skipped


def decided_at(line: int, wins: int) -> Callable[[str, int], str]:
    """Seven lines; the one with this number is a new number each time, and only `wins` submits 1."""

    def typed(text: str, number: int) -> str:
        place = lines_so_far(text)
        if place == line:
            return f" x = {number}\n"
        return f" submit_final_answer(1 if x == {wins} else 0)\n" if place == 8 else f" {place}\n"

    return typed


CONTRAST = BranchConfig(roots=1, branches=6, at="contrast")


def test_contrast_bisects_a_root_for_the_line_that_decided(vocabulary: Vocabulary) -> None:
    """The root wins by its third line, and nobody else: branches before it lose, those after it win."""
    policy = Policy(vocabulary, decided_at(3, wins=2))
    root, *branches = grow(policy, vocabulary, CONTRAST, budget=BudgetConfig(lines=9, tokens=2000))
    assert root.answer == ("1",)
    assert [each.answer for each in branches] == [("1",), ("0",), ("1",), ("0",), ("0",)]
    assert [each.branch.line for each in branches if each.branch] == [4, 2, 3, 2, 2]
    assert {each.branch.by for each in branches if each.branch} == {"replay"}
    for branch in branches:
        assert branch.prompt == root.prompt + "".join(
            line.text + line.output for line in root.lines[: branch.branch.line if branch.branch else 0]
        )
        assert texts(whole_session(branch, [root]))[:2] == texts(root)[:2]


def test_where_nothing_comes_out_differently_branches_go_back_to_the_prompt(vocabulary: Vocabulary) -> None:
    made = grow(Policy(vocabulary, decided_at(3, wins=-1)), vocabulary, CONTRAST, budget=BudgetConfig(lines=9))
    assert [each.branch.line for each in made if each.branch] == [4, 2, 1, 0, 0]


def test_contrast_asks_the_environment_if_there_is_one_and_skips_what_it_is_told_to(vocabulary: Vocabulary) -> None:
    class Counted:
        def reset(self, task: Task) -> None:
            self.lines = 0

        def observe(self) -> None:
            self.lines += 1

        def reward(self, trajectory: Trajectory) -> float:
            return float("# lucky" in trajectory.lines[0].text)

    def typed(text: str, number: int) -> str:
        place = lines_so_far(text)
        return (" # lucky\n" if number == 0 else " # not\n") if place == 1 else f" {place}\n"

    config = BranchConfig(roots=1, branches=3, at="contrast")
    budget = BudgetConfig(lines=4, tokens=2000)
    root, *branches = grow(Policy(vocabulary, typed), vocabulary, config, environment=Counted, budget=budget)
    assert root.environment_reward == 1.0
    # lines 2 and 3 can be forked; in branches the environment looks at their own first line
    assert [each.branch.line for each in branches if each.branch] == [3, 3]
    assert [each.environment_reward for each in branches] == [0.0, 0.0]


@pytest.mark.parametrize(("wins", "lines"), [(-1, [4, 2, 4, 2]), (2, [0, 0, 0, 0])])
def test_pass_rate_bisects_the_roots_of_a_group_that_all_came_to_the_same(
    vocabulary: Vocabulary, wins: int, lines: list[int]
) -> None:
    """With one kernel, the first root types its third line before the second root begins: only it can win."""
    config = BranchConfig(roots=2, branches=3, at="pass_rate")
    policy = Policy(vocabulary, decided_at(3, wins))
    made = grow(policy, vocabulary, config, budget=BudgetConfig(lines=9, tokens=2000), size=1)
    assert [each.answer for each in made[:2]] == [("1",) if wins == 2 else ("0",), ("0",)]
    assert [each.branch.line for each in made if each.branch] == lines


def test_a_root_that_can_not_be_run_again_leaves_its_places_to_others(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" import time; time.perf_counter_ns()\n", " 2\n", " submit_final_answer(0)\n"))
    made = grow(policy, vocabulary, CONTRAST)
    assert [each.branch.by for each in made if each.branch] == ["anew"] * 5


def test_a_grader_that_fails_where_outcomes_decide_is_named(vocabulary: Vocabulary) -> None:
    def strict(task: Task, answer: Sequence[str] | None) -> float:
        raise ValueError("no grade")

    setup = RolloutSetup(
        vocabulary, PythonDialect(None), context_tokens=4096, at_once=8, extensions=Extensions(grader=strict)
    )
    rollout = Rollout(Policy(vocabulary, typing(" submit_final_answer(1)\n")), FakeKernelPool(), setup)
    with pytest.raises(RewardError, match="grader 'strict' raised ValueError: no grade"):
        asyncio.run(rollout.many([TASK] * 6, branch=CONTRAST))


def test_what_a_root_has_spent_is_spent_for_its_branches(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" 1\n"))
    made = grow(
        policy, vocabulary, BranchConfig(roots=1, branches=2), FakeKernelPool(), budget=BudgetConfig(lines=9, tokens=40)
    )
    assert {each.stop_reason for each in made} == {StopReason.MAX_TOKENS}
    [one, other] = (whole_session(each, made) for each in made)
    assert one.completion_ids == other.completion_ids


class Counting:
    """Shows how often its tool was called."""

    def __init__(self) -> None:
        self.calls = 0

    def reset(self, task: Task) -> dict[str, Any]:
        return {"more": self.more}

    def more(self) -> int:
        """Once more."""
        self.calls += 1
        return self.calls

    def observe(self) -> str:
        return f"[{self.calls} calls]"


class Copied(Counting):
    forks = True


class Copying(Counting):
    def fork(self) -> Counting:
        other = type(self)()
        other.calls = self.calls
        return other


class Closures(Counting):
    """Its tool would go on acting on the old one."""

    forks = True

    def reset(self, task: Task) -> dict[str, Any]:
        def more() -> int:
            """Once more."""
            return self.more()

        return {"more": more}


class ForTrl:
    """As TRL's users write them."""

    forks = True
    calls = 0

    def reset(self, **row: Any) -> None:
        """Nothing to show."""

    def more(self) -> int:
        """Once more."""
        self.calls += 1
        return self.calls

    def get_reward(self) -> float:
        return float(self.calls)


@pytest.mark.parametrize(
    ("environment", "by"),
    [(Counting, "replay"), (Copied, "fork"), (Copying, "fork"), (Closures, "replay"), (ForTrl, "fork")],
)
def test_an_environment_is_brought_to_where_its_root_was(
    vocabulary: Vocabulary, environment: type[Any], by: str
) -> None:
    policy = Policy(vocabulary, typing(" more()\n"))
    made = grow(policy, vocabulary, BranchConfig(roots=1, branches=3), environment=environment)
    assert [each.branch.by for each in made if each.branch is not None] == [by] * 2
    for each in made:
        if environment is ForTrl:
            assert each.environment_reward == 6.0
        assert [line.shown for line in whole_session(each, made).lines] == [
            f"{calls}\n" if environment is ForTrl else f"{calls}\n[{calls} calls]\n" for calls in range(1, 7)
        ]


class Drawn(Counting):
    """Begins elsewhere each time."""

    made = 0

    def reset(self, task: Task) -> dict[str, Any]:
        Drawn.made += 1
        self.start = Drawn.made
        return super().reset(task)

    def observe(self) -> str:
        return f"[{self.start}]"


def test_an_environment_that_begins_elsewhere_is_no_branch(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" 1\n"))
    made = grow(policy, vocabulary, BranchConfig(roots=1, branches=3), environment=Drawn)
    assert [each.branch.by for each in made if each.branch is not None] == ["anew"] * 2
    assert len({each.prompt for each in made}) == 3


def test_forks_that_nobody_takes_are_closed(vocabulary: Vocabulary) -> None:
    """The group is cut while its branches wait or run; the pool ends with no session left."""
    policy = Policy(vocabulary, lambda text, number: " submit_final_answer(1)\n" if number > 6 else f" x = {number}\n")
    made = grow(policy, vocabulary, BranchConfig(roots=3, branches=3), cut=Cut(0.3, 9), size=4)
    assert sum(each.stop_reason is StopReason.UNFINISHED for each in made) > 0
    assert sum(not each.is_void for each in made) >= 2


def test_a_small_pool_grows_large_trees(vocabulary: Vocabulary) -> None:
    """Twelve branches of four roots in three places: nothing waits for itself."""
    policy = Policy(vocabulary, lambda text, number: f" x = {number}\n")
    made = grow(policy, vocabulary, BranchConfig(roots=4, forks=2, branches=2), size=3)
    assert not any(each.is_void for each in made)
    assert {each.branch.by for each in made if each.branch is not None} <= {"fork", "replay"}


def test_tasks_that_make_no_groups_are_refused() -> None:
    async def go() -> None:
        Trees(BranchConfig(), [TASK] * 13, 12, SamplingConfig())

    with pytest.raises(ConfigError, match="13 tasks don't divide into groups of 12: 4 roots, with 1 forks into 3 each"):
        asyncio.run(go())
