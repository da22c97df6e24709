r"""Rows of data sets, from files or elsewhere, and how problems are read from them.

A format (`tasks.format`) says which columns a row has, under the names that copies of the set use, and how its answer
is written:

    gsm8k           the number after the last `####`
    math            the content of the last \boxed{} of the solution
    aime            an integer from 0 to 999
    olympiadbench   a list of final answers, in any order, as in OpenBMB's files and in copies of them on the hub
    minif2f         the statement of a theorem, without its proof; graded as text, since nothing here checks proofs

Rows are checked when they are read. If a question or an answer doesn't fit, the problem says why, and where it is.
"""

import csv
import datetime
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec

from repl_rl.config.tasks import DATA_FILES
from repl_rl.errors import ConfigError
from repl_rl.tasks.chats import is_chat, last_of_assistant, read_chat
from repl_rl.trajectory import Message, Task
from repl_rl.utils.text import last_box, whole

Row = Mapping[str, Any]

_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_LONGEST_FIELD_CHARS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Problem:
    """A row of a data set. `where` names the row in errors."""

    where: str
    question: str
    answer: str
    history: tuple[Message, ...] = ()
    """The messages before the question, if that is a chat."""
    id: str | None = None
    family: str | None = None
    period: tuple[datetime.date, datetime.date] | None = None
    """The first and the last day that its date may mean: a year means all of its days."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the task's metadata get from the format, the references and the context."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's other columns as plain values, which the task's metadata get too."""
    error: str | None = None
    """Why the question, the answer or another column can't be read. It is empty or None here."""


@dataclass(frozen=True, slots=True)
class Format:
    """Names of columns by role, the likeliest first, and how the answer's column is read.

    Both functions also get the row, and raise ValueError that says what is wrong. With `has_references`, a list of
    several in the answer's column holds reference answers, any of which is right.
    """

    columns: Mapping[str, tuple[str, ...]]
    answer: Callable[[Any, Row], str]
    question: Callable[[str, Row], str] = lambda text, row: text
    metadata: Mapping[str, Any] = field(default_factory=dict)
    has_references: bool = False


def _boxed(text: str) -> str | None:
    """The content of the last box; `\\boxed 5` without braces holds one word."""
    word = re.match(r"\\boxed\s*([^\s{$.][^\s$.]*)", text[text.rfind("\\boxed") :])
    return word[1] if word else last_box(text)


def _text(value: Any) -> str:
    """A value as text; a list of one item counts as the item."""
    if isinstance(value, list) and len(value) == 1:
        [value] = value
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise ValueError(f"{value!r:.80} is neither text nor a number")
    if isinstance(value, float | Decimal) and math.isnan(value):
        raise ValueError("nan is neither text nor a number: pandas writes it where a cell is empty")
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    return whole(text).strip()


def _value(value: Any) -> str:
    """An answer as text: as `_text`, also True or False, and a value with its unit."""
    if isinstance(value, list) and len(value) == 1:
        [value] = value
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, dict) and "value" in value and set(value) <= {"value", "unit"}:
        amount = _value(value["value"])
        unit = value.get("unit")
        return amount if unit is None else f"{amount} {_text(unit)}".strip()
    return _text(value)


def _first_name(value: Any) -> str:
    """A name as text; of a list of names, the first."""
    if isinstance(value, list) and value:
        return _text(value[0])
    return _text(value)


def _after_hashes(value: Any, row: Row) -> str:
    _, mark, answer = _text(value).rpartition("####")
    if not mark:
        raise ValueError("no '#### ANSWER' is in it")
    number = answer.strip().removeprefix("$").replace(",", "")
    if not re.fullmatch(r"[+-]?\d+(\.\d+)?", number):
        raise ValueError(f"{answer.strip()!r:.80} after #### is not a number")
    return number


def _in_last_box(value: Any, row: Row) -> str:
    answer = _boxed(_text(value))
    if not answer:
        raise ValueError("no \\boxed{ANSWER} is in it")
    return answer


