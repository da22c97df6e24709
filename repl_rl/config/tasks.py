"""The tasks section: generated families, or a data set from the hub, a cache, a folder or a file."""

from __future__ import annotations

import datetime
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from repl_rl.config.section import Excluding, Names, Section
from repl_rl.utils.folders import is_local_path


def _first_day(value: Any) -> Any:
    """A year or a month as its first day; pydantic would take a year for seconds."""
    if isinstance(value, bool):
        raise ValueError(f"{value} is not a date")
    text = str(value).strip()
    if re.fullmatch(r"\d{4}(-\d{1,2})?", text):
        year, _, month = text.partition("-")
        return datetime.date(int(year), int(month or 1), 1)
    if isinstance(value, int | float):
        raise ValueError(f"{value} is not a date such as 2024, 2024-06 or 2024-06-01")
    return value


Date = Annotated[datetime.date, BeforeValidator(_first_day)]

DATA_FILES = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz")
"""How the names of files end that problems can be read from."""
_PACKED_FILES = (".gz", ".zip", ".zst", ".bz2", ".xz")
OTHER_FILES = (".txt", ".ndjson", ".arrow", ".feather", ".xlsx", ".xls", ".yaml", ".yml", ".pkl", *_PACKED_FILES)
"""How the names of other files end: what ends so is no data set of a hub either."""
PRESET_NAMES = ("gsm8k", "math", "math-500", "aime", "aime-2025")
"""The names in `repl_rl.tasks.PRESETS`."""


@dataclass(frozen=True, slots=True)
class _YamlFolder:
    """Where the file with this section lies. All are equal: a section is what it says, wherever it was written."""

    path: Path | None = field(default=None, compare=False)


def _exists(name: str) -> bool:
    return os.path.exists(os.path.expanduser(name))


def _looks_like_a_file(name: str) -> bool:
    return is_local_path(name) or name.lower().endswith((*DATA_FILES, *OTHER_FILES))


class ColumnsConfig(Section):
    """Names of a data set's columns; null is the preset's, else `question`, `answer` and `id`. `a.b` is the column b
    inside the column a."""

    question: str | None = None
    """The problem's text, or a chat, whose last message of the user is the question."""
    answer: str | None = None
    """The reference answer, or the text that `answer_pattern` finds it in; or a list, any of which is right."""
    id: str | None = None
    """The task's id. null, where there is no column `id` either: rows are counted."""
    family: str | None = None
    """What solve rates are told apart by; of a list, the first. null: the set's name."""
    date: str | None = None
    """When a problem became known: 2024, 2024-06, 2024-06-01 or a date. For `before` and `after`."""
    context: str | None = None
    """What lies in the session as `context`, under `environment: rlm`: text, or a list."""


