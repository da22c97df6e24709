"""When CPython's interactive mode runs what has been typed, and as what kind of line. Uses CPython's parser only."""

import ast
import codeop
import io
import re
import tokenize
import traceback
import warnings
from itertools import accumulate

from repl_rl.trajectory import LineKind
from repl_rl.utils.text import parsed

_PARSE_FLAGS: int = (
    ast.PyCF_ONLY_AST | codeop.PyCF_DONT_IMPLY_DEDENT | codeop.PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]
)
_BREAKS_OFF = "SyntaxError: the code breaks off\n"
_WHOLE_FLAGS: int = ast.PyCF_ONLY_AST | codeop.PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]

_DEEP = range(65, 201)
"""Brackets within brackets. Sources that are nested so deep are left to the kernel, because parsing one here could hold
up all sessions. CPython refuses deeper ones at once."""
_F_STRING = re.compile("[rR]?[fF][rR]?['\"]")
_STEPS = dict.fromkeys("([{", 1) | dict.fromkeys(")]}", -1)
"""By how much a bracket changes the depth."""


def is_blank(line: str) -> bool:
    """Whether `line` is blank to CPython. Other white space than this is an invalid character to it."""
    return not line.strip(" \t\f\r")


def holds_code(line: str) -> bool:
    """Whether `line` has more than white space and a comment."""
    parts = [part.lstrip(" \t\f") for part in line.split("\r")]
    return any(part and not part.startswith("#") for part in parts)


def holds_statement(source: str) -> bool:
    """Whether a cell has anything to run. A cell of backslash continuations with nothing after them has not."""
    return any(holds_code(line) for line in source.replace("\\\n", "").split("\n"))


def is_complete(source: str) -> bool:
    """Whether CPython would run `source` (or report its syntax error) now rather than read another line.

    codeop's method, plus what a terminal does. An empty line ends whatever is open, even a block without a body, unless
    the line is inside brackets or a string or after a backslash. A line of spaces ends nothing, unless it ends with a
    form feed, which resets the indentation; nor does a comment. Only the parser is asked, because the compiler (which
    refuses `return` outside a function) runs after the last line.
    """
    lines_before, newline, typed_line = source.rpartition("\n")
    is_comment = bool(newline) and not is_blank(typed_line) and not holds_code(typed_line)
    if is_comment and not _continues(lines_before.replace("\r", "\n")):
        return False
    source = source.replace("\r", "\n")
    before, _, last_line = source.rpartition("\n")
    if is_blank(last_line):
        at_margin = not last_line or last_line.endswith("\f")
        if at_margin and not _continues(source):
            return True
        if not at_margin and not _continues(before):
            return False
    if is_deep(source):
        opened = sum(map(source.count, "([{"))
        closed = sum(map(source.count, ")]}"))
        return opened < closed or not _continues(source)
    if _parse_error(source) is None:
        return True
    error = _parse_error(f"{source}\n")
    return error is not None and not _is_incomplete(error)


def kind_of(source: str) -> LineKind:
    """The kind of a cell that runs without an error: its last statement decides."""
    if is_deep(source):
        return LineKind.STATEMENT
    tree = parsed(source)
    if tree is None:
        return LineKind.SYNTAX_ERROR
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        return LineKind.EXPRESSION
    return LineKind.STATEMENT


def missing_end(source: str) -> str | None:
    """The error of an incomplete source: an unclosed bracket or string, or a block without a body.

    A kernel would wait for the rest of such a source. None for any other source, valid or not.
    """
    if is_deep(source):
        return _BREAKS_OFF if _continues(source) else None
    if not _is_incomplete(_parse_error(source, "exec", _WHOLE_FLAGS)):
        return None
    error = _parse_error(source, "exec", ast.PyCF_ONLY_AST)
    if not isinstance(error, SyntaxError):
        return _BREAKS_OFF
    return "".join(traceback.format_exception_only(error))


def is_deep(source: str) -> bool:
    """Whether brackets are nested so deep that a source is not parsed here. Those in strings don't count, but for
    f-strings, whose brackets are parsed too."""
    if sum(map(source.count, "([{")) < _DEEP.start or _most_depth(source) < _DEEP.start:
        return False
    depth = 0
    most = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"{source}\n").readline):
            if token.type == tokenize.OP:
                depth += _STEPS.get(token.string, 0)
                most = max(most, depth)
            elif _F_STRING.match(token.string):
                most = max(most, depth + _most_depth(token.string))
    except (tokenize.TokenError, SyntaxError) as error:
        if "too many nested" in str(error):  # as CPython says at once
            return False
    return most in _DEEP


def _most_depth(text: str) -> int:
    """How deep brackets are nested, wherever they stand."""
    return max(accumulate(_STEPS.get(character, 0) for character in text))


def _continues(source: str) -> bool:
    """Whether the next line must belong to the same statement: after an open bracket or string, or a backslash."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO(f"{source}\n").readline):
            pass
    except tokenize.TokenError:
        return True
    except SyntaxError:
        return False
    return False


def _is_incomplete(error: Exception | None) -> bool:
    """Whether a parser that was told of it (PyCF_ALLOW_INCOMPLETE_INPUT) says that the source breaks off."""
    return error is not None and "incomplete input" in str(error)


def _parse_error(source: str, mode: str = "single", flags: int = _PARSE_FLAGS) -> Exception | None:
    with warnings.catch_warnings(action="ignore"):
        try:
            compile(source, "<stdin>", mode, flags, dont_inherit=True)
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            return error
    return None
