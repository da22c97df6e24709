"""The function schema: what transformers makes of a full docstring, and the same without the descriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from transformers.utils import get_json_schema
from user_tools import convert, multiply

from repl_rl.errors import ToolError
from repl_rl.tools import as_tools


def choose(drink: str, size: Literal["s", "l"] = "s", tags: list[str] | None = None) -> dict[str, int]:
    """Choose a drink.

    Longer text about it.

    Args:
        drink: What to drink (choices: ["tea", "coffee"])
        size: How large,
            said on two lines.
        tags: Any.
    """
    return {}


def answer() -> int:
    """The answer."""
    return 42


class Shop:
    def price(self, item: str) -> float:
        """The price.

        Args:
            item: What it is the price of.
        """
        return 1.0


@pytest.mark.parametrize("function", [multiply, choose, answer, Shop().price])
def test_a_described_function_has_the_schema_that_transformers_makes(function: Callable[..., Any]) -> None:
    [made] = as_tools([function])
    assert made.schema == get_json_schema(function)


def test_without_descriptions_only_they_are_missing() -> None:
    [made] = as_tools([convert])
    assert made.schema == {
        "type": "function",
        "function": {
            "name": "convert",
            "description": "What an amount of euros is in another currency.",
            "parameters": {
                "type": "object",
                "properties": {"amount": {"type": "number"}, "currency": {"type": "string"}},
                "required": ["amount"],
            },
            "return": {"type": "number"},
        },
    }


def test_some_descriptions_stay() -> None:
    def partly(a: int, b: int) -> int:
        """Add.

        Args:
            b: The second.
        """
        return a + b

    [made] = as_tools([partly])
    assert made.schema["function"]["parameters"]["properties"] == {
        "a": {"type": "integer"},
        "b": {"type": "integer", "description": "The second."},
    }


def test_what_a_call_in_json_can_not_name_has_no_schema() -> None:
    def total(*numbers: int) -> int:
        """Add."""
        return sum(numbers)

    def first(a: int, /) -> int:
        """One."""
        return a

    def pair(a: tuple[int, ...]) -> int:
        """Some."""
        return len(a)

    several, positional, untold = as_tools([total, first, pair])
    with pytest.raises(ToolError, match=r"tool 'total'.*'\*numbers: int' has no name"):
        _ = several.schema
    with pytest.raises(ToolError, match=r"tool 'first'.*'a: int' has no name"):
        _ = positional.schema
    with pytest.raises(ToolError, match="tool 'pair' has no JSON schema"):
        _ = untold.schema