class TasksConfig(Section):
    """Where problems come from. docs/tasks.md lists families and presets."""

    families: Names | None = None
    """Names of problem families, or import paths of your own: `package.module:NAME`, or `package.module:NAME-10` for
    what the function NAME returns for 10. null takes all number families, unless `dataset` or `folder` is set."""
    train: int = Field(2048, ge=1)
    """Training problems to make, or to take at most; the trainer walks through them in a seeded order."""
    only: str | None = Field(None, min_length=1)
    """A file of training problems that `repl-rl eval --keep` wrote: these alone are trained on. null: all."""
    dataset: str | None = Field(None, min_length=1)
    """`gsm8k`, `math`, `math-500`, `aime`, `aime-2025`, a file or folder that is there, or the name of any set on the
    hub. Files end in `.parquet`, `.jsonl`, `.json`, `.csv` or `.tsv`, all but the first also with `.gz`. They are
    looked up in the working folder and then beside the YAML file."""
    folder: str | None = Field(None, min_length=1)
    """A folder with such files to read instead of asking the hub, or what `save_to_disk` wrote; or one file. `dataset`
    then only names a preset."""
    subset: str | None = None
    """The set's configuration; null is the preset's, or the only one."""
    split: str | None = None
    """Split to train on; null is the preset's, or `train`."""
    heldout: float | str | None = None
    """Name of a split, another preset, or the share of the training split to hold out. null is the preset's; else, of a
    folder, its split `test` or `validation` if it has one; else 1/8."""
    format: Literal["gsm8k", "math", "aime", "olympiadbench", "minif2f"] | None = None
    """How the rows of a file are written (docs/tasks.md): names of columns, and how the answer is found. Rows that
    don't fit are listed with their lines."""
    before: Date | None = None
    """Train on problems from before this date, and hold out the others. null: as `after`."""
    after: Date | None = None
    """Hold out problems from this date on. null: as `before`."""
    columns: ColumnsConfig = ColumnsConfig()
    answer_pattern: str | None = None
    """Regular expression; the one group of its last match is the answer. `boxed`: what the last \\boxed{} holds."""

    sampling: Literal["uniform", "pass_rate"] = "uniform"
    """Which problems a step draws. `uniform`: all in turn. `pass_rate`: rather those of which between a tenth and nine
    tenths of the latest sessions were right; those above are retired, those below rest, and both are looked at again.
    With groups of 8 these are problems solved between a fifth and three quarters of the time (docs/algorithms.md)."""
    unreadable: Literal["refuse", "skip", "text"] = "refuse"
    """Problems of a data set whose question, reference answer or other column can't be read. `refuse`: an error lists
    them. `skip`: they are left out, and the log says how many. `text`: where the answer can't be compared as anything
    else, it is compared as a text."""

    _yaml: _YamlFolder = PrivateAttr(_YamlFolder())

    EXCLUDING: ClassVar[tuple[Excluding, ...]] = (
        (("families", "dataset"), "problems are made, or read from a data set"),
        (("families", "folder"), "problems are made, or read from a data set"),
        (("format", "answer_pattern"), "the first says where the answer is"),
        (("heldout", "before"), "both say what is held out"),
    )

    @property
    def is_generated(self) -> bool:
        return self.dataset is None and self.folder is None

    @property
    def is_split_by_date(self) -> bool:
        return self.before is not None

    @property
    def path(self) -> str | None:
        """The folder or file of this machine that the problems are read from, if there is one."""
        if self.folder is not None or self.dataset is None:
            return self.folder
        if self.dataset in PRESET_NAMES:  # whatever a folder here is called
            return None
        return self.dataset if _looks_like_a_file(self.dataset) or _exists(self.dataset) else None

    @property
    def yaml_folder(self) -> Path | None:
        """Where the YAML file lies, if the section comes from one: files are looked up there, too."""
        return self._yaml.path

    @property
    def is_from_hub(self) -> bool:
        """Whether the problems are a data set from the hub or its cache."""
        return self.dataset is not None and self.path is None

    @field_validator("dataset", "folder", "only")
    @classmethod
    def _is_also_found_beside_the_yaml_file(cls, name: str | None, info: ValidationInfo) -> str | None:
        """The path of what is only there is made absolute, so that a stored config finds it from any folder."""
        if name is None or name in PRESET_NAMES or info.context is None or _exists(name):
            return name
        beside = os.path.abspath(Path(info.context["folder"], os.path.expanduser(name)))
        return beside if _exists(beside) else name

    @model_validator(mode="after")
    def _knows_its_folder(self, info: ValidationInfo) -> TasksConfig:
        if info.context is not None:
            self._yaml = _YamlFolder(Path(os.path.abspath(info.context["folder"])))
        return self

    @model_validator(mode="after")
    def _one_source(self) -> TasksConfig:
        if self.folder is not None and self.dataset is not None and _looks_like_a_file(self.dataset):
            raise ValueError(
                f"dataset {self.dataset!r} and folder {self.folder!r} are two places; leave one of them out"
            )
        of_sets = self.model_fields_set & {
            *("subset", "split", "heldout", "columns", "answer_pattern", "format", "before", "after", "unreadable")
        }
        given = sorted(name for name in of_sets if getattr(self, name) != type(self).model_fields[name].default)
        if self.is_generated and given:
            raise ValueError(f"{given[0]} is for data sets; set dataset or folder, or leave it out")
        return self

    @model_validator(mode="before")
    @classmethod
    def _a_name_may_be_of_two_things(cls, values: Any) -> Any:
        if isinstance(values, str | list):
            name = values if isinstance(values, str) else values[0] if values else ""
            raise ValueError(
                f"{values!r} may name a data set or families of problems; write tasks: {{dataset: {name}}} or tasks: "
                f"{{families: [{name}]}}"
            )
        return values

    @field_validator("heldout", mode="before")
    @classmethod
    def _a_share_may_be_in_percent(cls, value: Any) -> Any:
        text = value.strip() if isinstance(value, str) else ""
        if re.fullmatch(r"[0-9]+(\.[0-9]+)? ?%", text):
            return float(text.rstrip(" %")) / 100
        return float(text) if re.fullmatch(r"[0-9]*\.[0-9]+", text) else value

    @model_validator(mode="before")
    @classmethod
    def _one_date_is_both(cls, values: Any) -> Any:
        if isinstance(values, dict):
            dates = [values[name] for name in ("before", "after") if values.get(name) is not None]
            if len(dates) == 1:
                return {**values, "before": dates[0], "after": dates[0]}
        return values

    @model_validator(mode="after")
    def _formats_and_dates(self) -> TasksConfig:
        if self.format is not None and self.path is None:
            raise ValueError(f"format {self.format!r} is for files; name one in dataset, or a folder")
        if self.before is None or self.after is None:
            return self
        if self.after < self.before:
            raise ValueError(f"after {self.after} lies before {self.before}: problems would be on both sides")
        if self.columns.date is None and self.format != "aime":
            raise ValueError("before and after need columns: {date: ...}, the name of the column with dates")
        return self

    @model_validator(mode="after")
    def _values_make_sense(self) -> TasksConfig:
        if isinstance(self.heldout, float) and not 0 < self.heldout < 1:
            raise ValueError(f"heldout {self.heldout} is not a share; take one between 0 and 1, or a split's name")
        if (pattern := self.answer_pattern) not in (None, "boxed"):
            try:
                groups = re.compile(str(pattern)).groups
            except re.error as error:
                raise ValueError(f"answer_pattern {pattern!r} is not a regular expression: {error}") from error
            if groups != 1:
                raise ValueError(f"answer_pattern {pattern!r} has {groups} groups; put one around the answer")
        return self