def _three_digits(value: Any, row: Row) -> str:
    text = _text(value)
    if not re.fullmatch(r"\d{1,3}(\.0)?", text):
        raise ValueError(f"{text!r:.80} is not an integer from 0 to 999")
    return str(int(float(text)))


def _list_of_answers(value: Any, row: Row) -> str:
    parts = value if isinstance(value, list) else [value]
    answers = []
    for part in parts:
        if part is None:
            continue
        without_dollars = re.sub(r"(?<!\\)\$", "", _text(part))
        answers.append(without_dollars.strip())
    if not answers or not all(answers):
        raise ValueError("it holds no final answer: a problem to prove is not for this grader")
    if row.get("is_multiple_answer"):  # "100,200" are two
        return re.sub(r",\s*", ", ", ", ".join(answers))
    return ", ".join(map(_without_thousands_separators, answers))


def _without_thousands_separators(number: str) -> str:
    """14916 for 14,916. Other texts stay as they are."""
    return number.replace(",", "") if _THOUSANDS.fullmatch(number) else number


def _theorem(value: Any, row: Row) -> str:
    """The statement, up to the `:=` before a placeholder for the proof."""
    text = _text(value)
    statement, _, proof = text.rpartition(":=")
    if not re.fullmatch(r"[\s]*(by|begin)?\s*(sorry)?\s*(end)?", proof):  # not a placeholder
        statement = text
    statement = " ".join(statement.split())
    theorem = re.search(r"\b(theorem|lemma)\s+\S", statement)
    if theorem is None:
        raise ValueError("no theorem is in it")
    return statement[theorem.start() :]


def _without_images(text: str, row: Row) -> str:
    """A question with the context and the unit that its row has. Raises ValueError if it refers to an image."""
    context = str(row.get("context") or "").strip()
    unit = str(row.get("unit") or "").strip()
    has_image = any(value for column, value in row.items() if re.fullmatch(r"image_\d+|images?", column))
    if has_image or re.search(r"<im(age|g)_\d+>", context + text):
        raise ValueError("the question refers to an image, which is not shown in a session")
    if unit:
        unit = unit.replace("$", "")
        if re.search(r"[\\^_{]", unit):  # LaTeX
            unit = f"${unit}$"
        text += f"\nGive the answer in {unit}."
    if context:
        return f"{context}\n\n{text}"
    return text


def _in_lean(text: str, row: Row) -> str:
    """A question that asks for the statement in Lean, under the name that the answer's column gives it."""
    text = re.sub(r"\A/--|-/\Z", "", text).strip()
    statement = str(row.get("formal_statement", ""))
    theorem = re.search(r"\b(?:theorem|lemma)\s+([^\s:({\[]+)", statement)
    if theorem is None:
        return text
    return f"{text}\nState this in Lean as theorem {theorem[1]}, without a proof."


FORMATS: Mapping[str, Format] = {
    "gsm8k": Format({"question": ("question",), "answer": ("answer",), "id": ("id",)}, _after_hashes),
    "math": Format(
        {
            "question": ("problem", "question"),
            "answer": ("solution",),
            "id": ("unique_id",),
            "family": ("type", "subject"),
        },
        _in_last_box,
    ),
    "aime": Format(
        {
            "question": ("problem", "Problem", "question", "Question"),
            "answer": ("answer", "Answer"),
            "id": ("id", "ID"),
            "date": ("date", "year", "Year"),
        },
        _three_digits,
    ),
    "olympiadbench": Format(
        {"question": ("question",), "answer": ("final_answer",), "id": ("id",), "family": ("subfield", "subject")},
        _list_of_answers,
        _without_images,
    ),
    "minif2f": Format(
        {
            "question": ("informal_stmt", "informal_statement", "informal_prefix"),
            "answer": ("formal_statement",),
            "id": ("name", "id"),
        },
        _theorem,
        _in_lean,
        {"graded_as": "text"},
    ),
}
"""The formats, by their names in `tasks.format`."""


