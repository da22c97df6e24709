"""Reward functions of TRL's kind: called once for a batch, with a list for each column and an entry for each session.

A completion is the whole session, as the model saw it: typed lines, outputs and tracebacks. Functions are tried once
before anything is loaded, and each of their rewards is checked. The reward of a void trajectory, which they never see,
is None, which TRL leaves out of its sums and of the means that it logs.

Not covered: a function that waits for ever. Models, which TRL takes for reward functions too, are not tried.
"""

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from itertools import compress
from typing import Any

import torch
from torch.nn import Module
from transformers import TrainerState
from trl.chat_template_utils import parse_response
from trl.data_utils import is_conversational

from repl_rl.errors import ConfigError, RewardError
from repl_rl.rewards import ScoredTrajectory
from repl_rl.rewards.functions import name_of
from repl_rl.rewards.table import PROBE
from repl_rl.utils.text import shown
from repl_rl.utils.user_code import Seam, boundary, failure, name_of_code

Rewards = list[float | None]


def completions_of(
    tokenizer: Any, prompts: Sequence[Any], prompt_ids: Sequence[list[int]], completion_ids: Sequence[list[int]]
) -> list[Any]:
    """What reward functions get as completions, as TRL makes it: text, and for chats a list of one message, which the
    tokenizer parses if it can."""
    if not is_conversational({"prompt": prompts[0]}):
        texts: list[Any] = tokenizer.batch_decode(completion_ids, skip_special_tokens=True)
        return texts
    parses = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))
    chats = []
    if parses:
        for ids, prefix in zip(completion_ids, prompt_ids, strict=True):
            message = parse_response(tokenizer, ids, prefix=prefix, tools=None)
            chats.append([message])
    else:
        for content in tokenizer.batch_decode(completion_ids, skip_special_tokens=True):
            chats.append([{"role": "assistant", "content": content}])
    return chats


def component_sum(name: str) -> Callable[..., Rewards]:
    """A reward function that reports one component's sum over the lines, under the component's name."""

    def reward(scored: list[ScoredTrajectory], **_: Any) -> Rewards:
        return [None if item.trajectory.is_void else sum(item.components[name]) for item in scored]

    reward.__name__ = name
    return reward


def try_functions(
    functions: Sequence[Any], row: Mapping[str, Any], count: int, scored: ScoredTrajectory, has_environment: bool
) -> None:
    """Call each function once, for `count` completions of a made-up session that was given `row` of the data set.

    Where reward functions get environments, their arguments alone are looked at: an environment would have to begin.
    Raises ConfigError for what is not a function, and RewardError naming the one that can't be called with these
    columns, raises, or does not return a number or None for each completion.
    """
    columns = _columns_of_made_up_session(row, count, scored)
    if has_environment:
        columns["environments"] = [None] * count
    for function in functions:
        if isinstance(function, str | Module):
            continue
        if not callable(function):
            raise ConfigError(f"reward_funcs: {function!r:.200} is {type(function).__name__}, not a function")
        _require_arguments(function, columns)
        if has_environment:
            continue
        where = f"tried on {count} completions of a made-up session"
        # Nothing runs yet that SystemExit could mean to end.
        with boundary(Seam.BATCH_REWARD, function, where=where, catches=(Exception, SystemExit)):
            returned = function(**columns)
            if inspect.isawaitable(returned):
                with ThreadPoolExecutor(1) as thread:  # a loop may be running in this one
                    returned = thread.submit(asyncio.run, _awaited(returned)).result()
        _read_rewards(function, returned, count, where)


async def _awaited(value: Any) -> Any:
    return await value


def _columns_of_made_up_session(row: Mapping[str, Any], count: int, scored: ScoredTrajectory) -> dict[str, Any]:
    """What TRL calls a reward function with, for a session of three lines of which the first one raises."""
    prompt = row["prompt"]
    completion: Any = "".join(line.text + line.output for line in PROBE.lines)
    if not isinstance(prompt, str):
        completion = [{"role": "assistant", "content": completion}]
    session = {
        "prompts": prompt,
        "completions": completion,
        "completion_ids": list(PROBE.completion_ids),
    }
    for name, value in row.items():
        if name not in ("prompt", "completion", "completion_ids"):  # TRL gives no columns of these names
            session[name] = value
    session["scored"] = scored
    columns: dict[str, Any] = {name: [value] * count for name, value in session.items()}
    columns["trainer_state"] = TrainerState()
    columns["log_extra"] = columns["log_metric"] = lambda *_, **__: None
    return columns


def _require_arguments(function: Callable[..., Any], columns: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions that are written in C have none
        return
    try:
        signature.bind(**columns)
    except TypeError as error:
        name = name_of_code(function)
        missing = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and parameter.name not in columns
        ]
        if missing:
            raise RewardError(
                f"reward function {name!r} wants {', '.join(missing)}, which it is not given: it gets "
                f"{', '.join(columns)}. Functions of one trajectory, with a number per line, are line_rewards"
            ) from error
        raise RewardError(
            f"reward function {name!r} takes {signature} and is given more by name: {', '.join(columns)}; end its "
            "arguments with **kwargs"
        ) from error


