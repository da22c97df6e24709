"""Reads texts: references, quoted answers, answers in prose; LaTeX, Python and ordinary notation.

What stands around mathematics (brackets and commas, left sides, units, percent signs, words) is read here; single
expressions go to Python's parser or to math-verify's. That one reads `25_8` as 25, `1 1/2` as 1, `18 19` as 37, `hello
world` as a product of letters, and works out binomials and determinants, which would turn a problem into its answer.
`texts.yaml` has what is set right before reading.
"""

import re
from itertools import accumulate
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig, extract_boxed_content, normalize_latex
from math_verify.grader import should_treat_as_complex
from sympy.core.relational import Relational
from sympy.core.symbol import Str

from repl_rl.tasks.grading.python_text import NAME, read_python
from repl_rl.tasks.grading.table import TABLE, rule
from repl_rl.tasks.grading.units import converted, read_unit
from repl_rl.tasks.grading.values import Collection, Named, Percent, Quantity, Unreadable, Value, worked

MAX_CHARS = 10_000
"""Longer answers are not read."""
_MAX_DEPTH = 50
_NORMALIZED = NormalizationConfig(malformed_operators=True, nits=True, boxed="none")
_CONVERTED = ConversionConfig(lowercase_symbols=False)
_CHARACTERS = str.maketrans(TABLE["characters"])
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
_TIME = re.compile(r"(\d{1,2})(?::(\d\d))?(?::(\d\d))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
_VERBATIM = re.compile(r"\d+_(\d+|\{\d+\})|\d+(\s*:\s*\d+)+|[+-]?0[xXbBoO][0-9a-fA-F]+|[IVX]{2,4}")
_PERCENT = re.compile(r"(.*?)\s*(?:\\%|\\text\{ ?percent(?:age)? ?\}|per ?cent(?:age)?|pct)", re.DOTALL)
_UNIT_CHARS = r"(?:\\text\s*\{[^{}]*\}|[^\W\d_.]|(?<=[^\W\d_])\.|[$€£¥¢°(]|[ /·*)]|(?<=[\w})])\s*\^\s*\{?-?\d\}?)"
_QUANTITY = re.compile(
    rf"(.*?[\d)}}\]]|.*?\\pi|.+?(?=\s*\\text))(\s*)((?=\\text|[^\W\d_]|[$€£¥¢°(]){_UNIT_CHARS}+)", re.DOTALL
)
_BUILDER = re.compile(r"\s*[a-z]\s*(?:\\in.*?)?(?:\\mid(?![a-z])|\||:)\s*(.*(?:[<>]|\\(?:le|ge|ne)(?![a-z])).*)")
_REPEATING = re.compile(r"(\d+)\.(\d*)\\overline\s*\{(\d+)\}")
_WORKED_OUT = re.compile(r"binom|matrix|\\det|gcd|lcm|mod|[\d})]\s*\(|\d\s+\d|\d\s*_")
"""What the parser works out itself: where a text has any of it, no number in it counts as written out."""
_UNKNOWN_WORD = re.compile(r"\\text|(?<![\\A-Za-z])(?!sqrt|arc|sinh|cosh|tanh)[a-z]{4,}")
_OPENING, _CLOSING = "([{⟨⦃", ")]}⟩⦄"
"""With those of vectors, and of sets, whose braces are not those that group."""


def read_text(text: str) -> Value:
    """The value of a text. Raises Unreadable, and what the parsers raise."""
    require_readable(text)
    text = " ".join(extract_boxed_content(text).translate(_CHARACTERS).split())
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
    parts, is_either = _parts(bare if _TEXT.fullmatch(text) else text)
    if len(parts) > 1:
        return _side_by_side([_read(part) for part in parts], is_either)
    if text[0] in _OPENING and text[-1] in _CLOSING and min(_depths(text)[:-1]) > 0:
        return _bracketed(text[0] + text[-1], text[1:-1], text)
    if (words := _words(text, bare)) is not None:
        return words
    if r"\pm" in text or r"\mp" in text:
        signs = ((r"\pm", "+", r"\mp", "-"), (r"\pm", "-", r"\mp", "+"))
        both = [_read(re.sub(r"^\+", "", text.replace(a, b).replace(c, d))) for a, b, c, d in signs]
        return Collection(tuple(both), "")
    if len(sets := re.split(r"\\cup(?![a-z])", text)) > 1:
        return sympy.Union(*(as_set(_read(part)) for part in sets))
    sides = re.split(r"(?<![<>!=:\\])=(?!=)(?![^(]*\))", text)
    if len(sides) == 2:
        left, right = map(str.strip, sides)
        named = _named(left, right)
        return sympy.Eq(_expression(left), _expression(right), evaluate=False) if named is None else named
    if found := _PERCENT.fullmatch(text):
        return Percent(_read(found[1]))
    return _expression(text) if (quantity := _quantity(text)) is None else quantity


def _as_it_stands(text: str) -> Value | None:
    """Choices by their letters, times, ratios and numbers in other bases."""
    if letter := _LETTER.fullmatch(text):
        return sympy.Symbol(letter[letter.lastindex or 0])
    if _LETTERS.fullmatch(text):
        return Collection(tuple(map(sympy.Symbol, text)), "")
    if (time := _TIME.fullmatch(text)) and (time[2] or time[4]):
        hour, half = int(time[1]), (time[4] or "").lower()
        hour, half = (hour - 12, "p") if hour > 12 else (hour, half)
        return Str(f"{hour}:{time[2] or '00'}{time[3] or ''} {half}".strip())
    return Str(re.sub(r"[{}\s]", "", text).lower()) if _VERBATIM.fullmatch(text) else None


def _words(text: str, bare: str) -> Value | None:
    is_marked = bare != text
    letters = re.findall(r"[^\W\d_]+", bare)
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
    cuts = [at for at, depth in enumerate(_depths(inside)) if depth == 0 and inside[at] in ",;∨"]
    parts = [text[start + 1 : end] for start, end in zip([-1, *cuts], [*cuts, len(text)], strict=True)]
    return [part for part in parts if part.strip()], any(text[at] == "∨" for at in cuts)


def _bracketed(brackets: str, inner: str, text: str) -> Value:
    brackets = brackets.replace("⦃", "{").replace("⦄", "}")
    if brackets == "{}" and (found := _BUILDER.fullmatch(inner)):
        return as_set(_read(found[1]))
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
    if all(isinstance(item, Relational) and not isinstance(item, sympy.Eq) for item in items):
        return (sympy.Or if is_either else sympy.And)(*items, evaluate=False)
    if is_either and not any(isinstance(item, sympy.Eq) for item in items) and any(map(_is_set, items)):
        return sympy.Union(*map(as_set, items))
    first, *others = items
    if all(isinstance(item, Quantity) for item in items) and len({item.unit for item in items}) == len(items):
        smaller = [converted(item, first.unit) for item in others]
        if None not in smaller:  # 2 hours and 30 minutes
            return Quantity(sympy.Add(first.value, *smaller), first.unit)
    return Collection(tuple(items), "")


def _is_set(value: Value) -> bool:
    return isinstance(value, sympy.Set | Relational) or (isinstance(value, Collection) and value.may_be_interval)


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
    number, space, words = found.groups()
    unit = read_unit(words, is_marked=words.startswith(r"\text"), is_apart=bool(space) or words[0] == "(")
    if unit is None:
        return None
    return _read(number) if unit == "" else Quantity(_read(number), unit)


def _expression(text: str) -> Value:
    """A single expression or relation, in Python's notation or LaTeX."""
    if "\\" not in text and not re.search(r"[\^_]\s*\{", text):
        try:
            return read_python(text.replace("^", "**"), read_text)
        except (Unreadable, TypeError, ValueError, AttributeError, NotImplementedError, IndexError):
            pass
    if "vmatrix" in text.lower():
        raise Unreadable("a determinant that is still to be worked out")
    latex = _REPEATING.sub(_as_fraction, text)
    for spell in _FOR_PARSER:
        latex = spell(latex)
    if unknown := _UNKNOWN_WORD.search(re.sub(r"\\(begin|end|text|operatorname)\s*\{[a-z]+\}", "", latex)):
        raise Unreadable(f"words among mathematics, {unknown[0]!r}")
    parsed = latex2sympy(
        normalize_latex(latex, _NORMALIZED),
        is_real=not should_treat_as_complex(latex),
        convert_degrees=False,
        normalization_config=None,
        conversion_config=_CONVERTED,
    )
    if not isinstance(parsed, sympy.Basic | sympy.MatrixBase):
        raise Unreadable("math-verify's parser finds no single expression")
    return _value(parsed, not _WORKED_OUT.search(latex))


def _as_fraction(repeating: re.Match[str]) -> str:
    whole, fixed, cycle = repeating.groups()
    size = int(whole + fixed + cycle) - int(whole + fixed)
    return rf"\frac{{{size}}}{{{10 ** len(fixed) * (10 ** len(cycle) - 1)}}}"


def _value(parsed: Any, is_written_out: bool) -> Value:
    match parsed:
        case sympy.MatrixBase():
            rows = [tuple(_value(entry, is_written_out) for entry in row) for row in parsed.tolist()]
            return Collection(tuple(Collection(row, "[]") for row in rows), "[]")
        case sympy.Number() if not is_written_out:
            return sympy.UnevaluatedExpr(parsed)
    return parsed


def as_set(value: Value) -> Any:
    """The value as a set; brackets in text are read as an interval. Raises Unreadable if it is not a set."""
    if isinstance(value, Named):
        return as_set(value.value)
    if not isinstance(value, Collection):
        expr = worked(value)
        if isinstance(expr, sympy.Set):
            return expr
        if isinstance(expr, Relational | sympy.And | sympy.Or):
            return expr.as_set()
    elif value.brackets == "{}" or not value.items:
        return sympy.FiniteSet(*map(worked, value.items))
    elif value.may_be_interval and len(value.brackets) == 2:
        interval = sympy.Interval(*map(worked, value.items), value.brackets[0] == "(", value.brackets[1] == ")")
        if isinstance(interval, sympy.Interval):
            return interval
    raise Unreadable("not a set")