def taken_out(pattern: str | None) -> Callable[[Any, Row], str]:
    """How answers are read under `tasks.answer_pattern`: the last match's group, the last box for `boxed`, or all."""

    def answer_of(value: Any, row: Row) -> str:
        text = _value(value)
        answer: str | None = None
        if pattern is None:
            answer = text
        elif pattern == "boxed":
            answer = _boxed(text)
        else:
            for match in re.finditer(pattern, text):
                answer = match[1]
        if answer is None:
            raise ValueError(f"tasks.answer_pattern {pattern!r} finds no answer in {text[-200:]!r}")
        return _without_thousands_separators(answer.strip())

    return answer_of


def references_in(value: Any) -> tuple[str, ...]:
    """The reference answers in a value without a format: one, or several of which any is right. If a value is a
    solution as GSM8K has them, the answer follows its last `####`. Raises ValueError that says why there is none."""
    return _references(_UNDESCRIBED, value, {})


def _answer_or_solution(value: Any, row: Row) -> str:
    _, mark, answer = _value(value).rpartition("####")
    if mark and not answer.strip():
        raise ValueError("nothing follows its last ####")
    return taken_out(None)(answer, row)


_UNDESCRIBED = Format({}, _answer_or_solution, has_references=True)


def read_problems(
    rows: Iterable[tuple[str, Row]], form: Format, columns: Mapping[str, str], name: str | None = None
) -> Iterator[Problem]:
    """The problems in these rows, each with what errors call it; `columns` names columns by role in place of the
    form's, and `name` is the form's in errors.

    Raises ConfigError naming the first row if it lacks a column that is needed. A later one that lacks it is a problem
    that can't be read.
    """
    in_format = "" if name is None else f" in format {name}"
    roles = dict.fromkeys((*form.columns, *columns))
    found_roles: set[str] = set()
    for where, row in rows:
        values: dict[str, Any] = {"question": "", "answer": ""}
        history: tuple[Message, ...] = ()
        references: tuple[str, ...] = ()
        used_columns: set[str] = set()
        first_error: str | None = None
        for role in roles:
            is_needed = role in ("question", "answer")
            names = (columns[role],) if role in columns else form.columns.get(role, ())
            column_and_value = _column(row, names)
            if column_and_value is None:
                if is_needed or role in columns:
                    wanted = " or ".join(map(repr, names))
                    present = ", ".join(_column_names(row)) or "none"
                    lacks = f"there is no column {wanted} for tasks.columns.{role}{in_format}; it has {present}"
                    if role not in found_roles:
                        raise ConfigError(f"{where}: {lacks}")
                    first_error = first_error or lacks
                continue
            found_roles.add(role)
            column, value = column_and_value
            used_columns.add(column)
            if value is None and not is_needed:
                continue
            try:
                if role == "answer":
                    references = _references(form, value, row)
                    values[role] = references[0]
                elif role == "question":
                    history, question = _history_and_question(value)
                    values[role] = form.question(question, row)
                    if not values[role]:
                        raise ValueError("it is empty")
                else:
                    read: Callable[[Any], Any] = _READERS.get(role, _text)
                    values[role] = read(value)
            except ValueError as error:
                hint = ""
                if _has_columns(value):
                    hint = f"; name a column inside it: {', '.join(_column_names({column: value}))}"
                if first_error is None:
                    first_error = f"column {column}{in_format}: {error}{hint}"
        metadata = dict(form.metadata)
        if "context" in values:
            metadata["context"] = values["context"]
        if len(references) > 1:
            metadata["references"] = references
        yield Problem(
            where=where,
            question=values["question"],
            answer=values["answer"],
            history=history,
            id=values.get("id"),
            family=values.get("family"),
            period=values.get("date"),
            metadata=metadata,
            columns=_plain_columns(row, used_columns),
            error=first_error,
        )


