"""Reads LaTeX and plain mathematics with math-verify's parser, after what it would misread has been set right.

That parser reads `25_8` as 25, `1 1/2` as 1, `18 19` as 37, `hello world` as a product of letters, a pair as an
interval, and works out binomials and determinants, which would turn a problem into its answer.
"""

from __future__ import annotations

import re
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig, extract_boxed_content, normalize_latex
from math_verify.grader import should_treat_as_complex
from sympy.core.symbol import Str

from repl_rl.tasks.grading.values import MATRIX, Collection, Percent, Unreadable, Value, worked

_NORMALIZED = NormalizationConfig(malformed_operators=True, nits=True, boxed="none")
_CONVERTED = ConversionConfig(lowercase_symbols=False)
_SYMBOLS = {"×": "times", "·": "cdot", "π": "pi", "∞": "infty", "∪": "cup", "≤": "le", "≥": "ge"}
_SPELLINGS = (
    (re.compile("[−\u2013]"), "-"),
    (re.compile(f"[{''.join(_SYMBOLS)}]"), lambda found: f"\\{_SYMBOLS[found[0]]} "),
    (re.compile(r"(?<!\\)%"), r"\\%"),
    (re.compile(r"(?<=\d),?\\[,!;:]\s*(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;:!>]|\\q?quad(?![a-z])|\\displaystyle"), " "),
    (re.compile(r"(?<=\d)\s*\{,\}\s*(?=\d)"), ","),
    (re.compile(r"\^\s*(\{\s*\\circ\s*\}|\\circ(?![a-z]))|\\degree(?![a-z])|°"), " "),
    (re.compile(r"\\\$|\$|\\\(|\\\)|\\\[|\\\]"), " "),
    (re.compile(r",?\s*\\(text|mbox|textrm)\s*\{\s*,?\s*(and|or)\s*\}|,?\s(and|or)\s"), ", "),
    (re.compile(r"\s+"), " "),
)
_NAMES = (
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"(?<![\\A-Za-z])(oo|inf)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"(?<![\d.])(\d+) (\d+)\s*/\s*(\d+)"), r"\1\\frac{\2}{\3}"),
)
_UNIT = re.compile(
    r"(?<=[\w})])\s*\\(text|mbox|textrm|mathrm)\s*\{[^{}]*\}(\s*\^\s*(\d|\{\d\}))?\s*$"
    r"|(?<=[\d}])\s((?!pi|sqrt|percent|million|billion|thousand|hundred|dozen|mod)([a-z]{3,}|cm|km|mm|kg|ft|in|mi|mL)\.?"
    r"(\s*\^\s*(\d|\{\d\}))?)\s*$"
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z .,'-]*|[A-Za-z]{3,}( [\w.,'-]+)+", re.ASCII)
_NO_WORDS = frozenset(["pi", "oo", "inf", "infty", "sqrt", "sin", "cos", "tan", "log", "ln", "exp"])
_TEXT = re.compile(r"\\(?:text|mbox|textbf|textrm|mathrm|mathbf|textit)\s*\{([^{}\\]*)\}")
_CHOICE = re.compile(r"\(([A-Z])\)")
_VERBATIM = re.compile(r"\d+_(\d|\{\d+\})|\d+(\s*:\s*\d+)+|[+-]?0[xXbBoO][0-9a-fA-F]+")
_FUNCTION = re.compile(r"^[a-zA-Z]\([a-z]\)\s*=(?!=)")
_REPEATING = re.compile(r"(\d+)\.(\d*)\\overline\s*\{(\d+)\}")
_WORKED_OUT = re.compile(r"binom|matrix|\\det|gcd|lcm|mod|[\d})]\s*\(|\d\s+\d|\d\s*_")
"""What the parser works out itself: where a text has any of it, no number in it counts as written out."""


def read_latex(text: str) -> Value:
    """The value of a text in LaTeX or ordinary notation. Raises Unreadable, and what the parser raises."""
    text = tidy(text)
    if (words := _words(text)) is not None:
        return words
    if (stripped := re.sub(r"\s*(\\%|percent)$", "", text)) != text:
        number = read_latex(stripped)
        if isinstance(number, Collection):
            raise Unreadable("percent of something that is not a number")
        return Percent(number)
    if "vmatrix" in text.lower():
        raise Unreadable("a determinant that is still to be worked out")
    text = _REPEATING.sub(_as_fraction, text)
    for pattern, spelling in _NAMES:
        text = pattern.sub(spelling, text)
    is_written_out = not _WORKED_OUT.search(text)
    first, last = text[:1], text[-1:]
    if first in "([" and last in ")]":
        inner = _parsed(f"({text[1:-1]})")
        if isinstance(inner, sympy.Interval | sympy.Tuple):  # not a union, nor pairs side by side
            return _collection(inner, first + last, is_written_out)
    parsed = _parsed(text)
    if isinstance(parsed, sympy.FiniteSet) and first not in ("{", "\\") and r"\pm" not in text:
        return _collection(_parsed(f"({text})"), "", is_written_out)
    return _value(parsed, is_written_out)


