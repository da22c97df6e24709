"""Trees in the rollout: real forks of real sandboxed interpreters, a policy that types what the test says."""

from collections.abc import Sequence
from typing import Any

import pytest
from growing import TASK, Policy, grow, lines_so_far, texts, typing
from kernel_fakes import FakeKernelPool

from repl_rl.config import BranchConfig, BudgetConfig, SamplingConfig
from repl_rl.dialect import Turn
from repl_rl.engine import Vocabulary
from repl_rl.errors import ConfigError
from repl_rl.rollout.execute import TurnResult
from repl_rl.rollout.guest import Guest
from repl_rl.rollout.session import Session
from repl_rl.rollout.tree import ForkRule, Root, Trees
from repl_rl.trajectory import Branch, StopReason, Task, Trajectory, whole_session

pytestmark = pytest.mark.more


def branches(made: Sequence[Trajectory]) -> list[Branch]:
    return [each.branch for each in made if each.branch is not None]


async def test_branches_go_on_in_forks_of_their_roots_interpreter(vocabulary: Vocabulary) -> None:
    """Each line typed is a number of its own, so what a session prints says which lines it has run."""
    policy = Policy(
        vocabulary, lambda text, number: " x = []\n" if lines_so_far(text) == 1 else f" x.append({number}); x\n"
    )
    config = BranchConfig(roots=2, forks=1, branches=3)
    made = await grow(policy, vocabulary, config)
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


class Adding(Guest):
    """Shows something after each line, as the environment might."""

    async def ran(self, session: Session, turn: Turn, ran: TurnResult) -> TurnResult:
        return ran.observing("seen\n")


@pytest.mark.parametrize("kernels", ["real", "that do not fork"])
async def test_where_nothing_can_be_forked_the_lines_run_again(vocabulary: Vocabulary, kernels: str) -> None:
    policy = Policy(
        vocabulary, lambda text, number: f" x = {number}; [k for k in [*globals(), 'x'] if k == 'x'][-1]; x\n"
    )
    config = BranchConfig(roots=1, forks=1, branches=3, by="replay")
    made = await grow(policy, vocabulary, config, None if kernels == "real" else FakeKernelPool(), guests=[Adding])
    assert [each.branch and each.branch.by for each in made] == [None, "replay", "replay"]
    assert all(len(whole_session(each, made).lines) == 6 for each in made)


async def test_a_session_with_threads_is_no_fork_but_a_branch(vocabulary: Vocabulary) -> None:
    line = " import threading; e = threading.Event(); threading.Thread(target=e.wait, daemon=True).start()\n"
    config = BranchConfig(roots=1, branches=2)
    made = await grow(Policy(vocabulary, typing(line, " 1\n")), vocabulary, config)
    assert [branch.by for branch in branches(made)] == ["replay"]


async def test_a_root_that_dies_as_it_forks_was_killed_and_is_not_void(vocabulary: Vocabulary) -> None:
    line = " import os; os.register_at_fork(before=lambda: os._exit(0))\n"
    made = await grow(Policy(vocabulary, typing(line, " 1\n")), vocabulary, BranchConfig(roots=1, branches=2))
    assert made[0].stop_reason is StopReason.KILLED
    assert [branch.by for branch in branches(made)] == ["replay"]
    assert not any(each.is_void for each in made)


async def test_lines_that_show_something_else_are_no_branch_point(vocabulary: Vocabulary) -> None:
    """The place types a session from the prompt, and nothing of the failed replay is left in it."""
    policy = Policy(vocabulary, typing(" import time; time.perf_counter_ns()\n", " 1\n"))
    budget = BudgetConfig(lines=6, tokens=400, repeats=None)
    made = await grow(policy, vocabulary, BranchConfig(roots=1, branches=3, by="replay"), budget=budget)
    assert branches(made) == [Branch(0, 0, 1.0, "anew")] * 2
    for each in made[1:]:
        assert each.prompt_ids == made[0].prompt_ids
        assert len(each.lines) == 6


async def test_a_root_that_ends_before_its_forks_leaves_their_places_to_others(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" submit_final_answer(1)\n"))
    made = await grow(policy, vocabulary, BranchConfig(roots=2, branches=2))
    assert [each.branch and each.branch.by for each in made] == [None, None, "anew", "anew"]
    assert [each.answer for each in made] == [("1",)] * 4


async def test_a_tree_has_as_many_forks_as_it_was_asked_for(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, lambda text, number: f" x = {number}\n")
    made = await grow(
        policy, vocabulary, BranchConfig(roots=1, forks=3, branches=2), budget=BudgetConfig(lines=12, tokens=2000)
    )
    begun = [branch.line for branch in branches(made)]
    assert len(begun) == 3
    assert begun == sorted(set(begun))
    assert [branch.weight for branch in branches(made)] == [1 / 2, 1 / 4, 1 / 8]