def _column(row: Row, names: Iterable[str]) -> tuple[str, Any] | None:
    """The first of these columns that holds something, else the first that the row has, with its value."""
    first_empty: str | None = None
    for name in names:
        try:
            value = _value_at(row, name)
        except KeyError:
            continue
        if value is not None:
            return name, value
        first_empty = first_empty or name
    return None if first_empty is None else (first_empty, None)


def _value_at(row: Row, name: str) -> Any:
    """The value of a column; `a.b` is the column b inside the column a. Raises KeyError if the row has none."""
    if name in row:
        return row[name]
    outer, _, inner = name.partition(".")
    outer_value = row[outer]
    if outer_value is None or not inner:
        return None
    if not isinstance(outer_value, dict):
        raise KeyError(name)
    return _value_at(outer_value, inner)


def _has_columns(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def _column_names(row: Row) -> list[str]:
    """The names that a config can use for a row's columns: `a.b` for the column b inside the column a."""
    names = []
    for name, value in row.items():
        if _has_columns(value):
            names += [f"{name}.{inner}" for inner in value]
        else:
            names.append(str(name))
    return names


def _history_and_question(value: Any) -> tuple[tuple[Message, ...], str]:
    """The messages before a question, and its text. Raises ValueError."""
    if not is_chat(value):
        return (), _text(value)
    chat = read_chat(value)
    return chat.history, chat.question.strip()


def _references(form: Format, value: Any, row: Row) -> tuple[str, ...]:
    """The reference answers in a row's column, each once: one, or several if the form has them. Raises ValueError."""
    if is_chat(value) and "role" in value[-1]:
        value = last_of_assistant(value)
    has_several = form.has_references and isinstance(value, list) and len(value) > 1
    references = value if has_several else [value]
    answers = [form.answer(reference, row) for reference in references]
    if not all(answers):
        raise ValueError("it is empty")
    return tuple(dict.fromkeys(answers))


def _plain_columns(row: Row, used_columns: Collection[str]) -> dict[str, Any]:
    """A row's other columns as values that JSON can hold. Columns with bytes, such as images, are left out."""
    columns = {}
    for name, value in row.items():
        if name in used_columns:
            continue
        if name == "operands":  # the grader would take the problem for a generated one
            continue
        with suppress(ValueError):
            columns[name] = _plain(value)
    return columns


def _plain(value: Any) -> Any:
    """A value as JSON holds it, dates and decimal numbers as texts, and None for NaN and the infinities. Raises
    ValueError for a value of another kind."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise ValueError(f"{type(value).__name__} is not plain data")


def kind_of(file: Path) -> str:
    """The ending of a data file without its dot, such as csv or jsonl.gz; "" for other files."""
    name = file.name.lower()
    for ending in DATA_FILES:
        if name.endswith(ending):
            return ending[1:]
    return ""


def rows_of(files: Iterable[Path]) -> Iterator[tuple[str, Row]]:
    """The rows of files of the kinds in `DATA_FILES`, each with its file and line. Raises ConfigError naming these."""
    for file in files:
        kind = kind_of(file)
        line_number = 0
        try:
            if kind == "parquet":
                yield from _parquet_rows(file)
                continue
            with _open_text(file) as lines:
                if kind.startswith(("csv", "tsv")):
                    csv.field_size_limit(_LONGEST_FIELD_CHARS)
                    delimiter = "\t" if kind.startswith("tsv") else ","
                    reader = csv.DictReader(lines, strict=True, delimiter=delimiter)
                    for row in reader:
                        line_number = reader.line_num
                        # DictReader's marks for fields too many, and for missing ones.
                        if None in row or None in row.values():
                            field_count = len(reader.fieldnames or ())
                            raise ValueError(f"it has not {field_count} fields, as the first line has")
                        yield f"{file}, line {line_number}", row
                elif kind in ("json", "json.gz") and not _is_json_lines(content := lines.read()):
                    whole = json.loads(content)
                    _require_rows(whole)
                    entries = whole if isinstance(whole, list) else [whole]
                    for entry_number, entry in enumerate(entries, 1):
                        yield f"{file}, entry {entry_number}", _require_object(entry)
                else:
                    lines.seek(0)
                    for line_number, line in enumerate(lines, 1):
                        if line.strip():
                            yield f"{file}, line {line_number}", _require_object(json.loads(line))
        except (ValueError, RecursionError, OSError, EOFError, zlib.error, csv.Error) as error:
            if isinstance(error, ConfigError):
                raise
            last_line = f", line {line_number}" if line_number else ""
            raise ConfigError(f"{file}{last_line}: can't be read as {kind}: {error}") from error


def _parquet_rows(file: Path) -> Iterator[tuple[str, Row]]:
    from pyarrow.parquet import ParquetFile

    row_number = 0
    for batch in ParquetFile(file).iter_batches():
        for row in batch.to_pylist():
            yield f"{file}, row {row_number}", row
            row_number += 1


def _open_text(file: Path) -> TextIO:
    if file.name.lower().endswith(".gz"):
        return cast(TextIO, gzip.open(file, "rt", encoding="utf-8-sig", newline=""))
    return file.open(encoding="utf-8-sig", newline="")


def _is_json_lines(content: str) -> bool:
    """Whether an object begins on a later line, as in many files on the hub that end in .json."""
    return content.startswith("{") and "\n{" in content


def _require_rows(whole: Any) -> None:
    """Raises ValueError for one object whose columns hold their rows by number."""
    if not isinstance(whole, dict) or not whole:
        return
    if all(_has_columns(column) and "0" in column for column in whole.values()):
        raise ValueError(
            "each column holds its rows by number, as pandas' to_json writes them if it is not told otherwise; write "
            'it with to_json(file, orient="records", lines=True)'
        )


def _require_object(value: Any) -> Row:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} is not an object with a problem's columns")
    return value


def row_of(task: Task) -> dict[str, Any]:
    """A problem as a row of a file that `read_tasks` reads. Raises ConfigError if reading it would change it."""
    with suppress(TypeError, ValueError):  # from values that JSON can't hold
        row: dict[str, Any] = msgspec.to_builtins(task)
        if msgspec.convert(json.loads(json.dumps(row)), Task) == task:
            return row
    raise ConfigError(f"task {task.id!r} can't be kept in a file: its metadata {task.metadata!r:.200} is not all JSON")


def read_tasks(file: Path) -> Iterator[Task]:
    """The problems of a file of rows of `row_of`; other keys of a row are ignored. Raises ConfigError."""
    for where, row in rows_of([file]):
        try:
            yield msgspec.convert(row, Task)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: not a problem as repl-rl eval --keep writes it: {error}") from error


def period_of(value: Any) -> tuple[datetime.date, datetime.date]:
    """The days that a date means: 2024 or "2024", "2024-06", "2024-06-01", the same with a time, or a date.

    Raises ValueError for anything else.
    """
    import pandas  # type: ignore[import-untyped]

    if isinstance(value, bool) or not isinstance(value, int | float | str | datetime.date):
        raise ValueError(f"{value!r:.80} is not a date")
    if isinstance(value, float) and value.is_integer():  # pandas reads years as floats if one is missing
        value = int(value)
    text = str(value).strip()
    date = re.fullmatch(r"(\d{4}(?:-\d{1,2}(?:-\d{1,2})?)?)(?:[T ].*)?", text)
    if date is None:
        raise ValueError(f"{text!r:.80} is not a date such as 2024, 2024-06 or 2024-06-01")
    period = pandas.Period(date[1])
    return period.start_time.date(), period.end_time.date()


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "date": period_of,
    "family": _first_name,
    "context": lambda value: value,
}
"""How a role's value is read, if not as text."""