def _read_rewards(function: Any, returned: Any, count: int, where: str = "") -> Rewards:
    """The rewards of a batch that the function returned. Raises RewardError."""
    with boundary(Seam.BATCH_REWARD, function, where=where):  # it may be a generator, which runs the user's code here
        try:
            if isinstance(returned, str | bytes | Mapping):
                raise TypeError
            rewards = [None if value is None else float(value) for value in returned]
        except (TypeError, ValueError):
            raise failure(Seam.BATCH_REWARD, function, f"returned {shown(returned)}", where=where) from None
    if len(rewards) != count:
        text = f"returned {len(rewards)} rewards for {count} completions"
        raise failure(Seam.BATCH_REWARD, function, text, where=where)
    if not all(reward is None or math.isfinite(reward) for reward in rewards):
        raise failure(Seam.BATCH_REWARD, function, f"returned {shown(rewards)}", where=where)
    return rewards


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return name_of(function)


def _is_async(function: Any) -> bool:
    """Whether a call returns an awaitable, as TRL tells it."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)


def asked_of_valid(function: Any) -> Any:
    """Wrap a user's reward function so that its rewards are checked, and that it never sees a void trajectory, which
    may lack even its environment.

    Reward models, which are not functions, are returned unchanged.
    """
    if isinstance(function, str | Module):
        return function
    name = _name_of(function)

    def columns_of_valid(columns: dict[str, Any]) -> dict[str, Any]:
        """The columns without void trajectories. TRL's other arguments, which are not lists of that length, stay."""
        is_valid = [not item.trajectory.is_void for item in columns["scored"]]
        if all(is_valid):
            return columns
        arguments = {}
        for column, values in columns.items():
            is_column = isinstance(values, list) and len(values) == len(is_valid)
            arguments[column] = list(compress(values, is_valid)) if is_column else values
        return arguments

    def rewards_of_all(returned: Any, columns: dict[str, Any]) -> Rewards:
        """The rewards that the function returned for the valid trajectories, and None for void ones."""
        is_valid = [not item.trajectory.is_void for item in columns["scored"]]
        rewards = iter(_read_rewards(function, returned, sum(is_valid)))
        return [next(rewards) if valid else None for valid in is_valid]

    @wraps(function)
    def reward(**columns: Any) -> Rewards:
        arguments = columns_of_valid(columns)
        returned: Any = []
        if arguments["scored"]:
            with boundary(Seam.BATCH_REWARD, function):
                returned = function(**arguments)
        return rewards_of_all(returned, columns)

    @wraps(function)
    async def async_reward(**columns: Any) -> Rewards:
        arguments = columns_of_valid(columns)
        returned: Any = []
        if arguments["scored"]:
            with boundary(Seam.BATCH_REWARD, function):
                returned = await function(**arguments)
        return rewards_of_all(returned, columns)

    wrapped = async_reward if _is_async(function) else reward
    wrapped.__name__ = name
    return wrapped


def all_processing_classes(given: Any, own: Sequence[str], extra: int) -> list[Any] | None:
    """TRL's `reward_processing_classes`, one for each reward function: for our own components, which need none, and for
    `extra` functions of TRL's kind.

    Raises ConfigError unless there is one for each of these.
    """
    if given is None:
        return None
    classes = list(given) if isinstance(given, list | tuple) else [given]
    if len(classes) != extra:
        raise ConfigError(
            f"reward_processing_classes has {len(classes)} for the {extra} functions in reward_funcs; give one for "
            "each, None for those that are not models"
        )
    return [None] * len(own) + classes


def unscored(rewards: torch.Tensor, sessions: Sequence[ScoredTrajectory]) -> list[ScoredTrajectory]:
    """The sessions of which no reward function had anything to say, but void ones. `rewards` are (sessions, functions),
    NaN for None."""
    silent = rewards.isnan().all(dim=1).tolist()
    return [session for session in compress(sessions, silent) if not session.trajectory.is_void]


def all_weights(given: Sequence[float] | None, own: Sequence[str], extra: int) -> list[float] | None:
    """TRL's `reward_weights` for our own components and `extra` functions of TRL's kind; 1 for what is not named.

    Raises ConfigError for weights of our own components, which have theirs in the section `rewards`.
    """
    if given is None:
        return None
    weights = list(given)
    if len(given) == extra:
        weights = [1.0] * len(own) + weights
    if len(weights) != len(own) + extra or any(weight != 1 for weight in weights[: len(own)]):
        raise ConfigError(
            f"reward_weights={list(given)} of TRL's arguments: give one for each of the {extra} functions in "
            f"reward_funcs; what {', '.join(own)} weigh is said in the section `rewards`"
        )
    return weights
