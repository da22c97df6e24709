"""Compiles cells as a terminal does, which reports syntax errors before it has seen the end of the text.

`compile` is given a whole cell; the interactive parser reads it line by line. Where the two report different errors,
the functions here turn the former's into the latter's.
"""

from __future__ import annotations

import ast
import codeop
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

INCOMPLETE = "incomplete input"
"""Message of the SyntaxError for a cell that needs another line."""

_SEVERAL = "multiple statements found while compiling a single statement"
_OPEN_MARKS = ("was never closed", "unterminated triple-quoted", "unexpected EOF")
_UNCLOSED = re.compile(r"'([(\[{])' was never closed")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MOST_BRACKETS = 200


def compile_cell(source: str, future_flags: int) -> CodeType:
    """The code of a cell. Raises the error that a terminal would show; several statements become one code object.

    Statements separated by a bare carriage return are refused: a terminal takes them for one line.
    """
    flags: int = codeop.PyCF_ALLOW_INCOMPLETE_INPUT | future_flags  # type: ignore[attr-defined]  # typeshed lacks it
    try:
        return _compile_single(source, flags)
    except SyntaxError as error:
        if error.msg != _SEVERAL or "\r" in source.replace("\r\n", "\n"):
            raise _on_its_own_line(source, _terminal_error(source, future_flags, error)) from None
    body = compile(source, "<stdin>", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True).body
    return _compile_single(ast.Interactive(body), flags)


def compile_whole(source: str, future_flags: int) -> CodeType:
    """The code of a cell that is read as a file is, with nothing to follow. Its expressions are echoed too."""
    body = compile(source, "<stdin>", "exec", future_flags | ast.PyCF_ONLY_AST, dont_inherit=True).body
    return _compile_single(ast.Interactive(body), future_flags)


def compile_shown(source: str, future_flags: int) -> tuple[CodeType, CodeType | None]:
    """The code of a notebook's cell: its statements, and its last expression, which is shown, or None.

    A semicolon after the expression says that it is not to be shown. Statements may `await`.
    """
    flags = future_flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(source, "<stdin>", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    expression = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not _is_hushed(source, tree.body[-1]):
        expression = _compile_single(ast.Interactive([tree.body.pop()]), flags)
    return compile(tree, "<stdin>", "exec", flags, dont_inherit=True), expression


def _is_hushed(source: str, statement: ast.Expr) -> bool:
    """Whether a semicolon follows the last statement."""
    lines = re.split(r"\r\n|\r|\n", source)
    rest = lines[statement.end_lineno - 1].encode("utf-8", "surrogatepass")[statement.end_col_offset :]  # type: ignore[operator]  # parsed code has it
    return rest.lstrip().startswith(b";")


def _compile_single(source: str | ast.Interactive, flags: int) -> CodeType:
    return compile(source, "<stdin>", "single", flags, dont_inherit=True)  # type: ignore[no-any-return]  # no AST is asked for


def _terminal_error(source: str, flags: int, error: SyntaxError) -> SyntaxError:
    """The error that a terminal reports where `compile`, which has seen the end of the text, raises `error`.

    At a terminal, a blank line ends a block even if the block has no body yet. An open bracket is not an error there,
    since more may come, but what is wrong before it is.
    """
    if error.msg == INCOMPLETE:
        if not source.endswith("\n\n"):
            return error
        final = _error_of(source, flags)
        if final is None or any(mark in final.msg for mark in _OPEN_MARKS):
            return error
        final.offset = 0 if _is_nested(source, final) else 1
        return final
    closed = source
    while (found := _UNCLOSED.match(error.msg)) and len(closed) < len(source) + _MOST_BRACKETS:
        closed += _CLOSING[found[1]]
        error = _error_of(closed, flags) or error
    return error


def _on_its_own_line(source: str, error: SyntaxError) -> SyntaxError:
    """Cut lines that end in a backslash off an error's text: a terminal shows only the line that it has just read."""
    shown, own_line = (error.text or "").split("\n"), source.split("\n")[(error.lineno or 1) - 1]
    if own_line not in shown[1:]:
        return error
    before = shown[: shown.index(own_line, 1)]
    if all(line.endswith("\\") for line in before):
        skipped = sum(len(line) + 1 for line in before)
        error.text = own_line + "\n"
        error.offset -= skipped if error.offset > skipped else 0  # type: ignore[operator]  # with a text there is one
        if (error.end_offset or 0) > skipped:
            error.end_offset -= skipped  # type: ignore[operator]  # it is above 0
    return error


def _is_nested(source: str, error: SyntaxError) -> bool:
    """Whether what lacks an end is itself inside a block: a terminal then puts no caret under the blank line."""
    lines = source.rstrip("\n").split("\n")
    row = len(lines)
    if numbered := re.search(r"on line (\d+)$", error.msg):
        row = int(numbered[1])
    elif "'except'" in error.msg:
        row = max((n for n, line in enumerate(lines, 1) if line.lstrip().startswith("try")), default=row)
    return lines[row - 1][:1].isspace()


def _error_of(source: str, flags: int) -> SyntaxError | None:
    try:
        _compile_single(source, flags)
    except SyntaxError as error:
        return error
    return None
