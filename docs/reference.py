"""The reference of the YAML file, written from the models: `python docs/reference.py > docs/config.md`.

Types, ranges and defaults are read from the fields, descriptions from the string below each field in the source.
Checks across several fields are not covered: their error messages say what to change.
"""

from __future__ import annotations

import ast
import datetime
import inspect
import json
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from repl_rl.config.file import Config

HEAD = """\
# The YAML file

This page is written by `python docs/reference.py > docs/config.md`; a test compares it with the models.

A config is a path, or the name of a file that ships: `repl-rl train quickstart`. `repl-rl config quickstart > my.yaml`
is a copy to begin with. `--set section.key=value` overrides a value, and can be given several times. The value is YAML:
`--set rewards.kinds.comment=0.1 --set train.steps=20`; text with a `#` is quoted:
`--set 'tasks.answer_pattern="#### (.+)"'`. A key that the file leaves out has the default given here.
`repl-rl train FILE --dry-run` checks a file and says what it would do; a run keeps its file, with all defaults written
out, as `config.yaml` in its folder.

An unknown key is refused with the nearest known one, a value out of range with the range, and values that exclude one
another with both names. A key that stands twice is refused with both lines. `1e-3` is a number. A name may stand for a
section, as in `model: nano` for `model: {path: nano}`, where a section's table says so; `weight: 0.5` under
`rewards.shaping` is short for `weight: {start: 0.5}`. A list of one may be given as what is in it: `families: gcd`,
`kinds: comment`.
"""

_LINK = re.compile(r"\bdocs/([\w-]+\.md)\b")
_BOUNDS = {
    "ge": "at least {:,g}",
    "gt": "above {:,g}",
    "le": "at most {:,g}",
    "lt": "below {:,g}",
    "min_length": "not empty",
    "pattern": "matching `{}`",
}
_NAMES = {datetime.date: "date", bool: "true or false", int: "integer", float: "number", str: "text", Any: "anything"}


def reference() -> str:
    """The page, as Markdown."""
    return "\n".join([HEAD, *(section(path, model) for path, model in sections())])


def sections(model: type[BaseModel] = Config, path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section of the file with its path, each before those inside it. The file itself has the path ""."""
    yield path, model
    for name, field in model.model_fields.items():
        if (below := _section_of(field.annotation)) is not None:
            many = {tuple: "[]", dict: ".NAME"}.get(get_origin(field.annotation), "")
            yield from sections(below, f"{path}.{name}{many}".removeprefix("."))


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field of a model, joined to one line. Fields without one are left out."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))) if text:
                found[name] = " ".join(text.split())
    return found


def type_words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """A type in words for readers of YAML, with its range: `integer, at least 1`."""
    found = [(words, getattr(item, name, None)) for item in metadata for name, words in _BOUNDS.items()]
    bounds = "".join(", " + words.format(bound) for words, bound in found if bound is not None)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:  # constraints may also be inside a `Field`
        inner = [part for item in arguments[1:] for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return type_words(arguments[0], [*inner, *metadata])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):  # a function can't be written in a file
        parts = [part for part in arguments if part is not type(None) and get_origin(part) is not Callable]
        words = " or ".join(map(type_words, parts)) + bounds
        return words if type(None) not in arguments else words + (", or null" if "," in words else " or null")
    if origin is dict:
        return f"mapping from {type_words(arguments[0])} to {type_words(arguments[1])}"
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of {type_words(arguments[0])}"
    if origin is tuple:
        return " and ".join(type_words(argument) for argument in arguments) + " in a list"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section" + bounds
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "a " + {"LineKind": "line kind"}.get(annotation.__name__, annotation.__name__) + bounds
    return _NAMES[annotation] + bounds


def section(path: str, model: type[BaseModel]) -> str:
    """A section of the page. Raises ValueError for a field that has no words below it."""
    words = descriptions(model)
    rows = []
    for name, field in model.model_fields.items():
        if _section_of(field.annotation) is not None and get_origin(field.annotation) not in (tuple, dict):
            continue  # sections have tables of their own
        if not words.get(name):
            raise ValueError(f"field {name!r} has no words below it; write what it means")
        value = field.get_default(call_default_factory=True)
        shown = value if isinstance(value, str) else None if value is PydanticUndefined else json.dumps(value)
        default = "has to be given" if shown is None else f"`{shown}`"
        about = _LINK.sub(r"[\1](\1)", words[name])
        cells = [f"`{name}`", type_words(field.annotation, field.metadata), default, about]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    about = _LINK.sub(r"[\1](\1)", " ".join((inspect.getdoc(model) or "").split()))
    if (key := getattr(model, "SHORT_FOR", None)) is not None:
        about += f" `{path}: NAME` is short for `{path}: {{{key}: NAME}}`."
    title = f"## `{path}`" if path else "## The file itself"
    table = ["| key | value | default | |", "|---|---|---|---|", *rows]
    return "\n".join(["", title, "", *([about, ""] if about else []), *table]).removeprefix("\n") + "\n"


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, or holds a list or a mapping of, or may hold."""
    holds = get_origin(annotation) in (tuple, dict, types.UnionType)
    kinds = [annotation, *get_args(annotation)] if holds else [annotation]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


if __name__ == "__main__":
    sys.stdout.write(reference())
