"""Units: which texts are one, and how many of one are in another. Runs in a confined process."""

import re
from fractions import Fraction
from typing import Any

import pint
import sympy

from repl_rl.tasks.grading.table import TABLE
from repl_rl.tasks.grading.values import Quantity, Value, worked

_REGISTRY: Any = pint.UnitRegistry(non_int_type=Fraction, cache_folder=None)
for _definition in TABLE["units"]:
    _REGISTRY.define(_definition)
_RADIAN, _DEGREE = map(_REGISTRY.parse_units, ("radian", "degree"))
_SHORT = frozenset(TABLE["short_units"].split())
_NO_UNITS = frozenset((TABLE["no_units"] + " " + TABLE["functions_in_texts"]).split())
_SMALL = frozenset(TABLE["small_words"].split())
_SPELLINGS: dict[str, str] = TABLE["unit_spellings"]
_WORD = re.compile(r"°?[^\W\d_]+|[$€£¥¢°]")


def read_unit(text: str, is_marked: bool, is_apart: bool) -> Any:
    """The unit that a text is, or the words of a noun; None if it is neither, and "" if it says nothing.

    `is_marked`: it stood within \\text; `is_apart`: after a space. Without these, letters may as well be factors.
    """
    words = _WORD.findall(text.replace(r"\text", ""))
    if any(word in _NO_UNITS for word in words):
        return None
    plain = re.sub(r"\\text\{|[{}]|(?<=[A-Za-z])\.", " ", text).replace("·", "*").strip(" ()")
    for spelling, unit in _SPELLINGS.items():
        plain = re.sub(rf"(?<![\w]){re.escape(spelling)}s?(?:\^2|\^3)?(?![\w])", unit, plain)
    plain = " ".join(word for word in plain.split() if word not in _SMALL)
    if not plain:
        return ""
    are_known = all(len(word) > 2 or word in _SHORT or word in _SPELLINGS or word[0] == "°" for word in words)
    if is_marked or are_known:
        try:
            return _REGISTRY.parse_units(re.sub(r"\s*\^\s*", "**", plain))
        except Exception:  # noqa: BLE001  # pint raises all sorts on what is no unit
            pass
    nouns = frozenset(word.casefold().removesuffix("s") for word in words) - _SMALL
    may_be_noun = is_marked or (is_apart and (any(len(word) > 2 for word in words)))
    return nouns if nouns and may_be_noun and not re.search(r"\d|[*/^]", plain) else None


def converted(quantity: Quantity, unit: Any) -> Value | None:
    """The value of a quantity in another unit; None if it has none in it."""
    are_nouns = [isinstance(side, frozenset) for side in (unit, quantity.unit)]
    if unit == quantity.unit or (all(are_nouns) and unit & quantity.unit):
        return quantity.value
    if any(are_nouns) or unit.dimensionality != quantity.unit.dimensionality:
        return None
    if (quantity.unit, unit) == (_RADIAN, _DEGREE):
        return worked(quantity.value * 180 / sympy.pi)
    zero, one = (_REGISTRY.Quantity(Fraction(amount), quantity.unit).to(unit).magnitude for amount in (0, 1))
    scale, offset = (sympy.nsimplify(number, rational=True) for number in (one - zero, zero))
    return worked(quantity.value * scale + offset)
