"""Reads texts: references, quoted answers, answers in prose; LaTeX, Python and ordinary notation.

What stands around mathematics (brackets and commas, left sides, relations, units, percent signs, words) and matrices
are read here; single expressions go to Python's parser or to math-verify's. That one reads `25_8` as 25, `1 1/2` as 1,
`18 19` as 37, `2(3)` as 5, `hello world` as a product of letters, and works out binomials and fractions, which would
turn a problem into its answer. `texts.yaml` has what is set right before reading.
"""

import math
import re
import unicodedata
from fractions import Fraction
from itertools import accumulate
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
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff]")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_CLEAN = [rule(entry) for entry in TABLE["clean"]]
_FOR_PARSER = [rule(entry) for entry in TABLE["parser"]]
_SYNONYMS = {word: text for text, words in TABLE["words"].items() for word in words}
_SYNONYMS |= {word: str(number) for number, word in enumerate(TABLE["numerals"].split())}
_NAMES = re.compile("|".join(f"(?:{entry['find']})" for entry in TABLE["names"]))
_NO_WORDS = frozenset(TABLE["functions_in_texts"].split())
_TEXT = re.compile(r"\\text\s*\{([^{}\\]*)\}")
_WORDS = re.compile(r"[^\W\d_]+(?:[.,'’-]+[^\W\d_]+)*[.,]?(?: [\w.,'’()-]+)*")
_LETTER = re.compile(TABLE["letter"])
_LETTERS = re.compile(r"(?=[A-J]{2,10}$)A?B?C?D?E?F?G?H?I?J?")
_CHINESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]+")
_RESIDUE = re.compile(r"(?:[a-z] *\\equiv *)?(-?\d+) *(?:\(?mod *|\\pmod *\{?|\\bmod *|\(?\\mod *)(\d+)\}?\)?")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = (
    "(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY, _YEAR = r"(\d{1,2})(?:st|nd|rd|th)?", r"(?:,? (\d{4}))?"
_MONTH_DAY = re.compile(rf"{_MONTH} {_DAY}{_YEAR}", re.IGNORECASE)
_DAY_MONTH = re.compile(rf"(?:the )?{_DAY} (?:of )?{_MONTH}{_YEAR}", re.IGNORECASE)
_ISO_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_TIME = re.compile(r"(\d{1,2})(?::(\d\d))?(?::(\d\d))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
_VERBATIM = re.compile(r"\d+_(\d+|\{\d+\})|\d+(\s*:\s*\d+)+|[+-]?0[xXbBoO][0-9a-fA-F]+|[IVX]{2,4}")
_PERCENT = re.compile(r"(.*?)\s*(?:\\%|\\text\{ ?percent(?:age)? ?\}|per ?cent(?:age)?|pct)", re.DOTALL)
_UNIT_CHARS = r"(?:\\text\s*\{[^{}]*\}|[^\W\d_.]|(?<=[^\W\d_])\.|[$€£¥¢°(]|[ /·*)]|(?<=[\w})])\s*\^\s*\{?-?\d\}?)"
_AMOUNT = r".*?[\d)}\]]|.*?(?:\\|(?<![A-Za-z]))pi(?![A-Za-z])|.+?(?=\s*\\text)"
_QUANTITY = re.compile(rf"({_AMOUNT})(\s*)(?!pi(?![A-Za-z]))((?=\\text|[^\W\d_]|[$€£¥¢°(]){_UNIT_CHARS}+)", re.DOTALL)
_BUILDER = re.compile(r"\s*[a-z]\s*(?:\\in.*?)?(?:\\mid(?![a-z])|\||:)\s*(.*(?:[<>]|\\(?:le|ge|ne)(?![a-z])).*)")
_REPEATING = re.compile(r"([+-]?\d+)\.(\d*?)(?:\\overline\s*\{(\d+)\}|\\dot\s*\{?(\d)\}?)")
_FRACTION = re.compile(r"([+-]?)\s*\\frac\s*(?:\{([+-]?\d+)\}|(\d))\s*(?:\{([+-]?\d+)\}|(\d))")
_ANY_FRACTION = re.compile(
    r"\\frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))|(?<![\w^_.})])(\d+)\s*/\s*(\d+)(?![\w^_.{(!])"
)
_MIXED_WITHIN = re.compile(r"(?<![\w^_.}])(\d+) ?\\frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))")
_MIXED = re.compile(r"([+-]?)\s*(\d+) ?(?:\\frac\s*\{?(\d+?)\}?\s*\{?(\d+)\}?|(?<= )(\d+) ?/ ?(\d+))")
_APART = re.compile(r"[+-]?\d[\d.]*(?: [+-]?\d[\d.]*)+")
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
_ENVIRONMENT = re.compile(
    r"(.*?)\\begin\s*\{(array|cases|[pbBvV]?matrix|smallmatrix|aligned|gathered)\}(?:\s*\{[lcr|\s]*\})?(.*)\\end\s*\{\2\}",
    re.DOTALL,
)
_FACTOR = re.compile(r"\s*(?:\\cdot|\\times|\*)$")
"""What stands between a matrix and the factor before it."""
_ONLY_LETTERS = re.compile(r"[A-Za-z]{1,2}\d?(?: [A-Za-z]{1,2}\d?)+|[A-Za-z]{2}")
_ONLY_BRACKETS = re.compile(r"[()\[\]{}<>⦃⦄\s]{3,}|\(\)")
_ANGLES = re.compile(r"(\d+(?:\.\d+)?|(?<![A-Za-z])[a-z]|\\[a-z]+|\))\s*°")
_ANGLE_FUNCTIONS = re.compile(r"(?<![A-Za-z])(sin|cos|tan|cot|sec|csc|cis)(?![a-z])")
_UNKNOWN_WORD = re.compile(r"\\text|(?<![\\A-Za-z])(?!sqrt|arc|sinh|cosh|tanh)[a-z]{4,}")
_OPENING, _CLOSING = "([{⟨⦃", ")]}⟩⦄"
"""With those of vectors, and of sets, whose braces are not those that group."""


def read_text(text: str) -> Value:
    """The value of a text. Raises Unreadable, and what the parsers raise."""
    require_readable(text)
    text = _SUPERSCRIPT.sub(lambda found: f"^{{{unicodedata.normalize('NFKC', found[0])}}}", text)
    text = unicodedata.normalize("NFKC", extract_boxed_content(text).translate(_CHARACTERS))
    text = " ".join(_INVISIBLE.sub("", text).split())
    text = _COMMAND.sub(lambda found: "\\" + TABLE["commands"].get(found[1], found[1]), text)
    for clean in _CLEAN:
        text = clean(text)
    return _read(text)


def require_readable(text: str) -> None:
    """Raises Unreadable for texts that are not worth an attempt."""
    if len(text) > MAX_CHARS or "\0" in text or not text:
        raise Unreadable("empty, too long, or with null bytes")
    if max(_depths(text)) > _MAX_DEPTH:
        raise Unreadable("too many brackets within each other")


def _read(text: str) -> Value:
    text = text.strip()
    bare = re.sub(r"\s+", " ", _TEXT.sub(r"\1", text)).strip()
    if not bare:
        raise Unreadable("nothing")
    if (synonym := _SYNONYMS.get(bare.casefold(), text)) != text:
        return _read(synonym)
    if (sign := _as_it_stands(bare)) is not None:
        return sign
    if environment := _ENVIRONMENT.fullmatch(re.sub(r"^[\[(⦃] ?(?=\\begin)|(?<=\}) ?[\])⦄]$", "", text)):
        return _environment(*environment.groups())
    if _APART.fullmatch(text) and not _MIXED.fullmatch(text):
        return Collection(tuple(map(_read, text.split(" "))), "")
    parts, is_either = _parts(bare if _TEXT.fullmatch(text) else text)
    if len(parts) > 1:
        return _side_by_side([_read(part) for part in parts], is_either)
    if text[0] in _OPENING and text[-1] in _CLOSING and min(_depths(text)[:-1]) > 0:
        return _bracketed(text[0] + text[-1], text[1:-1], text)
    if (words := _words(text, bare)) is not None:
        return words
    if re.search(r"\\(pm|mp)(?![a-z])", text):
        return _both_signs(text)
    if len(sets := re.split(r"\\cup(?![a-z])", text)) > 1:
        return Union(tuple(map(_read, sets)))
    if len(sides := re.split(r"\\setminus(?![a-z])|\\backslash(?![a-z])", text)) == 2:
        whole, removed = map(_read, sides)
        if not isinstance(removed, Collection):
            removed = Collection((removed,), "{}")
        return Without(whole, removed)
    sides = re.split(r"(?<![<>!=:\\])=(?!=)(?![^(]*\))", text)
    if len(sides) == 2:
        left, right = map(str.strip, sides)
        named = _named(left, right)
        return sympy.Eq(_expression(left), _expression(right), evaluate=False) if named is None else named
    if len(sides := _RELATION.split(text)) > 1:
        return _relation([_expression(side.strip()) for side in sides[::2]], sides[1::2])
    if point := re.fullmatch(r"([A-Z]) ?(\(.*,.*\))", text):
        return Named(point[1], _read(point[2]))
    if found := _PERCENT.fullmatch(text):
        return Percent(_read(found[1]))
    return _expression(text) if (quantity := _quantity(text)) is None else quantity


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
    links = [
        _RELATIONS[sign](left, right, evaluate=False)
        for left, sign, right in zip(sides[:-1], signs, sides[1:], strict=True)
    ]
    return links[0] if len(links) == 1 else sympy.And(*links, evaluate=False)


def _environment(before: str, name: str, rows: str) -> Value:
    """A matrix, perhaps with a factor before it, or lines below each other: cases, equations."""
    if name in ("vmatrix", "Vmatrix"):
        raise Unreadable("a determinant that is still to be worked out")
    lines = [line.split("&") for line in rows.split(r"\\") if line.strip()]
    if name == "cases" and all(len(line) == 2 for line in lines):
        cases = [_case(value, condition) for value, condition in lines]
        return sympy.Piecewise(*cases, evaluate=False)
    if name in ("cases", "aligned", "gathered"):
        return _side_by_side([_read("".join(line)) for line in lines], is_either=False)
    cells = [[_read(cell) for cell in line] for line in lines]
    if all(len(line) == 1 and isinstance(line[0], Relational) for line in cells):
        return _side_by_side([line[0] for line in cells], is_either=False)
    factor = _FACTOR.sub("", before.strip())
    if factor:
        number = sympy.Integer(-1) if factor == "-" else _expression(factor)
        cells = [[_left_to_work_out(number, cell) for cell in line] for line in cells]
    matrix_rows = tuple(Collection(tuple(line), "[]") for line in cells)
    return Collection(matrix_rows, "[]")


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


def _as_it_stands(text: str) -> Value | None:
    """Choices by their letters, times, dates, residues, ratios, numbers in other bases, brackets or letters alone."""
    if choice := _LETTER.fullmatch(text):
        return _choice(next(filter(None, choice.groups())), text)
    if _LETTERS.fullmatch(text):
        return Collection(tuple(map(Choice, text)), "")
    if (time := _time(text)) is not None:
        return time
    if (date := _date(text)) is not None:
        return date
    if residue := _RESIDUE.fullmatch(text):
        return Str(f"{residue[1]} mod {residue[2]}")
    if _ONLY_BRACKETS.fullmatch(text):
        return Str(re.sub(r"\s", "", text))
    if _ONLY_LETTERS.fullmatch(text) and text.lower() != "no" and _NO_WORDS.isdisjoint(text.split(" ")):
        return Letters(text.replace(" ", ""))
    return Str(re.sub(r"[{}\s]", "", text).lower()) if _VERBATIM.fullmatch(text) else None


def _time(text: str) -> Value | None:
    """A time of day as it is said in twelve hours; what no clock shows (13:00 am) equals only itself."""
    found = _TIME.fullmatch(text)
    if found is None or not (found[2] or found[4]):
        return None
    hour, minutes, seconds = int(found[1]), found[2] or "00", found[3] or ""
    half = (found[4] or "").lower()
    is_shown = hour <= 12 if half == "a" else hour <= 23 and not (half == "p" and hour == 0)
    if not is_shown or int(minutes) > 59:
        return Str(text.casefold())
    if hour == 0:
        hour, half = 12, "a"
    elif hour > 12:
        hour, half = hour - 12, "p"
    return Str(f"{hour}:{minutes}{seconds} {half}".strip())


def _date(text: str) -> Value | None:
    if iso := _ISO_DATE.fullmatch(text):
        return date_of(*map(int, iso.groups()))
    if found := _MONTH_DAY.fullmatch(text):
        month, day, year = found.groups()
    elif found := _DAY_MONTH.fullmatch(text):
        day, month, year = found.groups()
    else:
        return None
    return date_of(int(year) if year else None, _MONTHS.index(month[:3].lower()) + 1, int(day))


def _choice(letter: str, text: str) -> Value:
    """A choice with what stands after its letter; what can't be read says nothing."""
    stated = re.sub(rf"^.*?{letter}\s*[).:\]]*\s*", "", text, count=1)
    try:
        return Choice(letter, _read(stated) if stated else None)
    except (Unreadable, TypeError, ValueError, AttributeError, NotImplementedError, IndexError):
        return Choice(letter, Str(stated.casefold()))


def _words(text: str, bare: str) -> Value | None:
    is_marked = bare != text
    letters = re.findall(r"[^\W\d_]+", bare)
    if _CHINESE.fullmatch(bare):
        return Str(bare)
    if not _WORDS.fullmatch(bare) or not _NO_WORDS.isdisjoint(letters):
        return _read(bare) if _TEXT.fullmatch(text) and is_marked else None
    if bare.casefold() == "nan":
        raise Unreadable("not a number")
    longest = max(map(len, letters))
    if longest >= 3 or (is_marked and longest == 2) or bare.lower() == "no":
        return Str(re.sub(r"^(the|an?) ", "", bare.casefold()))
    return _expression(bare) if is_marked else None


def _depths(text: str) -> list[int]:
    """After each character, how many brackets are open."""
    return list(accumulate((char in _OPENING) - (char in _CLOSING) for char in text))


def _parts(text: str) -> tuple[list[str], bool]:
    """The parts between commas that stand in no brackets, and whether "or" is one of what separates them."""
    inside = text.replace(r"\begin", "(     ").replace(r"\end", ")   ")
    parts, start, is_either = [], 0, False
    for at, depth in enumerate(_depths(inside)):
        if depth == 0 and inside[at] in ",;∨":
            parts.append(text[start:at])
            start = at + 1
            is_either |= inside[at] == "∨"
    parts.append(text[start:])
    return [part for part in parts if part.strip()], is_either


def _bracketed(brackets: str, inner: str, text: str) -> Value:
    brackets = brackets.replace("⦃", "{").replace("⦄", "}")
    if brackets == "{}" and (builder := _BUILDER.fullmatch(inner)):
        return Union((_read(builder[1]),))
    if brackets == "{}" and ":" in inner:
        return _expression(text)
    parts, _ = _parts(inner)
    if len(parts) == 1 and brackets == "()":
        return _read(inner)
    items = _flat([_read(part) for part in parts])
    return Collection(tuple(items), brackets.replace("⟨⟩", "()"), len(items) == 2 and brackets not in ("⟨⟩", "{}"))


def _flat(items: list[Value]) -> list[Value]:
    """What `\\pm` has made two of stands as two."""
    return [
        part
        for item in items
        for part in (item.items if isinstance(item, Collection) and item.brackets == "" else (item,))
    ]


def _side_by_side(items: list[Value], is_either: bool) -> Value:
    items = _flat(items)
    are_relations = all(isinstance(item, Relational | sympy.And) for item in items)
    equations = sum(isinstance(item, sympy.Eq) for item in items)
    if is_either and are_relations and equations < len(items):
        return sympy.Or(*items, evaluate=False)
    if are_relations and not equations:
        links: list[Any] = []
        for item in items:
            links += item.args if isinstance(item, sympy.And) else [item]
        return sympy.And(*links, evaluate=False)
    if is_either and not equations and any(map(_may_be_set, items)):
        return Union(tuple(items))
    if is_either and len(set(map(_exactly, items))) == 1 and is_plain(items[0]):
        return items[0]  # one number in two notations
    if all(isinstance(item, Quantity) for item in items):
        total = _in_first_unit(items)
        if total is not None:
            return total
    return Collection(tuple(items), "")


def _in_first_unit(quantities: list[Quantity]) -> Quantity | None:
    """2 hours and 30 minutes as 2.5 hours. None for what is a list or a sum: 2 hours and 90 minutes."""
    first, *others = quantities
    if not is_plain(first.value) or len({quantity.unit for quantity in quantities}) < len(quantities):
        return None
    total, larger = first.value, sympy.Integer(1)
    for quantity in others:
        one = converted(Quantity(sympy.Integer(1), quantity.unit), first.unit)
        part = converted(quantity, first.unit)
        if one is None or part is None or not part.is_number:
            return None
        if one >= larger or part < 0 or part >= larger:
            return None
        total, larger = total + part, one
    return Quantity(total, first.unit)


def _exactly(value: Value) -> Value:
    return sympy.Rational(str(value)) if isinstance(value, sympy.Float) else value


def _may_be_set(value: Value) -> bool:
    return is_set(value) or isinstance(value, Relational) or (isinstance(value, Collection) and value.may_be_interval)


def _named(left: str, right: str) -> Value | None:
    """A value with a name on its left; None if what is on the left says more than a name."""
    name = re.sub(r"\\text|[\\{} ]", "", left)
    is_symbol = NAME.fullmatch(name) is not None or re.fullmatch(r"\\[a-z]+(_\{?\w+\}?)?", left)
    tuple_of = re.fullmatch(r"\(([a-zA-Z](?:_\{?\d\}?)?(?:, ?[a-zA-Z](?:_\{?\d\}?)?)+)\)", left)
    if not is_symbol and not tuple_of and not _NAMES.fullmatch(left):
        return None
    value = _read(right)
    if tuple_of:
        names = re.sub(r"[{} ]", "", tuple_of[1]).split(",")
        if not isinstance(value, Collection) or len(value.items) != len(names):
            return value
        pairs = zip(names, value.items, strict=True)
        return Collection(tuple(named(name, item) for name, item in pairs), "()")
    return named(name, value) if is_symbol else Named(name, value)


def named(name: str, value: Value) -> Value:
    """A symbol's value as an equation, or what comes next to one; of each, if there are several side by side."""
    if isinstance(value, Collection) and value.brackets == "":
        return Collection(tuple(named(name, item) for item in value.items), "")
    if isinstance(value, sympy.Expr) and not isinstance(value, Percent):
        return sympy.Eq(sympy.Symbol(name), value, evaluate=False)
    return Named(name, value)


def _quantity(text: str) -> Value | None:
    if not (found := _QUANTITY.fullmatch(text)):
        return None
    amount, space, words = found.groups()
    if words.startswith("°") and _ANGLE_FUNCTIONS.search(amount):
        return None
    unit = read_unit(words, is_marked=words.startswith(r"\text"), is_apart=bool(space) or words[0] == "(")
    if unit is None:
        return None
    return _read(amount) if unit == "" else Quantity(_read(amount), unit)


def _expression(text: str) -> Value:
    """A single expression or relation, in Python's notation or LaTeX."""
    if "\\" not in text and not re.search(r"[\^_]\s*\{", text):
        try:
            return read_python(text.replace("^", "**"), read_text)
        except (Unreadable, TypeError, ValueError, AttributeError, NotImplementedError, IndexError):
            pass
    if (fraction := _as_fraction(text)) is not None:
        return fraction
    latex = text
    if _ANGLE_FUNCTIONS.search(latex):
        latex = _ANGLES.sub(_in_radians, latex)
    for spell in _FOR_PARSER:
        latex = spell(latex)
    latex = _MIXED_WITHIN.sub(_mixed_as_fraction, latex)
    latex = _ANY_FRACTION.sub(_unreduced_as_product, latex)
    if unknown := _UNKNOWN_WORD.search(re.sub(r"\\operatorname\s*\{[a-z]+\}", "", latex)):
        raise Unreadable(f"words among mathematics, {unknown[0]!r}")
    if re.search(r"(?<![\w^_.])(?<!frac )\d[\d.]*\s+\d", latex):
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
    if isinstance(parsed, sympy.Number) and parsed.is_finite and not re.fullmatch(r"[-+\d.,{} ]+", latex):
        return sympy.UnevaluatedExpr(parsed)  # the parser has worked it out
    return parsed


def _in_radians(degrees: re.Match[str]) -> str:
    amount = degrees[1]
    if not amount[0].isdigit():
        return rf"({amount}\cdot\frac{{\pi}}{{180}})"
    share = Fraction(amount) / 180
    return rf"({share.numerator}\cdot{share.denominator}^{{-1}}\cdot\pi)"


def _mixed_as_fraction(mixed: re.Match[str]) -> str:
    """A mixed number in an expression as a fraction: the parser would multiply its parts."""
    whole, above, below = (int(part) for part in mixed.groups() if part)
    if above >= below:
        raise Unreadable("a number beside a fraction that is none of a mixed number")
    return rf"\frac{{{whole * below + above}}}{{{below}}}"


def _unreduced_as_product(fraction: re.Match[str]) -> str:
    """A fraction that is not in lowest terms as a product with an inverse: the parser would reduce it."""
    above, below = (int(part) for part in fraction.groups() if part)
    return fraction[0] if math.gcd(above, below) == 1 else rf"({above} \cdot {below}^{{-1}})"


def _as_fraction(text: str) -> Value | None:
    r"""What is written as one number: \frac{3}{4}, 1\frac{1}{2}, 0.1\overline{6}, \binom{5}{2}; None if it is none."""
    if repeating := _REPEATING.fullmatch(text):
        whole, fixed, *cycles = repeating.groups()
        cycle = next(filter(None, cycles))
        size = int(whole + fixed + cycle) - int(whole + fixed)
        return sympy.Rational(size, 10 ** len(fixed) * (10 ** len(cycle) - 1))
    if mixed := _MIXED.fullmatch(text):
        whole, above, below = (int(part) for part in mixed.groups()[1:] if part)
        value = as_number(f"{mixed[1]}{whole * below + above}/{below}")
        is_proper = above < below and sympy.gcd(above, below) == 1
        return value if is_proper else sympy.UnevaluatedExpr(value)
    if fraction := _FRACTION.fullmatch(text):
        sign, *digits = fraction.groups()
        numerator, denominator = (part for part in digits if part)
        return as_ratio(as_number(f"{sign}{numerator}".replace("--", "")), as_number(denominator))
    return None
