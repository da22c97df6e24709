"""Tools as users write them, in a module that no sandbox can import."""

import asyncio
import functools
import math

import user_rates
from user_rates import rate_of

from repl_rl.tools import tool

LOG: list[str] = []


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first factor.
        b: The second factor.

    Returns:
        The product.
    """
    return a * b


def convert(amount: float, currency: str = "EUR") -> float:
    """What an amount of euros is in another currency."""
    LOG.append(currency)
    return math.floor(amount * rate_of(currency) * len(user_rates.RATES)) / 2


def logged() -> list[str]:
    """The currencies so far."""
    return list(LOG)


@tool(where="host", timeout_s=3.0, at_once=2)
async def search(query: str, most: int = 3) -> list[str]:
    """Search for something.

    Second paragraph.
    """
    await asyncio.sleep(0)
    return [f"{query} {number}" for number in range(most)]


@functools.cache
def fibonacci(n: int) -> int:
    """The n-th Fibonacci number."""
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def next_fibonacci(n: int) -> int:
    """The Fibonacci number after the n-th one."""
    return fibonacci(n + 1)
