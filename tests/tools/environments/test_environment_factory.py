"""What `environment=` may be, and how ours and TRL's are told apart."""

from __future__ import annotations

import copy
import functools
import threading
from typing import Any

import pytest

from repl_rl.errors import ConfigError
from repl_rl.tools.environments.factory import TrlEnvironment, environment_factory, from_trl, is_trl, pays_outcome


class Ours:
    def __init__(self, size: int = 1) -> None:
        self.size, self.items = size, [size]

    def reset(self, task: Any) -> None: ...


class Theirs:
    def reset(self, **kwargs: Any) -> str | None: ...


def kind(reset: Any, **more: Any) -> type:
    return type("Kind", (), {"reset": reset, **more})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (Ours, False),
        (Ours(), False),
        (kind(lambda self, task=None: None), False),
        (kind(lambda self, task, seed=3: None), False),
        (kind(lambda self, *tasks: None), False),
        (kind(staticmethod(lambda task: None)), False),
        (kind(classmethod(lambda cls, task: None)), False),
        (Theirs, True),
        (Theirs(), True),
        (kind(lambda self, prompt, **row: None), True),
        (kind(lambda self, prompt, answer: None), True),
        (kind(lambda self, *, answer: None), True),
        (kind(lambda self, task: None, get_reward=lambda self: 1.0), True),
    ],
)
def test_the_signature_of_reset_tells(environment: Any, expected: bool) -> None:
    assert is_trl(environment) is expected


def test_ours_come_from_classes_factories_objects_and_paths() -> None:
    assert environment_factory(Ours) is Ours
    assert environment_factory("test_environment_factory:Ours")().items == [1]  # type: ignore[attr-defined]
    sized = functools.partial(Ours, 5)
    assert environment_factory(sized) is sized
    original = Ours(7)
    first, second = environment_factory(original)(), environment_factory(original)()
    assert (first.items, second.items) == ([7], [7])  # type: ignore[attr-defined]
    assert len({id(original), id(first), id(second)}) == 3
    assert first.items is not second.items  # type: ignore[attr-defined]


def test_theirs_are_wrapped() -> None:
    for environment in (Theirs, Theirs(), lambda: Theirs(), {"a": Theirs}, from_trl(Theirs)):
        made = environment_factory(environment)()
        assert type(made) is TrlEnvironment


class Uncopied(Ours):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def failing() -> Ours:
    raise OSError("no port")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Uncopied(), r"Uncopied' raised .*as it was copied\); it has to be a class, a function"),
        (failing, "environment '.*:failing' raised OSError: no port"),
        (dict, "environment dict has no method reset"),
        (lambda: 7, "environment int has no method reset"),
        (7, "environment int has no method reset"),
        (kind(lambda self: None), "environment Kind: its reset takes no task"),
        ("nowhere", "'nowhere' is not an import path"),
        ("nowhere:Thing", "'nowhere:Thing' can't be imported"),
        ({}, "is not an environment_factory"),
        ({"a": 7}, "is not an environment_factory"),
    ],
)
def test_what_is_none_is_refused_at_once(environment: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        environment_factory(environment)


def test_an_object_that_knows_how_to_be_copied() -> None:
    class Careful(Uncopied):
        def __deepcopy__(self, memo: dict[int, Any]) -> Careful:
            return Careful()

    original = Careful()
    assert environment_factory(original)() is not original
    assert copy.deepcopy(original).lock is not original.lock


class Pays(Ours):
    def reward(self, trajectory: Any) -> float:
        return 1.0


class TheirsPays(Theirs):
    def get_reward(self) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        *((made, True) for made in (Pays, Pays(), lambda: Pays(), TheirsPays, TheirsPays(), {"a": TheirsPays})),
        *((made, False) for made in (Ours, Ours(), lambda: Ours(), "rlm", Theirs, {"a": TheirsPays, "b": Theirs})),
    ],
)
def test_which_environments_pay_the_outcome(environment: Any, expected: bool) -> None:
    assert pays_outcome(environment_factory(environment)) is expected