async def test_equal_seeds_fork_at_equal_lines_and_lines_are_drawn_evenly(vocabulary: Vocabulary) -> None:
    async def forked(seed: str) -> list[int]:
        policy = Policy(vocabulary, typing(" 1\n"))
        config = BranchConfig(roots=1, branches=2)
        made = await grow(
            policy, vocabulary, config, FakeKernelPool(), groups=200, sampling=SamplingConfig().seeded(seed)
        )
        return [branch.line for branch in branches(made)]

    first = await forked("a")
    assert first == await forked("a")
    assert first != await forked("b")
    assert all(20 <= first.count(line) <= 60 for line in range(1, 6))  # 40 each


async def test_within_is_the_last_line_that_a_branch_begins_with(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" 1\n"))
    config = BranchConfig(roots=1, branches=2, within=4)
    made = await grow(
        policy, vocabulary, config, FakeKernelPool(), groups=120, sampling=SamplingConfig().seeded("within")
    )
    forked = [branch.line for branch in branches(made)]
    assert set(forked) == {1, 2, 3}
    assert all(20 <= forked.count(line) <= 60 for line in (1, 2, 3))  # 40 each


async def test_entropy_forks_after_the_line_that_surprised(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" 1\n", " 1\n", " 22\n", " 1\n"), lambda line: -2.0 if "22" in line else -0.5)
    made = await grow(policy, vocabulary, BranchConfig(roots=1, branches=2, at="entropy"), FakeKernelPool())
    assert [branch.line for branch in branches(made)] == [3]


async def test_nothing_forks_after_what_is_skipped_or_inside_a_block(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" # think\n", " for i in range(2):\n", "     i\n", " \n", " # again\n"))
    made = await grow(policy, vocabulary, BranchConfig(roots=1, branches=2), FakeKernelPool(), groups=20)
    # 0 where the fork was drawn for line 5, which is skipped
    assert {branch.line for branch in branches(made)} == {0, 4}


async def test_what_a_root_has_spent_is_spent_for_its_branches(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" 1\n"))
    made = await grow(
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
async def test_an_environment_is_brought_to_where_its_root_was(
    vocabulary: Vocabulary, environment: type[Any], by: str
) -> None:
    policy = Policy(vocabulary, typing(" more()\n"))
    made = await grow(policy, vocabulary, BranchConfig(roots=1, branches=3), environment=environment)
    assert [branch.by for branch in branches(made)] == [by] * 2
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


async def test_an_environment_that_begins_elsewhere_is_no_branch(vocabulary: Vocabulary) -> None:
    policy = Policy(vocabulary, typing(" 1\n"))
    made = await grow(policy, vocabulary, BranchConfig(roots=1, branches=3), environment=Drawn)
    assert [branch.by for branch in branches(made)] == ["anew"] * 2
    assert len({each.prompt for each in made}) == 3


async def test_forks_that_nobody_takes_are_closed(vocabulary: Vocabulary) -> None:
    """The batch is left while its branches wait or run; the pool ends with no session left."""
    policy = Policy(vocabulary, lambda text, number: " submit_final_answer(1)\n" if number > 6 else f" x = {number}\n")
    made = await grow(policy, vocabulary, BranchConfig(roots=3, branches=3), leave_after=3, size=4)
    assert len(made) == 3


async def test_a_small_pool_grows_large_trees(vocabulary: Vocabulary) -> None:
    """Twelve branches of four roots in three places: nothing waits for itself."""
    policy = Policy(vocabulary, lambda text, number: f" x = {number}\n")
    made = await grow(policy, vocabulary, BranchConfig(roots=4, forks=2, branches=2), size=3)
    assert not any(each.is_void for each in made)
    assert {branch.by for branch in branches(made)} <= {"fork", "replay"}


async def test_tasks_that_make_no_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="13 tasks don't divide into groups of 12: 4 roots, with 1 forks into 3 each"):
        Trees(BranchConfig(), [TASK] * 13, 12, SamplingConfig())


class AfterTwo(ForkRule):
    """A rule of a user's own."""

    def is_due(self, root: Root) -> bool:
        return len(root.lines) == 2


async def test_a_rule_of_ones_own(vocabulary: Vocabulary) -> None:
    config = BranchConfig(roots=1, branches=3, at="test_trees:AfterTwo")
    made = await grow(Policy(vocabulary, typing(" 1\n")), vocabulary, config, FakeKernelPool())
    assert [each.branch and each.branch.line for each in made] == [None, 2, 2]
