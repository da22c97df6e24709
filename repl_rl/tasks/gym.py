"""Questions of reasoning-gym: `rg-NAME` is its data set NAME, with its generator, its wording and its scorer.

A problem is a number: the data set's entry of that index, for seed 0. The data set's own `score_answer` grades, in a
confined process, and only a full score counts as right: partial scores pay for answers that are near or well formed.
The scorers trust what they read. Some hand it to `eval`, by sympy's `parse_expr`, and one takes "nan" for every complex
number. So each family has a form, which reads a submission as data and writes it anew. A submission that doesn't fit
the form is wrong.

Data sets without a reference answer are left out. So are those that draw from sets, because they make other problems in
another process (`intermediate_integration`, `polynomial_multiplication`).
"""

import ast
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from repl_rl.errors import DependencyError
from repl_rl.tasks.families import Family
from repl_rl.utils.text import string_of

Form = Callable[[list[str]], str]
"""Takes the texts that were submitted, and returns the text for the scorer. Raises ValueError if they don't fit."""

PREFIX = "rg-"
_FULL = 0.999
"""A full score, but for rounding: `polynomial_equations` rounds roots to four places and pays by the distance."""
_NUMERAL = r"[+-]?\d{1,400}(?:\.\d{1,400})?(?:e[+-]?\d{1,3})?"
_WRAPPED = re.compile(rf"(?:(?:np|numpy)\.)?(?:float|int|uint)\d+\(({_NUMERAL})\)|Decimal\('({_NUMERAL})'\)")
_FRACTION = re.compile(rf"Fraction\(({_NUMERAL}), ({_NUMERAL})\)")
_LATEX = re.compile(r"\$?(?:\\d?frac\{)?(\d{1,400})(?:\}\{|/)(\d{1,400})\}?\$?")
_PLAIN = re.compile(rf"({_NUMERAL})(/\d{{1,400}})?", re.IGNORECASE)
_COMPLEX = re.compile(rf"\(*(?:{_NUMERAL})?\s*(?:[+-]?\s*(?:\d{{1,400}}(?:\.\d{{1,400}})?)?[ij])?\)*")
_FUNCTIONS = frozenset(["sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "sqrt"])
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.UAdd, ast.USub)
_MAX_WORDS_CHARS = 2_000


def imported(name: str) -> Any:
    """A module of reasoning-gym. Raises DependencyError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DependencyError(
            f"problems of reasoning-gym need its package ({error}); bring it with: pip install reasoning-gym"
        ) from error


def home() -> str:
    """The folder that reasoning-gym is imported from, for processes with other search paths."""
    return str(Path(imported("reasoning_gym").__file__).parents[1])


def number(texts: list[str]) -> str:
    """One number: `71`, `71.0`, `Fraction(1, 3)`, `"1/3"`, `"\\frac{1}{3}"`, `np.int64(71)`."""
    text = _only(texts)
    if fraction := _FRACTION.fullmatch(text) or _LATEX.fullmatch(text):
        return f"{fraction[1]}/{fraction[2]}"
    if wrapped := _WRAPPED.fullmatch(text):
        text = wrapped[1] or wrapped[2]
    if not _PLAIN.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    return re.sub(r"\.0+\Z", "", text)


def numbers(texts: list[str], separator: str = ", ") -> str:
    """Numbers: several values, a list, a tuple or a set, or a text with commas, `*` or `×` between them."""
    parts = re.split(r"[,*×]", _unbracketed(texts))
    return separator.join(number([part.strip()]) for part in parts if part.strip())


def complex_number(texts: list[str]) -> str:
    """`(3-4j)`, or `"3 - 4i"`."""
    text = _only(texts)
    if not text or not _COMPLEX.fullmatch(text):
        raise ValueError(f"{text!r} is not a complex number")
    return text


def expression(texts: list[str]) -> str:
    """An expression in one-letter symbols and the functions of calculus, with Python's operators."""
    tree = ast.parse(_only(texts), mode="eval")
    function_ids = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if id(node) in function_ids and name in _FUNCTIONS:
                pass
            case ast.Name(id=name) if id(node) not in function_ids and _is_symbol(name):
                pass
            case ast.Call(func=ast.Name(), args=[_], keywords=[]):
                pass
            case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
                pass
            case ast.Expression() | ast.BinOp() | ast.UnaryOp() | ast.Load() | ast.Pow():
                pass
            case _ if isinstance(node, _OPERATORS):
                pass
            case _:
                raise ValueError(f"{type(node).__name__} has no place in an expression")
    return ast.unparse(tree)


def _is_symbol(name: str) -> bool:
    return name == "pi" or (len(name) == 1 and name.isascii())


def arithmetic(texts: list[str]) -> str:
    """An expression of whole numbers with + - * / and brackets. Without symbols: `x - x` would cancel a number."""
    tree = ast.parse(_only(texts), mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int:  # and not a bool
            continue
        if not isinstance(node, (ast.Expression, ast.BinOp, ast.UnaryOp, *_OPERATORS)):
            raise ValueError(f"{type(node).__name__} has no place in arithmetic")
    return ast.unparse(tree)


def words(texts: list[str]) -> str:
    """A text as it is; several, or a list of them, with spaces between."""
    is_single = len(texts) == 1 and texts[0][:1] not in "[("
    text = _only(texts) if is_single else _unbracketed(texts)
    if len(text) > _MAX_WORDS_CHARS:
        raise ValueError("too long")
    return text


def path(texts: list[str]) -> str:
    """Steps or nodes in order: a list of them, or one text with spaces between."""
    steps = _unbracketed(texts).replace(",", " ").split()
    return " ".join(step.strip("'\"") for step in steps)


def _only(texts: list[str]) -> str:
    """The one text, without the quotes of a string."""
    if len(texts) != 1:
        raise ValueError(f"{len(texts)} values in place of one")
    text = texts[0].strip()
    if text[:1] in ("'", '"'):
        value = string_of(text)
        if value is None:
            raise ValueError("not a text")
        return value.strip()
    return text


def _unbracketed(texts: list[str]) -> str:
    text = ", ".join(_only([text]) for text in texts)
    is_bracketed = text[:1] + text[-1:] in ("()", "[]", "{}")
    return text[1:-1] if is_bracketed else text


_NAMES: Mapping[Form, str] = {
    numbers: "polynomial_equations",
    number: (
        "simple_equations basic_arithmetic chain_sum products gcd lcm leg_counting count_bits count_primes "
        "decimal_arithmetic decimal_chain_sum fraction_simplification dice simple_geometry largest_island "
        "circuit_logic self_reference aiw gsm_symbolic"
    ),
    expression: "simple_integration",
    complex_number: "complex_arithmetic",
    partial(numbers, separator=" × "): "prime_factorization",
    words: "bitwise_arithmetic base_conversion course_schedule family_relationships knights_knaves syllogism",
    arithmetic: "countdown",
    path: "shortest_path path_star",
}
FORMS: Mapping[str, Form] = {name: form for form, names in _NAMES.items() for name in names.split()}
"""How the submissions to a data set are read, by its name."""

_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "prime_factorization": {"max_value": 100_000},
    "gsm_symbolic": {"size": 200_000},
}
"""Where the package's defaults make too few problems. Most data sets have more than their `size`."""


@lru_cache(4096)
def entry(name: str, index: int) -> Mapping[str, Any]:
    """The first problem from this index on that has an answer which its own scorer accepts: question, answer, metadata.
    (The scorer of `gsm_symbolic` accepts no negative one.) Raises DependencyError if reasoning-gym is missing.
    """
    data = data_set(name)
    while True:
        problem: Mapping[str, Any] = data[index]
        answer = problem["answer"]
        if answer and _is_solved(name, [repr(str(answer))], problem):
            return problem
        index += 1


def accepts(name: str, submitted: Sequence[str], index: int) -> bool:
    """Whether the package's scorer gives the whole score to the `repr`s that were submitted."""
    return _is_solved(name, submitted, entry(name, index))


def _is_solved(name: str, submitted: Sequence[str], problem: Mapping[str, Any]) -> bool:
    try:
        text = FORMS[name](list(submitted))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return float(data_set(name).score_answer(text, problem)) >= _FULL


def warm() -> None:
    """Import the package, which calls of `accepts` then share."""
    imported("reasoning_gym")


@cache
def data_set(name: str, **arguments: Any) -> Any:
    """The package's data set, with these arguments for its generator, or those that it needs here."""
    settings = {"seed": 0, "size": 1, **_ARGUMENTS.get(name, {}), **arguments}
    return imported("reasoning_gym").create_dataset(name, **settings)


def _family(name: str) -> Family:
    size = _ARGUMENTS.get(name, {}).get("size", 10**9)
    return Family(
        PREFIX + name,
        draw=lambda rng: (rng.randrange(size),),
        solve=lambda index: str(entry(name, index)["answer"]),
        phrasings=("{0}",),
        present=lambda index: (entry(name, index)["question"],),
        accepts=partial(accepts, name),
        needs_gym=True,
    )


GYM_FAMILIES: dict[str, Family] = {PREFIX + name: _family(name) for name in FORMS}
"""The families of reasoning-gym by name."""
