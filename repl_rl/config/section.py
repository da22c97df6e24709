"""The base class of every section of the file, and what sections say of options that exclude one another."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from types import UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

from repl_rl.errors import ConfigError
from repl_rl.utils.text import nearest


def one_needs_no_list(value: Any) -> Any:
    """A single name or function as a list of one."""
    return (value,) if isinstance(value, str) or callable(value) else value


Names = tuple[str, ...]


def _yes_or_no(value: Any) -> Any:
    if isinstance(value, bool):
        return {} if value else None
    return value


YES_OR_NO = BeforeValidator(_yes_or_no)
"""Of a section that may be left out: true is all of its defaults, false is without it."""


def options_of(annotation: Any) -> tuple[Any, ...]:
    """The types that a field takes: those of a union, or the one that it has."""
    if get_origin(annotation) is Annotated:
        return options_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(option for part in get_args(annotation) for option in options_of(part))
    return (annotation,)


def _is_list(annotation: Any) -> bool:
    return any(get_origin(option) is tuple and get_args(option)[-1] is Ellipsis for option in options_of(annotation))


def _is_section(annotation: Any) -> bool:
    return any(isinstance(option, type) and issubclass(option, Section) for option in options_of(annotation))


Excluding = tuple[tuple[str, ...], str]
"""Options that can't all be set, and the reason."""


class Section(BaseModel):
    """A part of the file: frozen, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    EXCLUDING: ClassVar[tuple[Excluding, ...]] = ()
    """Options by their keys inside this section: `a.b` is the key b of the section a."""
    SHORT_FOR: ClassVar[str | None] = None
    """The key whose value may stand for the whole section, as in `model: nano`."""
    OTHER_NAMES: ClassVar[dict[str, str]] = {}
    """What a key is called elsewhere, and what to write here."""

    @classmethod
    def keys_in(cls, other: type) -> tuple[str, ...]:
        """The keys that the dataclass `other` has a field for, by the same name, in this section's order."""
        names = {field.name for field in fields(other)}
        return tuple(key for key in cls.model_fields if key in names)

    @classmethod
    def sections_in(cls, other: type) -> tuple[str, ...]:
        """Those of `keys_in` that are sections."""
        return tuple(key for key in cls.keys_in(other) if _is_section(cls.model_fields[key].annotation))

    def values_for(self, other: type) -> dict[str, Any]:
        """The values of `keys_in`."""
        return {key: getattr(self, key) for key in self.keys_in(other)}

    @classmethod
    def written_out(cls, values: Any) -> Any:
        """What stands in a section's place, without short forms: the value of one key for the section, and in the place
        of a list a text or a mapping for a list of one."""
        if cls.SHORT_FOR is not None and isinstance(values, str | list):
            values = {cls.SHORT_FOR: values}
        if not isinstance(values, dict):
            return values
        written = dict(values)
        for name, value in values.items():
            field = cls.model_fields.get(name) if isinstance(name, str) else None
            if field is not None and isinstance(value, str | dict) and _is_list(field.annotation):
                written[name] = (value,)
        return written

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, values: Any) -> Any:
        return cls.written_out(values)

    @model_validator(mode="after")
    def _excluding_options_are_not_all_set(self) -> Self:
        refuse_excluding(self.EXCLUDING, self.if_set)
        return self

    def if_set(self, name: str) -> Any:
        """The value of an option; None if it is the default, or if the section that it belongs to is not there."""
        value: Any = self
        for key in name.split("."):
            if not isinstance(value, Section):
                return (value or {}).get(key)
            default = type(value).model_fields[key].get_default(call_default_factory=True)
            value = getattr(value, key)
        return None if value == default else value


def refuse_excluding(excluding: Iterable[Excluding], value_of: Callable[[str], Any]) -> None:
    """Raises ConfigError for options that are all set: their values are neither None, nor empty, zero or False."""
    for names, reason in excluding:
        values = [value_of(name) for name in names]
        if not all(values):
            continue
        shown = [
            name
            if isinstance(value, Section | bool)
            else f"{name} {list(value) if isinstance(value, tuple) else value!r}"
            for name, value in zip(names, values, strict=True)
        ]
        listed = f"{', '.join(shown[:-1])} and {shown[-1]}"
        raise ConfigError(f"{listed} exclude one another: {reason}; leave one of them out")


def known_or_own(known: Collection[str], what: str, form: str) -> AfterValidator:
    """Of a name that has to be one of `known`, or an import path of this form."""

    def checked(name: str) -> str:
        if name not in known and ":" not in name:
            raise ValueError(f"unknown {what} {name!r}; {nearest(name, known)}; one of your own is named as {form}")
        return name

    return AfterValidator(checked)