def tidy(text: str) -> str:
    """What is in the last box, without dollar signs, spacing commands, units and a final full stop."""
    text = extract_boxed_content(text)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    text = text.strip().removesuffix(".").strip()
    return _UNIT.sub("", _FUNCTION.sub("", text)).strip()


def _as_fraction(repeating: re.Match[str]) -> str:
    whole, fixed, cycle = repeating.groups()
    size = int(whole + fixed + cycle) - int(whole + fixed)
    return rf"\frac{{{size}}}{{{10 ** len(fixed) * (10 ** len(cycle) - 1)}}}"


def _words(text: str) -> Value | None:
    inner = _TEXT.sub(r"\1", text).strip()
    if choice := _CHOICE.fullmatch(inner):
        return sympy.Symbol(choice[1])
    if _VERBATIM.fullmatch(inner):
        return Str(re.sub(r"[{}\s]", "", inner).lower())
    is_marked = inner != text
    if not _WORDS.fullmatch(inner) or inner.split(" ")[0] in _NO_WORDS:
        return read_latex(inner) if _TEXT.fullmatch(text) else None
    if inner.casefold() == "nan":
        raise Unreadable("not a number")
    longest = max(map(len, re.findall(r"[A-Za-z]+", inner)))
    if longest >= 3 or (is_marked and longest == 2) or inner.lower() == "no":
        return Str(" ".join(inner.casefold().split()))
    return _parsed(inner) if is_marked else None


def _parsed(text: str) -> Any:
    parsed = latex2sympy(
        normalize_latex(text, _NORMALIZED),
        is_real=not should_treat_as_complex(text),
        convert_degrees=False,
        normalization_config=None,
        conversion_config=_CONVERTED,
    )
    if not isinstance(parsed, sympy.Basic | sympy.MatrixBase):
        raise Unreadable("math-verify's parser finds no single expression")
    return parsed


def _value(parsed: Any, is_written_out: bool) -> Value:
    match parsed:
        case sympy.MatrixBase():
            rows = [tuple(_value(entry, is_written_out) for entry in row) for row in parsed.tolist()]
            return Collection(tuple(Collection(row, MATRIX) for row in rows), MATRIX)
        case sympy.Interval() if parsed is not sympy.S.Reals:
            ends = ("(" if parsed.left_open else "[") + (")" if parsed.right_open else "]")
            return _collection(parsed, ends, is_written_out)
        case sympy.Tuple():
            return _collection(parsed, "()", is_written_out)
        case sympy.FiniteSet():
            return _collection(parsed, "{}", is_written_out)
        case sympy.Eq(rhs=sympy.Set()):
            return _value(parsed.rhs, is_written_out)  # `x \in S` means S
        case sympy.Number() if not is_written_out:
            return sympy.UnevaluatedExpr(parsed)
    return parsed


def _collection(parsed: Any, brackets: str, is_written_out: bool) -> Collection:
    items = parsed.args[:2] if isinstance(parsed, sympy.Interval) else parsed.args
    return Collection(tuple(_value(item, is_written_out) for item in items), brackets, len(items) == 2)


def as_set(value: Value) -> Any:
    """The value as a set; brackets in text are read as an interval. Raises Unreadable if it is not a set."""
    if not isinstance(value, Collection):
        expr = worked(value)
        if isinstance(expr, sympy.Set):
            return expr
        if isinstance(expr, sympy.core.relational.Relational | sympy.And | sympy.Or):
            return expr.as_set()
    elif value.brackets == "{}" or not value.items:
        return sympy.FiniteSet(*map(worked, value.items))
    elif value.may_be_interval and len(value.brackets) == 2:
        interval = sympy.Interval(*map(worked, value.items), value.brackets[0] == "(", value.brackets[1] == ")")
        if isinstance(interval, sympy.Interval):
            return interval
    raise Unreadable("not a set")
