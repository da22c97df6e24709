"""Environments as TRL's users have them: columns in, text behind the prompt, methods as tools, their own reward."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from asking import ask
from trl import GRPOTrainer

from repl_rl.errors import EnvironmentFailure
from repl_rl.kernel.results import HostReply
from repl_rl.tools import Toolbox
from repl_rl.tools.environments import EnvironmentSession, environment_factory, from_trl
from repl_rl.trajectory import StopReason, Task, Trajectory

TASK = Task("t", "Reach 5.", "5", metadata={"target": 5, "level": "easy"})
ENDED = Trajectory("t", "", (0,), (), (), (), StopReason.ANSWER)


class Increment:
    """As in TRL's own guide."""

    def reset(self, **kwargs: Any) -> str | None:
        self.row = kwargs
        self.counter = 0
        return f" You are at {self.counter}."

    def increment(self, step: int) -> int:
        """
        Increment the counter.

        Args:
            step: The amount to increment by.

        Returns:
            The new value.
        """
        self.counter += step
        return self.counter

    @property
    def loud(self) -> str:
        raise AssertionError("nobody asked")

    @staticmethod
    def close(a: int) -> int:
        """A tool as any other.

        Args:
            a: A number.
        """
        return -a

    @classmethod
    def made(cls) -> int:
        """No tool: TRL sees plain functions only."""
        return 1

    def _hidden(self) -> None:
        raise AssertionError("nobody asked")

    def get_reward(self) -> float:
        return float(self.counter == self.row["target"])


def driven(environment: Any, use: Callable[[EnvironmentSession, Toolbox, str], Any], task: Task = TASK) -> Any:
    async def run() -> Any:
        session = EnvironmentSession(environment_factory(environment))
        try:
            return await use(session, *await session.open(task))
        finally:
            await session.close()

    return asyncio.run(run())


@pytest.mark.parametrize("environment", [Increment, Increment(), lambda: Increment(), from_trl(Increment)])
def test_a_class_of_trl_works_as_it_is(environment: Any) -> None:
    async def use(session: EnvironmentSession, box: Toolbox, observation: str) -> None:
        assert observation == " You are at 0."
        assert repr(box) == "Toolbox(close, increment)"
        assert type(session.instance) is Increment
        assert session.instance.row == {
            "prompt": [{"role": "user", "content": "Reach 5."}],
            "answer": "5",
            "target": 5,
            "level": "easy",
        }
        assert await session.after_line() == ""
        assert await ask(box, "increment", 2) == HostReply(value=2)
        assert await session.reward(ENDED) == 0.0
        assert await ask(box, "increment", 3) == HostReply(value=5)
        assert await session.reward(ENDED) == 1.0
        assert await ask(box, "close", 3) == HostReply(value=-3)
        assert (await ask(box, "get_reward")).error_name == "NameError"

    driven(environment, use)


class Silent:
    async def reset(self, **row: Any) -> None:
        await asyncio.sleep(0)

    async def look(self) -> str:
        """Look."""
        return "dark"

    async def get_reward(self) -> None:
        return None


def test_async_methods_and_no_words() -> None:
    async def use(session: EnvironmentSession, box: Toolbox, observation: str) -> None:
        assert (observation, await session.after_line(), await session.reward(ENDED)) == ("", "", None)
        assert await ask(box, "look") == HostReply(value="dark")

    driven(Silent, use)


def test_no_get_reward_says_nothing() -> None:
    async def use(session: EnvironmentSession, box: Toolbox, observation: str) -> None:
        assert await session.reward(ENDED) is None

    driven(type("Plain", (), {"reset": lambda self, **row: None}), use)


def test_a_dict_is_chosen_from_by_a_column_that_is_not_passed_on() -> None:
    async def use(session: EnvironmentSession, box: Toolbox, observation: str) -> Any:
        return session.instance

    task = Task("t", "q", "a", metadata={"environment": "up"})
    made = driven({"up": Increment, "dark": Silent}, use, task)
    assert type(made) is Increment
    assert set(made.row) == {"prompt", "answer"}
    with pytest.raises(EnvironmentFailure, match=r"the task has environment=None; expected one of \['up', 'dark'\]"):
        driven({"up": Increment, "dark": Silent}, use)


def test_one_environment_gets_the_column_environment_as_any_other() -> None:
    async def use(session: EnvironmentSession, box: Toolbox, observation: str) -> Any:
        return session.instance.row["environment"]

    assert driven(Increment, use, Task("t", "q", "a", metadata={"environment": "up"})) == "up"


def saying(observation: Any) -> type:
    return type("Saying", (), {"reset": lambda self, **row: observation})


def test_observations_in_parts() -> None:
    async def use(session: EnvironmentSession, box: Toolbox, observation: str) -> str:
        return observation

    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert driven(saying(parts), use) == "ab"
    for wrong in ([{"type": "image", "image": 1}], 7):
        with pytest.raises(EnvironmentFailure, match="environment Saying: reset raised TypeError: reset returned"):
            driven(saying(wrong), use)


def test_columns_that_reset_does_not_take_fail_as_in_trl() -> None:
    class Picky:
        def reset(self, prompt: Any, answer: str) -> None: ...

    async def use(session: EnvironmentSession, box: Toolbox, observation: str) -> None: ...

    driven(Picky, use, Task("t", "q", "a"))
    with pytest.raises(EnvironmentFailure, match=r"reset raised TypeError: .* unexpected keyword argument 'target'"):
        driven(Picky, use)


@pytest.mark.parametrize(
    ("function", "text", "meaning"),
    [
        (
            GRPOTrainer._generate_and_score_completions,
            "inspect.getmembers(type(environment), predicate=inspect.isfunction)",
            "tools are the functions of the class",
        ),
        (
            GRPOTrainer._generate_and_score_completions,
            'if member_name not in ("reset", "get_reward") and not member_name.startswith("_")',
            "but for these",
        ),
        (GRPOTrainer._generate_and_score_completions, "observation = environment.reset(**reset_kwargs)", "by name"),
        (GRPOTrainer._generate_and_score_completions, '"content": content + observation', "with nothing in between"),
        (
            GRPOTrainer._generate_and_score_completions,
            '{k: v for k, v in x.items() if k != "environment"} if self._multi_environment else x',
            "a dict's column stays behind",
        ),
        (GRPOTrainer.__init__, "await e.get_reward() if type(e)", "get_reward takes nothing"),
        (
            GRPOTrainer._calculate_rewards,
            'reward_kwargs["environments"] = self.environments',
            "rewards see the objects",
        ),
    ],
)
def test_trl_still_does_what_this_was_read_from(function: Any, text: str, meaning: str) -> None:
    assert text in inspect.getsource(function), meaning
