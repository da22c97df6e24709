"""Reads texts: references, quoted answers, answers in prose; LaTeX, Python and ordinary notation.

This module reads matrices and everything around mathematics: brackets and commas, left sides, relations, units,
percent signs, words. Single expressions go to Python's parser or to math-verify's. Left alone, math-verify's parser
would read `25_8` as 25, `1 1/2` as 1, `18 19` as 37, `2(3)` as 5 and `hello world` as a product of letters. It also
works out binomials and fractions, which would turn a problem into its answer. The corrections that a text gets before
it is read are in `texts.yaml`.
"""

import math
import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig, extract_boxed_content, normalize_latex
from math_verify.grader import should_treat_as_complex
from sympy.core.relational import Relational
from sympy.core.symbol import Str

from repl_rl.tasks.grading.python_text import NAME, as_number, as_ratio, date_of, read_python
from repl_rl.tasks.grading.sets import is_set
from repl_rl.tasks.grading.table import TABLE, rule
from repl_rl.tasks.grading.units import converted, read_unit
from repl_rl.tasks.grading.values import (
    Choice,
    Collection,
    Letters,
    Named,
    Percent,
    Quantity,
    Union,
    Unreadable,
    Value,
    Without,
    is_plain,
)

MAX_CHARS = 10_000
"""Longer answers are not read."""
_MAX_DEPTH = 50
_NORMALIZED = NormalizationConfig(malformed_operators=True, nits=True, boxed="none")
_CONVERTED = ConversionConfig(lowercase_symbols=False)
_CHARACTERS = str.maketrans(TABLE["characters"])
# Before reading: x², characters without width, commands with another name for the same.
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff]")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_CLEAN = [rule(entry) for entry in TABLE["clean"]]
_FOR_PARSER = [rule(entry) for entry in TABLE["parser"]]
# Words: synonyms of an answer, left sides such as f(x), names of functions, which are no words.
_SYNONYMS = {word: text for text, words in TABLE["words"].items() for word in words}
_SYNONYMS |= {word: str(number) for number, word in enumerate(TABLE["numerals"].split())}
_NAMES = re.compile("|".join(f"(?:{entry['find']})" for entry in TABLE["names"]))
_NO_WORDS = frozenset(TABLE["functions_in_texts"].split())
_NO_SYMBOLS = frozenset(TABLE["short_units"].split()) | {"e", "i"}
# \text{no solution}, and words as they are written outside of it.
_TEXT = re.compile(r"\\text\s*\{([^{}\\]*)\}")
_WORDS = re.compile(r"[^\W\d_]+(?:[.,'’-]+[^\W\d_]+)*[.,]?(?: [\w.,'’()-]+)*")
# Choices: (B), and ABD for several.
_LETTER = re.compile(TABLE["letter"])
_LETTERS = re.compile(r"(?=[A-J]{2,10}$)A?B?C?D?E?F?G?H?I?J?")
_CHINESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]+")
# 3 \pmod{7}
_RESIDUE = re.compile(r"(?:[a-z] *\\equiv *)?(-?\d+) *(?:\(?mod *|\\pmod *\{?|\\bmod *|\(?\\mod *)(\d+)\}?\)?")
# Dates and times: March 3rd, 2024; the 3rd of March; 2024-03-03; 3/14/2024; 3/14/24; 9:30 p.m.
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = (
    "(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:,? (\d{4}))?"
_MONTH_DAY = re.compile(rf"{_MONTH} {_DAY}{_YEAR}", re.IGNORECASE)
_DAY_MONTH = re.compile(rf"(?:the )?{_DAY} (?:of )?{_MONTH}{_YEAR}", re.IGNORECASE)
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})")
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})")
_SHORT_YEAR = re.compile(r"\d{1,2}/\d{1,2}/\d\d")
_TIME = re.compile(r"(\d{1,2})(?::(\d\d))?(?::(\d\d))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
# Compared as they are written: 25_8, 3:4, 0x1F, XIV; versions and addresses, 3.11.0, 10.0.0.0/8; ordinals, 3rd, 5^{th}.
_VERBATIM = re.compile(
    r"\d+_(\d+|\{\d+\})|\d+(\s*:\s*\d+)+|[+-]?0[xXbBoO][0-9a-fA-F]+|[IVX]{2,4}"
    r"|[vV]?\d+(\.\d+){2,}([-+/:]?\w[\w.]*)?"
)
_ORDINAL = re.compile(r"(\d+) ?(?:\^ ?\{? ?)?(st|nd|rd|th) ?\}?")
# Amounts: 50\%, and 5 \text{ cm}, whose amount ends in a digit, a bracket or pi.
_PERCENT = re.compile(r"(.*?)\s*(?:\\%|\\text\{ ?percent(?:age)? ?\}|per ?cent(?:age)?|pct)", re.DOTALL)
_UNIT_CHARS = r"(?:\\text\s*\{[^{}]*\}|[^\W\d_.]|(?<=[^\W\d_])\.|[$€£¥¢°(]|[ /·*)]|(?<=[\w})])\s*\^\s*\{?-?\d\}?)"
_AMOUNT = r".*?[\d)}\]]|.*?(?:\\|(?<![A-Za-z]))pi(?![A-Za-z])|.+?(?=\s*\\text)"
_QUANTITY = re.compile(rf"({_AMOUNT})(\s*)(?!pi(?![A-Za-z]))((?=\\text|[^\W\d_]|[$€£¥¢°(]){_UNIT_CHARS}+)", re.DOTALL)
# Within the braces of a set: x \mid 1 < x.
_BUILDER = re.compile(r"\s*[a-z]\s*(?:\\in.*?)?(?:\\mid(?![a-z])|\||:)\s*(.*(?:[<>]|\\(?:le|ge|ne)(?![a-z])).*)")
# Numbers: 0.1\overline{6}, \frac{3}{4}, fractions within an expression, 1\frac{1}{2} or 1 1/2, and 18 19.
_REPEATING = re.compile(r"([+-]?\d+)\.(\d*?)(?:\\overline\s*\{(\d+)\}|\\dot\s*\{?(\d)\}?)")
_FRACTION = re.compile(r"([+-]?)\s*\\frac\s*(?:\{([+-]?\d+)\}|(\d))\s*(?:\{([+-]?\d+)\}|(\d))")
_ANY_FRACTION = re.compile(
    r"\\frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))|(?<![\w^_.})])(\d+)\s*/\s*(\d+)(?![\w^_.{(!])"
)
_MIXED_WITHIN = re.compile(r"(?<![\w^_.}])(\d+) ?\\frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))")
_MIXED = re.compile(r"([+-]?)\s*(\d+) ?(?:\\frac\s*\{?(\d+?)\}?\s*\{?(\d+)\}?|(?<= )(\d+) ?/ ?(\d+))")
# What the parser would add or multiply: 18 19, 1234 .56, 1.2.3, 3{4} and {3}4, if the braces hold no argument.
_TOUCHING = re.compile(
    r"(?<![\w^_.])(?<!frac )\d[\d.]*\s+\.?\d|\.\d+\.\d"
    r"|(?<![\w^_.}\])] )(?<![\w^_.}\])])(?:\d[\d.]* ?\{ ?\d|\{ ?\d[\d.]* ?\} ?\{? ?\.?\d)"
)
_APART = re.compile(r"[+-]?\d[\d.]*(?: [+-]?\d[\d.]*)+")
# A sign between two sides, but not that of := or ==.
_RELATION = re.compile(r"(?<![<>=!:])(<=|>=|!=|<|>|\\(?:le|ge|ne)(?![a-z]))(?!=)")
_RELATIONS = {
    "<": sympy.StrictLessThan,
    ">": sympy.StrictGreaterThan,
    "<=": sympy.LessThan,
    ">=": sympy.GreaterThan,
    "!=": sympy.Ne,
    r"\le": sympy.LessThan,
    r"\ge": sympy.GreaterThan,
    r"\ne": sympy.Ne,
}
# \sqrt{2} \approx 1.41, but not within brackets; and what makes a number of the side before it, when names are gone.
_APPROXIMATION = re.compile(r"(.*?)\\approx(?![a-z])(?![^(]*\))(.*)")
_NAME_PARTS = re.compile(r"\\text\s*\{\s*[A-Za-z][^{}]*\}|_(?:\{[^{}]*\}|\w)|(?<![\\A-Za-z])[A-Za-z]'*\s*\([^()]*\)")
_CONSTANT = re.compile(r"\d|\\(?:sqrt|pi)(?![a-z])|(?<![\\A-Za-z])(?:e|pi|sqrt)(?![A-Za-z])")
_LETTER_ALONE = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
# Vectors: 2j beside an i or a k.
_OTHER_BASIS_VECTOR = re.compile(r"(?<![\\A-Za-z])[ik](?![A-Za-z])")
_TIMES_J = re.compile(r"(?<=[\d.])j(?![A-Za-z])")
# A matrix, with a factor before it, or lines below each other.
_ENVIRONMENT = re.compile(
    r"(.*?)\\begin\s*\{(array|cases|[pbBvV]?matrix|smallmatrix|aligned|gathered)\}(?:\s*\{[lcr|\s]*\})?(.*)\\end\s*\{\2\}",
    re.DOTALL,
)
_FACTOR = re.compile(r"\s*(?:\\cdot|\\times|\*)$")
"""What stands between a matrix and the factor before it."""
# Words or orders of letters, B A C; sequences of brackets, (()).
_ONLY_LETTERS = re.compile(r"[A-Za-z]{1,2}\d?(?: [A-Za-z]{1,2}\d?)+|[A-Za-z]{2}")
_ONLY_BRACKETS = re.compile(r"[()\[\]{}<>⦃⦄\s]{3,}|\(\)")
# sin 30°: the angle, and the functions that take one.
_ANGLES = re.compile(r"(\d+(?:\.\d+)?|(?<![A-Za-z])[a-z]|\\[a-z]+|\))\s*°")
_ANGLE_FUNCTIONS = re.compile(r"(?<![A-Za-z])(sin|cos|tan|cot|sec|csc|cis)(?![a-z])")
# What math-verify's parser would take for a product of letters.
_UNKNOWN_WORD = re.compile(r"\\text|(?<![\\A-Za-z])(?!sqrt|arc|sinh|cosh|tanh)[a-z]{4,}")
_OPENING, _CLOSING = "([{⟨⦃", ")]}⟩⦄"
"""⟨⟩ are the brackets of a vector. ⦃⦄ are the braces of a set, \\{ and \\}; LaTeX groups with plain braces."""


def read_text(text: str) -> Value:
    """The value of a text. Raises Unreadable, and what the parsers raise."""
    require_readable(text)
    text = _SUPERSCRIPT.sub(_as_exponent, text)  # first, because NFKC makes x2 of x²
    text = extract_boxed_content(text).translate(_CHARACTERS)
    text = unicodedata.normalize("NFKC", text)
    text = _INVISIBLE.sub("", text)
    text = " ".join(text.split())
    text = _COMMAND.sub(_usual_command, text)
    text = _cleaned(text)
    if _OTHER_BASIS_VECTOR.search(text):
        text = _TIMES_J.sub(" j", text)  # Python's parser would take 2j for an imaginary number
    return _read(text)


def _cleaned(text: str) -> str:
    for clean in _CLEAN:
        text = clean(text)
    return text


def _as_exponent(superscript: re.Match[str]) -> str:
    digits = unicodedata.normalize("NFKC", superscript[0])
    return f"^{{{digits}}}"


def _usual_command(command: re.Match[str]) -> str:
    name = command[1]
    return f"\\{TABLE['commands'].get(name, name)}"


def require_readable(text: str) -> None:
    """Raises Unreadable for texts that are not worth an attempt."""
    if len(text) > MAX_CHARS or "\0" in text or not text:
        raise Unreadable("empty, too long, or with null bytes")
    if max(_depths(text)) > _MAX_DEPTH:
        raise Unreadable("too many brackets within each other")


def _read(text: str) -> Value:
    """The value of a text that is clean. The first notation that fits counts: from whole texts to lists, then from the
    operation that binds least, so that each part is read by the same rules."""
    text = text.strip()
    bare = _TEXT.sub(r"\1", text)
    bare = re.sub(r"\s+", " ", bare).strip()
    if not bare:
        raise Unreadable("nothing")
    synonym = _SYNONYMS.get(bare.casefold(), text)
    if synonym != text:
        return _read(synonym)
    verbatim = _verbatim(bare)
    if verbatim is not None:
        return verbatim
    without_brackets = re.sub(r"^[\[(⦃] ?(?=\\begin)|(?<=\}) ?[\])⦄]$", "", text)
    if environment := _ENVIRONMENT.fullmatch(without_brackets):
        return _environment(*environment.groups())
    if _APART.fullmatch(text) and not _MIXED.fullmatch(text):
        numbers = [_read(number) for number in text.split(" ")]
        return Collection(tuple(numbers), "")
    parts, is_either = _parts(bare if _TEXT.fullmatch(text) else text)
    if len(parts) > 1:
        items = [_read(part) for part in parts]
        return _side_by_side(items, is_either)
    is_bracketed = text[0] in _OPENING and text[-1] in _CLOSING
    if is_bracketed and min(_depths(text)[:-1]) > 0:  # the first bracket closes with the last one
        return _bracketed(text)
    if approximation := _APPROXIMATION.fullmatch(text):
        return _approximation(*map(str.strip, approximation.groups()))
    words = _words(text, bare)
    if words is not None:
        return words
    if re.search(r"\\(pm|mp)(?![a-z])", text):
        return _both_signs(text)
    sets = re.split(r"\\cup(?![a-z])", text)
    if len(sets) > 1:
        return Union(tuple(map(_read, sets)))
    sets = re.split(r"\\setminus(?![a-z])|\\backslash(?![a-z])", text)
    if len(sets) == 2:
        whole, removed = map(_read, sets)
        if not isinstance(removed, Collection):
            removed = Collection((removed,), "{}")
        return Without(whole, removed)
    sides = re.split(r"(?<![<>!=:\\])=(?!=)(?![^(]*\))", text)
    if len(sides) == 2:
        left, right = map(str.strip, sides)
        value = _named(left, right)
        if value is not None:
            return value
        return sympy.Eq(_expression(left), _expression(right), evaluate=False)
    sides_and_signs = _RELATION.split(text)
    if len(sides_and_signs) > 1:
        expressions = [_expression(side.strip()) for side in sides_and_signs[::2]]
        signs = sides_and_signs[1::2]
        return _relation(expressions, signs)
    if point := re.fullmatch(r"([A-Z]) ?(\(.*,.*\))", text):
        return Named(point[1], _read(point[2]))
    if percent := _PERCENT.fullmatch(text):
        return Percent(_read(percent[1]))
    quantity = _quantity(text)
    if quantity is not None:
        return quantity
    return _expression(text)


def _approximation(left: str, right: str) -> Value:
    r"""A number, if one is approximated: \sqrt{2} \approx 1.41. Else the left side says what the right one is."""
    if not left:
        return _read(right)
    without_names = _NAME_PARTS.sub("", left)
    number = re.split("[=<>]", without_names)[-1]
    letters = set(_LETTER_ALONE.findall(number)) - _NO_SYMBOLS
    if _CONSTANT.search(number) and not letters:
        return _read(_cleaned(left))  # some patterns are for whole texts
    return _read(f"{left} = {right}")


def _both_signs(text: str) -> Value:
    """The two values of an expression with plus or minus in it."""
    values = []
    for plus, minus in (("+", "-"), ("-", "+")):
        signed = re.sub(r"\\pm(?![a-z])", plus, text)
        signed = re.sub(r"\\mp(?![a-z])", minus, signed)
        values.append(_read(re.sub(r"^\+", "", signed)))
    return Collection(tuple(values), "")


def _relation(sides: list[Value], signs: list[str]) -> Value:
    """An inequality, or several in a chain: 1 < x <= 3."""
    links = []
    for (left, right), sign in zip(pairwise(sides), signs, strict=True):
        relation = _RELATIONS[sign]
        links.append(relation(left, right, evaluate=False))
    if len(links) == 1:
        return links[0]
    return sympy.And(*links, evaluate=False)


def _environment(before: str, name: str, rows: str) -> Value:
    """A matrix, perhaps with a factor before it, or lines below each other: cases, equations."""
    if name in ("vmatrix", "Vmatrix"):
        raise Unreadable("a determinant that is still to be worked out")
    lines = [line.split("&") for line in rows.split(r"\\") if line.strip()]
    if name == "cases" and all(len(line) == 2 for line in lines):
        cases = [_case(value, condition) for value, condition in lines]
        return sympy.Piecewise(*cases, evaluate=False)
    if name in ("cases", "aligned", "gathered"):
        items = [_read("".join(line)) for line in lines]  # in `aligned`, & only says where lines are aligned
        return _side_by_side(items, is_either=False)
    matrix = []
    for line in lines:
        row = [_read(cell) for cell in line]
        matrix.append(row)
    if all(len(row) == 1 and isinstance(row[0], Relational) for row in matrix):
        relations = [row[0] for row in matrix]
        return _side_by_side(relations, is_either=False)
    factor = _FACTOR.sub("", before.strip())
    if factor:
        number = sympy.Integer(-1) if factor == "-" else _expression(factor)
        for row in matrix:
            row[:] = [_left_to_work_out(number, cell) for cell in row]
    rows_as_lists = [Collection(tuple(row), "[]") for row in matrix]
    return Collection(tuple(rows_as_lists), "[]")


def _left_to_work_out(factor: Any, cell: Value) -> Value:
    if not isinstance(cell, sympy.Expr):
        raise Unreadable("a factor before what is no matrix of numbers")
    return sympy.UnevaluatedExpr(sympy.Mul(factor, cell, evaluate=False))


def _case(value: str, condition: str) -> tuple[Any, Any]:
    """An expression, and when it holds."""
    value = value.strip().rstrip(",")
    condition = re.sub(r"\\text\s*\{\s*(?:if|for|when)\s*\}|^\s*(?:if|for|when)\b", "", condition)
    if re.search("otherwise|else", condition):
        return _read(value), sympy.true
    return _read(value), _read(condition)


def _verbatim(text: str) -> Value | None:
    """Choices by their letters, times, dates, residues, ratios, numbers in other bases, versions, ordinals, brackets or
    letters alone."""
    if choice := _LETTER.fullmatch(text):
        letter = next(group for group in choice.groups() if group)
        return _choice(letter, text)
    if _LETTERS.fullmatch(text):
        return Collection(tuple(map(Choice, text)), "")
    time = _time(text)
    if time is not None:
        return time
    date = _date(text)
    if date is not None:
        return date
    if residue := _RESIDUE.fullmatch(text):
        return Str(f"{residue[1]} mod {residue[2]}")
    if _ONLY_BRACKETS.fullmatch(text):
        return Str(re.sub(r"\s", "", text))
    if _ONLY_LETTERS.fullmatch(text) and text.lower() != "no" and _NO_WORDS.isdisjoint(text.split(" ")):
        return Letters(text.replace(" ", ""))
    if ordinal := _ORDINAL.fullmatch(text):
        return Str(ordinal[1] + ordinal[2])
    if _VERBATIM.fullmatch(text):
        return Str(re.sub(r"[{}\s]", "", text).lower())
    return None


def _time(text: str) -> Value | None:
    """A time of day on a clock of twelve hours. A time that no clock shows (13:00 am) equals only itself."""
    time = _TIME.fullmatch(text)
    if time is None:
        return None
    hours, minutes, seconds, half = time.groups(default="")
    if not minutes and not half:
        return None
    hour = int(hours)
    minutes = minutes or "00"
    half = half.lower()
    if half == "a":
        is_shown = hour <= 12
    elif half == "p":
        is_shown = 1 <= hour <= 23
    else:
        is_shown = hour <= 23
    if not is_shown or int(minutes) > 59:
        return Str(text.casefold())
    if hour == 0:
        hour = 12
        half = "a"
    elif hour > 12:
        hour -= 12
        half = "p"
    return Str(f"{hour}:{minutes}{seconds} {half}".strip())


def _date(text: str) -> Value | None:
    """A day. Raises Unreadable for one that may be two: 5/6/2024."""
    if year_first := _YEAR_FIRST.fullmatch(text):
        year, _, month, day = year_first.groups()
        return date_of(int(year), int(month), int(day))
    if year_last := _YEAR_LAST.fullmatch(text):
        return _day_in_figures(int(year_last[1]), int(year_last[3]), int(year_last[4]))
    if _SHORT_YEAR.fullmatch(text):
        raise Unreadable("a date whose year has two digits")
    if american := _MONTH_DAY.fullmatch(text):
        month, day, year = american.groups()
    elif british := _DAY_MONTH.fullmatch(text):
        day, month, year = british.groups()
    else:
        return None
    month_number = _MONTHS.index(month[:3].lower()) + 1
    return date_of(int(year) if year else None, month_number, int(day))


def _day_in_figures(first: int, second: int, year: int) -> Value | None:
    """A day from its day and month, whose order has to follow from them. None if neither of them can be a month."""
    if first > 12 and second > 12:
        return None
    if first > 12:
        return date_of(year, second, first)
    if second > 12 or first == second:
        return date_of(year, first, second)
    raise Unreadable("a date whose day and month can't be told apart")


def _choice(letter: str, text: str) -> Value:
    """A choice with the value that stands after its letter. A value that can't be read stays a text."""
    stated = re.sub(rf"^.*?{letter}\s*[).:\]]*\s*", "", text, count=1)
    if not stated:
        return Choice(letter)
    try:
        return Choice(letter, _read(stated))
    except (Unreadable, TypeError, ValueError, AttributeError, NotImplementedError, IndexError):
        return Choice(letter, Str(stated.casefold()))


def _words(text: str, bare: str) -> Value | None:
    """Words, or letters that are marked as text. None for mathematics."""
    is_marked = bare != text
    if _CHINESE.fullmatch(bare):
        return Str(bare)
    words = re.findall(r"[^\W\d_]+", bare)
    if not _WORDS.fullmatch(bare) or not _NO_WORDS.isdisjoint(words):
        is_all_marked = is_marked and _TEXT.fullmatch(text)
        return _read(bare) if is_all_marked else None
    if bare.casefold() == "nan":
        raise Unreadable("not a number")
    longest = max(map(len, words))
    # Two letters may be a product, `xy`, unless they are marked as text.
    if longest >= 3 or (is_marked and longest == 2) or bare.lower() == "no":
        without_article = re.sub(r"^(the|an?) ", "", bare.casefold())
        return Str(without_article)
    return _expression(bare) if is_marked else None


def _depths(text: str) -> list[int]:
    """After each character, how many brackets are open."""
    depth = 0
    depths = []
    for char in text:
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
        depths.append(depth)
    return depths


def _parts(text: str) -> tuple[list[str], bool]:
    """The parts between commas that stand in no brackets, and whether an "or" separates any of them."""
    # \begin and \end count as brackets. Their stand-ins are as long as they are, so positions stay the same.
    bracketed = text.replace(r"\begin", "(     ").replace(r"\end", ")   ")
    parts = []
    start = 0
    is_either = False
    for position, depth in enumerate(_depths(bracketed)):
        separator = bracketed[position]
        if depth == 0 and separator in ",;∨":
            parts.append(text[start:position])
            start = position + 1
            if separator == "∨":
                is_either = True
    parts.append(text[start:])
    parts = [part for part in parts if part.strip()]
    return parts, is_either


def _bracketed(text: str) -> Value:
    """A text in brackets: a set, a point, an interval, or an expression."""
    brackets = (text[0] + text[-1]).replace("⦃", "{").replace("⦄", "}")
    inner = text[1:-1]
    if brackets == "{}":
        if builder := _BUILDER.fullmatch(inner):
            return Union((_read(builder[1]),))
        if ":" in inner:
            return _expression(text)  # a dict
    parts, _ = _parts(inner)
    if len(parts) == 1 and brackets == "()":
        return _read(inner)
    items = _flat([_read(part) for part in parts])
    may_be_interval = len(items) == 2 and brackets not in ("⟨⟩", "{}")
    return Collection(tuple(items), brackets.replace("⟨⟩", "()"), may_be_interval)


def _flat(items: list[Value]) -> list[Value]:
    """The items, with both values of `1 \\pm 2` as items of their own."""
    flat: list[Value] = []
    for item in items:
        if isinstance(item, Collection) and item.brackets == "":
            flat += item.items
        else:
            flat.append(item)
    return flat


def _side_by_side(items: list[Value], is_either: bool) -> Value:
    items = _flat(items)
    are_relations = all(isinstance(item, Relational | sympy.And) for item in items)
    equation_count = sum(isinstance(item, sympy.Eq) for item in items)
    if is_either and are_relations and equation_count < len(items):
        return sympy.Or(*items, evaluate=False)
    if are_relations and not equation_count:
        links: list[Any] = []
        for item in items:
            if isinstance(item, sympy.And):
                links += item.args
            else:
                links.append(item)
        return sympy.And(*links, evaluate=False)
    if is_either and not equation_count and any(map(_may_be_set, items)):
        return Union(tuple(items))
    if is_either and len(set(map(_exactly, items))) == 1 and is_plain(items[0]):
        return items[0]  # one number in two notations
    if all(isinstance(item, Quantity) for item in items):
        total = _in_first_unit(items)
        if total is not None:
            return total
    return Collection(tuple(items), "")


def _in_first_unit(quantities: list[Quantity]) -> Quantity | None:
    """2 hours and 30 minutes as 2.5 hours. None for quantities that are a list or a sum: 2 hours and 90 minutes."""
    first, *others = quantities
    units = {quantity.unit for quantity in quantities}
    if not is_plain(first.value) or len(units) < len(quantities):
        return None
    total = first.value
    larger_unit = sympy.Integer(1)
    for quantity in others:
        unit = converted(Quantity(sympy.Integer(1), quantity.unit), first.unit)
        amount = converted(quantity, first.unit)
        if unit is None or amount is None or not amount.is_number:
            return None
        # Each unit is smaller than the one before it, and its amount does not fill that one.
        if unit >= larger_unit or amount < 0 or amount >= larger_unit:
            return None
        total += amount
        larger_unit = unit
    return Quantity(total, first.unit)


def _exactly(value: Value) -> Value:
    if isinstance(value, sympy.Float):
        return sympy.Rational(str(value))
    return value


def _may_be_set(value: Value) -> bool:
    if isinstance(value, Collection):
        return value.may_be_interval
    return is_set(value) or isinstance(value, Relational)


def _named(left: str, right: str) -> Value | None:
    """The value on the right with the name on the left. None if the left side is more than a name."""
    name = re.sub(r"\\text|[\\{} ]", "", left)
    is_symbol = NAME.fullmatch(name) is not None or re.fullmatch(r"\\[a-z]+(_\{?\w+\}?)?", left)
    names_in_brackets = re.fullmatch(r"\(([a-zA-Z](?:_\{?\d\}?)?(?:, ?[a-zA-Z](?:_\{?\d\}?)?)+)\)", left)
    if not is_symbol and not names_in_brackets and not _NAMES.fullmatch(left):
        return None
    value = _read(right)
    if names_in_brackets:
        names = re.sub(r"[{} ]", "", names_in_brackets[1]).split(",")
        if not isinstance(value, Collection) or len(value.items) != len(names):
            return value
        items = [named(name, item) for name, item in zip(names, value.items, strict=True)]
        return Collection(tuple(items), "()")
    if is_symbol:
        return named(name, value)
    return Named(name, value)


def named(name: str, value: Value) -> Value:
    """A symbol's value as an equation, or as `Named` if it is no expression. `x = 1, 2` names both values."""
    if isinstance(value, Collection) and value.brackets == "":
        items = [named(name, item) for item in value.items]
        return Collection(tuple(items), "")
    if isinstance(value, sympy.Expr) and not isinstance(value, Percent):
        return sympy.Eq(sympy.Symbol(name), value, evaluate=False)
    return Named(name, value)


def _quantity(text: str) -> Value | None:
    quantity = _QUANTITY.fullmatch(text)
    if quantity is None:
        return None
    amount, space, words = quantity.groups()
    if words.startswith("°") and _ANGLE_FUNCTIONS.search(amount):
        return None  # the degrees are those of an argument: sin 30°
    is_marked = words.startswith(r"\text")
    is_apart = bool(space) or words[0] == "("
    unit = read_unit(words, is_marked, is_apart)
    if unit is None:
        return None
    value = _read(amount)
    return value if unit == "" else Quantity(value, unit)


def _expression(text: str) -> Value:
    """A single expression or relation, in Python's notation or LaTeX."""
    if "\\" not in text and not re.search(r"[\^_]\s*\{", text):
        try:
            return read_python(text.replace("^", "**"), read_text)
        except (Unreadable, TypeError, ValueError, AttributeError, NotImplementedError, IndexError):
            pass
    fraction = _as_fraction(text)
    if fraction is not None:
        return fraction
    latex = text
    if _ANGLE_FUNCTIONS.search(latex):
        latex = _ANGLES.sub(_in_radians, latex)
    for spell in _FOR_PARSER:
        latex = spell(latex)
    latex = _MIXED_WITHIN.sub(_mixed_as_fraction, latex)
    latex = _ANY_FRACTION.sub(_unreduced_as_product, latex)
    without_operators = re.sub(r"\\operatorname\s*\{[a-z]+\}", "", latex)
    if word := _UNKNOWN_WORD.search(without_operators):
        raise Unreadable(f"words among mathematics, {word[0]!r}")
    if _TOUCHING.search(latex.replace("$", " ")):
        raise Unreadable("numbers side by side")
    parsed = latex2sympy(
        normalize_latex(latex, _NORMALIZED),
        is_real=not should_treat_as_complex(latex),
        convert_degrees=False,
        normalization_config=None,
        conversion_config=_CONVERTED,
    )
    if not isinstance(parsed, sympy.Basic):
        raise Unreadable("math-verify's parser finds no single expression")
    is_numeral = re.fullmatch(r"[-+\d.,{} ]+", latex)
    if isinstance(parsed, sympy.Number) and parsed.is_finite and not is_numeral:
        return sympy.UnevaluatedExpr(parsed)  # the parser has worked it out
    return parsed


def _in_radians(degrees: re.Match[str]) -> str:
    amount = degrees[1]
    if not amount[0].isdigit():
        return rf"({amount}\cdot\frac{{\pi}}{{180}})"
    half_turns = Fraction(amount) / 180
    return rf"({half_turns.numerator}\cdot{half_turns.denominator}^{{-1}}\cdot\pi)"


def _mixed_as_fraction(mixed: re.Match[str]) -> str:
    """A mixed number in an expression as a fraction: the parser would multiply its parts."""
    whole, numerator, denominator = _integers(mixed.groups())
    if numerator >= denominator:
        raise Unreadable("a number beside a fraction that is none of a mixed number")
    return rf"\frac{{{whole * denominator + numerator}}}{{{denominator}}}"


def _unreduced_as_product(fraction: re.Match[str]) -> str:
    """A fraction that is not in lowest terms as a product with an inverse: the parser would reduce it."""
    numerator, denominator = _integers(fraction.groups())
    if math.gcd(numerator, denominator) == 1:
        return fraction[0]
    return rf"({numerator} \cdot {denominator}^{{-1}})"


def _integers(groups: Sequence[str | None]) -> list[int]:
    """The integers that a pattern has found; a pattern has a group for each place where one may stand."""
    return [int(digits) for digits in groups if digits]


def _as_fraction(text: str) -> Value | None:
    r"""What is written as one number: \frac{3}{4}, 1\frac{1}{2}, 0.1\overline{6}, \binom{5}{2}; None if it is none."""
    if repeating := _REPEATING.fullmatch(text):
        whole, fixed, *cycles = repeating.groups()
        cycle = next(digits for digits in cycles if digits)
        # 0.1666... is (16 - 1)/90: subtracting what comes before the cycle cancels the endless digits.
        numerator = int(whole + fixed + cycle) - int(whole + fixed)
        denominator = 10 ** len(fixed) * (10 ** len(cycle) - 1)
        return sympy.Rational(numerator, denominator)
    if mixed := _MIXED.fullmatch(text):
        sign, *groups = mixed.groups()
        whole, numerator, denominator = _integers(groups)
        value = as_number(f"{sign}{whole * denominator + numerator}/{denominator}")
        if numerator < denominator and sympy.gcd(numerator, denominator) == 1:
            return value
        return sympy.UnevaluatedExpr(value)
    if fraction := _FRACTION.fullmatch(text):
        sign, *groups = fraction.groups()
        above, below = (digits for digits in groups if digits)
        signed = f"{sign}{above}".replace("--", "")
        return as_ratio(as_number(signed), as_number(below))
    return None
