"""Reads LaTeX and plain mathematics: brackets, lists and units here, each expression by math-verify's parser.

math-verify reads `25_8` as 25, `2t` as 2 with a unit, `A` as `a`, `1 1/2` as 1 and `hello world` as a product of its
letters. So its parser gets single expressions only, set to ignore units and to distinguish upper and lower case, and
what is around them is read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify.grader import should_treat_as_complex

from repl_rl.tasks.grading.values import Grid, Leaf, Text, Unreadable, Value, Values, leaf, require_bounded

_NORMALIZED = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_CONVERTED = ConversionConfig(lowercase_symbols=False)
_SPELLINGS = (
    (re.compile(r"(?<=\d),?\\[,!;:]\s*(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;:!>]|\\q?quad(?![a-z])|\\displaystyle"), " "),
    (re.compile(r"\\[dtc]frac"), r"\\frac"),
    (re.compile(r"(?<=\d)\s*\{,\}\s*(?=\d)"), ","),
    (re.compile(r"\^\s*(\{\s*\\circ\s*\}|\\circ(?![a-z]))|\\degree(?![a-z])|°"), " "),
    (re.compile(r"\\\$|\$|\\\(|\\\)|\\\[|\\\]"), " "),
    (re.compile(r",?\s*\\(text|mbox|textrm)\s*\{\s*,?\s*(and|or)\s*\}"), ", "),
    (re.compile(r",?\s(and|or)\s"), ", "),
    (re.compile(r"\\(infinity|inf)(?![a-z])"), r"\\infty"),
    (re.compile(r"\\(lbrace|\{)(?![a-z])"), r"\\{"),
    (re.compile(r"\\(rbrace|\})(?![a-z])"), r"\\}"),
)
_NAMES = (
    (re.compile(r"(?<![\\A-Za-z])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"(?<![\\A-Za-z])(oo|inf)(?![A-Za-z])"), r"\\infty "),
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
_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")
_NUMERAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(\s*(\\times|\\cdot|\*)\s*10\s*\^\s*(-?\d|\{\s*-?\d+\s*\}))?")
_FRACTION = re.compile(
    r"([+-]?)\s*\\frac\s*(\{\s*(-?\d+)\s*\}|\d)\s*(\{\s*(-?\d+)\s*\}|\d)|([+-]?)\s*(\d+)\s*/\s*(\d+)"
)
_MIXED = re.compile(r"([+-]?)\s*(\d+)\s*(?:\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|\s(\d+)\s*/\s*(\d+))")
_REPEATING = re.compile(r"([+-]?)(\d+)\.(\d*)\\overline\s*\{(\d+)\}")
_MATRIX = re.compile(r"\\begin\s*\{([pbvBV]?matrix|array)\}(\{[lcr|]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)
_OPEN, _CLOSE = ("(", "[", "{", "\\{"), (")", "]", "}", "\\}")
_TOKENS = re.compile(r"\\[{}]|\\[A-Za-z]+|.", re.DOTALL)


def read_latex(text: str) -> Value:
    """The value of a text in LaTeX or ordinary notation. Raises Unreadable."""
    text = tidy(text)
    if not text:
        raise Unreadable("empty")
    if (words := _words(text)) is not None:
        return words
    if (stripped := re.sub(r"\s*(\\%|percent)$", "", text)) != text:
        value = read_latex(stripped)
        if not isinstance(value, Leaf):
            raise Unreadable("percent of something that is not a number")
        return Leaf(value.expr, value.is_plain, is_percent=True)
    if found := _MATRIX.fullmatch(text):
        if found[1] in ("vmatrix", "Vmatrix"):
            raise Unreadable("a determinant that is still to be worked out")
        rows = [row for row in re.split(r"\\\\", found[3]) if row.strip()]
        return Grid(tuple(tuple(read_latex(entry) for entry in row.split("&")) for row in rows))
    name, _, rest = text.partition(r"\in ")
    if rest and re.fullmatch(r"[a-zA-Z]\s*", name):
        return read_latex(rest)  # `x \in S` means S
    if len(sets := _split(text, r"\cup")) > 1:
        return leaf(sympy.Union(*(as_set(read_latex(part)) for part in sets)))
    if (group := _bracketed(text)) is not None:
        return group
    if _THOUSANDS.fullmatch(text):
        return _single(text.replace(",", ""))
    if len(parts := _split(text, ",")) > 1:
        return Values(_members(parts), "")
    if text.count(r"\pm") == 1:
        return Values(tuple(_single(text.replace(r"\pm", sign)) for sign in ("+", "-")), "")
    return _single(text)


def tidy(text: str) -> str:
    """`text` without its last box, dollar signs, spacing commands, units and a final full stop."""
    text = _unboxed(text).replace("−", "-").replace("\u2013", "-").replace("×", r"\times ").replace("·", r"\cdot ")
    text = text.replace("π", r"\pi ").replace("∞", r"\infty ").replace("∪", r"\cup ").replace("%", r"\%")
    text = text.replace(r"\\%", r"\%").replace("≤", r"\le ").replace("≥", r"\ge ")
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    text = re.sub(r"\s+", " ", text).strip().removesuffix(".").strip()
    return _UNIT.sub("", _FUNCTION.sub("", text)).strip()


def _unboxed(text: str) -> str:
    """The content of the last \\boxed, up to the matching brace."""
    start = max(text.rfind(r"\boxed"), text.rfind(r"\fbox"))
    brace = text.find("{", start)
    if start < 0 or brace < 0:
        return text
    depth = 0
    for index in range(brace, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[brace + 1 : index]
    raise Unreadable("a box without an end")


def _words(text: str) -> Value | None:
    inner = _TEXT.sub(r"\1", text).strip()
    if choice := _CHOICE.fullmatch(inner):
        return leaf(sympy.Symbol(choice[1]))
    if _VERBATIM.fullmatch(inner):
        return Text(re.sub(r"[{}\s]", "", inner).lower())
    is_marked = inner != text
    if not _WORDS.fullmatch(inner) or inner.split(" ")[0] in _NO_WORDS:
        return read_latex(inner) if _TEXT.fullmatch(text) else None
    if inner.casefold() == "nan":
        raise Unreadable("not a number")
    longest = max(map(len, re.findall(r"[A-Za-z]+", inner)))
    if longest >= 3 or (is_marked and longest == 2) or inner.lower() == "no":
        return Text(" ".join(inner.casefold().split()))
    return _single(inner) if is_marked else None


def as_set(value: Value) -> sympy.Set:
    """The value as a set; brackets in text are read as an interval. Raises Unreadable if it is not a set."""
    if isinstance(value, Leaf) and isinstance(value.expr, sympy.Set):
        return value.expr
    if isinstance(value, Values) and all(isinstance(item, Leaf) for item in value.items):
        exprs = [item.expr for item in value.items if isinstance(item, Leaf)]
        if value.brackets == "{}":
            return sympy.FiniteSet(*exprs)
        if value.may_be_interval and len(exprs) == 2:
            interval = sympy.Interval(*exprs, value.brackets[0] == "(", value.brackets[1] == ")")
            if isinstance(interval, sympy.Interval):
                return interval
    raise Unreadable("not a set")


def _bracketed(text: str) -> Value | None:
    tokens = _TOKENS.findall(text)
    if tokens[0] not in _OPEN or tokens[-1] not in _CLOSE:
        return None
    if not all(depth > 0 for depth in list(_depths(tokens))[:-1]):  # the last token does not close the first bracket
        return None
    inner = "".join(tokens[1:-1]).strip()
    parts = _split(inner, ",") if inner else []
    brackets = "{}" if tokens[0] in ("{", "\\{") else tokens[0] + tokens[-1]
    if brackets not in ("{}", "()", "[]", "(]", "[)"):
        return None
    if len(parts) == 1 and brackets == "()":
        return None if "," not in inner else read_latex(inner)
    return Values(_members(parts), brackets, may_be_interval=len(parts) == 2)


def _members(parts: list[str]) -> tuple[Value, ...]:
    """The values of the parts. A part with a plus-minus sign gives two."""
    values = [(part, read_latex(part)) for part in parts]
    both = [value.items if r"\pm" in part and isinstance(value, Values) else (value,) for part, value in values]
    return tuple(item for items in both for item in items)


def _split(text: str, separator: str) -> list[str]:
    """Split at the separators that are not inside brackets."""
    tokens = _TOKENS.findall(text)
    parts = [""]
    for token, depth in zip(tokens, _depths(tokens), strict=True):
        if token == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _depths(tokens: list[str]) -> Iterator[int]:
    depth = 0
    for token in tokens:
        depth += 1 if token in _OPEN else -1 if token in _CLOSE else 0
        yield depth


def _single(text: str) -> Leaf:
    for pattern, make in _LITERALS:
        if found := pattern.fullmatch(text):
            try:
                return leaf(make(found), is_plain=True)
            except ZeroDivisionError as error:
                raise Unreadable("a fraction over 0") from error
    for name, spelling in _NAMES:
        text = name.sub(spelling, text)
    expr = latex2sympy(
        normalize_latex(text, _NORMALIZED),
        is_real=not should_treat_as_complex(text),
        convert_degrees=False,
        normalization_config=None,
        conversion_config=_CONVERTED,
    )
    if not isinstance(expr, sympy.Basic) or isinstance(expr, sympy.Tuple | sympy.FiniteSet):
        raise Unreadable("math-verify's parser finds no single expression")
    require_bounded(expr)
    return leaf(expr)


def _numeral(found: re.Match[str]) -> sympy.Expr:
    power = int(re.sub(r"[{} ]", "", found[5])) if found[5] else 0
    if abs(power) > 300:
        raise Unreadable("too large a power")
    written = found[1]
    number = sympy.Integer(written) if written.isdecimal() else sympy.Float(written, max(15, len(written)))
    return -number * 10**power if found[0].startswith("-") else number * sympy.Integer(10) ** power


def _fraction(found: re.Match[str]) -> sympy.Rational:
    sign = -1 if "-" in (found[1], found[6]) else 1
    top, below = (found[3] or found[2], found[5] or found[4]) if found[2] else (found[7], found[8])
    return sign * _ratio(top, below)


def _mixed(found: re.Match[str]) -> sympy.Rational:
    size = int(found[2]) + _ratio(found[3] or found[5], found[4] or found[6])
    return -size if found[1] == "-" else size


def _repeating(found: re.Match[str]) -> sympy.Rational:
    whole, fixed, cycle = found[2], found[3], found[4]
    every, before = int(whole + fixed + cycle), int(whole + fixed)
    size = _ratio(str(every - before), str(10 ** len(fixed) * (10 ** len(cycle) - 1)))
    return -size if found[1] == "-" else size


def _ratio(top: str, below: str) -> sympy.Rational:
    if int(below) == 0:
        raise Unreadable("a fraction over 0")
    return sympy.Rational(int(top), int(below))


_LITERALS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], sympy.Expr]], ...] = (
    (_NUMERAL, _numeral),
    (_FRACTION, _fraction),
    (_MIXED, _mixed),
    (_REPEATING, _repeating),
)
