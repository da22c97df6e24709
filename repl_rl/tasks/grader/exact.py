"""Plain numbers, compared exactly and at once. Nothing is evaluated; stdlib only.

Right is an int, float or string whose numeral has exactly the expected value: "401", "401.0", "'401'". Where the
expected number is no integer, a float may miss it by what floats miss (0.1 + 0.2 is right for 0.3).
"""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,3})?")
_EXTRA_CHARS = 40
"""How much longer than the expected answer a number may be: sign, quotes, ".0", an exponent, a float's digits."""
_FLOAT_NOISE = Decimal("1e-9")


def verdict_at_once(submitted: str, expected: str) -> bool | None:
    """Whether a text is the expected answer; None where numerals and equal texts alone can't tell.

    Time is bounded by the expected answer's length, whatever was submitted.
    """
    short = len(submitted) <= len(expected) + _EXTRA_CHARS
    text = _unquoted(submitted) if short else ""
    if _NUMBER.fullmatch(expected) is None:
        return True if text == expected != "" else None
    if short and _NUMBER.fullmatch(text) is not None:
        # Decimals of any length compare exactly; int() would refuse a long one.
        return _equal(Decimal(text), Decimal(expected))
    return None


def _equal(submitted: Decimal, expected: Decimal) -> bool:
    if submitted == expected or expected == expected.to_integral_value():
        return submitted == expected
    return abs(submitted - expected) <= _FLOAT_NOISE * abs(expected)


def is_number(text: str) -> bool:
    """Whether a text is a numeral that `verdict_at_once` reads."""
    return _NUMBER.fullmatch(text) is not None


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].strip()
    return text
