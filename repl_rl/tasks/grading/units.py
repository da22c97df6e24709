"""Units: reads them from texts, and converts quantities to other units. Runs in a confined process.

A unit is one of pint's, or a tuple of words that say what is counted, "red apples".
"""

import re
from fractions import Fraction
from typing import Any

import pint
import sympy

from repl_rl.tasks.grading.table import TABLE
from repl_rl.tasks.grading.values import Quantity, Value, is_written_out, unit_text, worked

_REGISTRY: Any = pint.UnitRegistry(non_int_type=Fraction, cache_folder=None)
for _definition in TABLE["units"]:
    _REGISTRY.define(_definition)
_RADIAN, _DEGREE, SECOND = map(_REGISTRY.parse_units, ("radian", "degree", "second"))
_SHORT = frozenset(TABLE["short_units"].split())
_NO_UNITS = frozenset((TABLE["no_units"] + " " + TABLE["functions_in_texts"]).split())
_SMALL = frozenset(TABLE["small_words"].split())
_PLURALS = frozenset(TABLE["plurals"].split())
_NO_NOUNS = frozenset(TABLE["no_nouns"].split()) | {f"{numeral}s" for numeral in TABLE["numerals"].split()}
_UNNAMED = "[unnamed_length]"
_SPELLINGS: dict[str, str] = TABLE["unit_spellings"]
_WORD = re.compile(r"°?[^\W\d_]+|[$€£¥¢°]")


def read_unit(text: str, is_marked: bool, is_apart: bool) -> Any:
    """The unit that a text names, or the words that say what is counted; None if it is neither, "" if it says nothing.

    `is_marked`: the text stood within \\text; `is_apart`: after a space. Letters that are neither may be factors.
    """
    words = _WORD.findall(text.replace(r"\text", ""))
    if any(word.casefold() in _NO_UNITS for word in words):
        return None
    words = [word for word in words if word.casefold() not in _SMALL]
    plain = re.sub(r"\\text\{|[{}]|(?<=[A-Za-z])\.", " ", text).replace("·", "*").strip(" ()")
    for spelling, unit in _SPELLINGS.items():
        plain = re.sub(rf"(?<![\w]){re.escape(spelling)}s?(?![\w])", unit, plain)
    plain = " ".join(word for word in plain.split() if word not in _SMALL)
    if not plain:
        return ""
    are_known = all(len(word) > 2 or word in _SHORT or word in _SPELLINGS or word[0] == "°" for word in words)
    if is_marked or are_known:
        try:
            return _REGISTRY.parse_units(re.sub(r"\s*\^\s*", "**", plain))
        except Exception:  # noqa: BLE001  # pint raises all sorts on what is no unit
            pass
    nouns = tuple(word.casefold() for word in words)
    may_be_noun = is_marked or (is_apart and any(len(word) > 2 for word in words))
    if not nouns or not may_be_noun or re.search(r"\d|[*/^]", plain):
        return None
    return nouns


def may_be_missing(unit: Any) -> bool:
    """Whether a number says the same without the unit. Words have to name what is counted, in the plural: "42 red
    apples" is 42, and "42 wrong" and "42 thirds" are not."""
    if not isinstance(unit, tuple):
        names = re.findall(r"[a-z]+", unit_text(unit))
        return _NO_NOUNS.isdisjoint(f"{name}s" for name in names)
    if not _NO_NOUNS.isdisjoint(unit):
        return False
    return any(map(_is_plural, unit))


def _is_plural(word: str) -> bool:
    if word in _PLURALS:
        return True
    return word.endswith("s") and not word.endswith("ss")


def converted(quantity: Quantity, unit: Any) -> Value | None:
    """The value of a quantity in another unit. None if it can't be given in that unit, or if it is still to be worked
    out, which a conversion would do."""
    if unit == quantity.unit:
        return quantity.value
    if isinstance(unit, tuple) or isinstance(quantity.unit, tuple):
        if _nouns(unit).isdisjoint(_nouns(quantity.unit)):
            return None
        return quantity.value
    new_dimensions = _REGISTRY.get_dimensionality(unit)
    dimensions = _REGISTRY.get_dimensionality(quantity.unit)
    if new_dimensions != dimensions:
        # "24 square units" does not say which unit of length it counts in.
        is_unnamed = _UNNAMED in new_dimensions or _UNNAMED in dimensions
        if is_unnamed and _with_lengths(new_dimensions) == _with_lengths(dimensions):
            return quantity.value
        return None
    if not is_written_out(quantity.value):
        return None
    if (quantity.unit, unit) == (_RADIAN, _DEGREE):  # exactly: the conversion below takes pi for a fraction
        return worked(quantity.value * 180 / sympy.pi)
    # A conversion is linear, for temperatures with an offset. Two of its values determine it.
    zero = _REGISTRY.Quantity(Fraction(0), quantity.unit).to(unit).magnitude
    one = _REGISTRY.Quantity(Fraction(1), quantity.unit).to(unit).magnitude
    scale = sympy.nsimplify(one - zero, rational=True)
    offset = sympy.nsimplify(zero, rational=True)
    return worked(quantity.value * scale + offset)


def _with_lengths(dimensions: Any) -> dict[str, Any]:
    """Dimensions, with the unnamed length as a length."""
    return {name.replace(_UNNAMED, "[length]"): power for name, power in dimensions.items()}


def _nouns(unit: Any) -> set[str]:
    """The words of a unit in the singular: "dollars" and "dollars a day" share "dollar"."""
    return {word.removesuffix("s") for word in unit_text(unit).split()}
