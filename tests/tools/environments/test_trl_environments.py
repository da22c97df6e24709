"""Environments as TRL's users have them: columns in, text behind the prompt, methods as tools, their own reward."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import ENDED, ask, opened
from trl import GRPOTrainer

from repl_rl.errors import EnvironmentFailure
from repl_rl.kernel.results import HostReply
from repl_rl.tools.environments.factory import from_trl
from repl_rl.trajectory import Task

READ = yaml.safe_load(Path(__file__).with_name("read_from_trl.yaml").read_text())
TASK = Task("t", "Reach 5.", "5", metadata={"target": 5, "level": "easy"})


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


@pytest.mark.parametrize("environment", [Increment, Increment(), lambda: Increment(), from_trl(Increment)])
async def test_a_class_of_trl_works_as_it_is(environment: Any) -> None:
    async with opened(environment, TASK) as (session, box, observation):
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
        assert await session.reward(ENDED) == (0.0, "")
        assert await ask(box, "increment", 3) == HostReply(value=5)
        assert await session.reward(ENDED) == (1.0, "")
        assert await ask(box, "close", 3) == HostReply(value=-3)
        assert (await ask(box, "get_reward")).error_name == "NameError"


class Silent:
    async def reset(self, **row: Any) -> None:
        await asyncio.sleep(0)

    async def look(self) -> str:
        """Look."""
        return "dark"

    async def get_reward(self) -> None:
        return None


async def test_async_methods_and_no_words() -> None:
    async with opened(Silent, TASK) as (session, box, observation):
        assert (observation, await session.after_line(), await session.reward(ENDED)) == ("", "", None)
        assert await ask(box, "look") == HostReply(value="dark")


async def test_no_get_reward_says_nothing() -> None:
    async with opened(type("Plain", (), {"reset": lambda self, **row: None}), TASK) as (session, _, _):
        assert await session.reward(ENDED) is None


async def test_a_dict_is_chosen_from_by_a_column_that_is_not_passed_on() -> None:
    environments = {"up": Increment, "dark": Silent}
    async with opened(environments, Task("t", "q", "a", metadata={"environment": "up"})) as (session, _, _):
        assert type(session.instance) is Increment
        assert set(session.instance.row) == {"prompt", "answer"}
    with pytest.raises(EnvironmentFailure, match=r"the task has environment=None; expected one of \['up', 'dark'\]"):
        await opened(environments, TASK).__aenter__()


async def test_one_environment_gets_the_column_environment_as_any_other() -> None:
    async with opened(Increment, Task("t", "q", "a", metadata={"environment": "up"})) as (session, _, _):
        assert session.instance.row["environment"] == "up"


def saying(observation: Any) -> type:
    return type("Saying", (), {"reset": lambda self, **row: observation})


async def test_observations_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    async with opened(saying(parts), TASK) as (_, _, observation):
        assert observation == "ab"
    for wrong in ([{"type": "image", "image": 1}], 7):
        with pytest.raises(EnvironmentFailure, match=r"Saying.reset' raised TypeError: reset returned"):
            await opened(saying(wrong), TASK).__aenter__()


async def test_columns_that_reset_does_not_take_fail_as_in_trl() -> None:
    class Picky:
        def reset(self, prompt: Any, answer: str) -> None: ...

    async with opened(Picky, Task("t", "q", "a")):
        pass
    with pytest.raises(EnvironmentFailure, match=r"reset' raised TypeError: .* unexpected keyword argument 'target'"):
        await opened(Picky, TASK).__aenter__()


@pytest.mark.parametrize("case", READ, ids=lambda case: case["meaning"])
def test_trl_still_does_what_this_was_read_from(case: dict[str, str]) -> None:
    assert case["text"] in inspect.getsource(getattr(GRPOTrainer, case["method"]))
