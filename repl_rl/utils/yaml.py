"""YAML that anybody may have written: plain values, whatever the text holds, in bounded time and memory."""

import re
from typing import Any

import yaml

MOST_BYTES = 256 << 10
"""The longest text that is read. PyYAML reads about 100 KB a second."""
_MOST_CHARS = 1 << 20
"""The most that the values of a text may hold, each counted wherever an alias repeats it."""
_MOST_LEVELS = 50
_INT_CHARS = 100
_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")
"""`1e-3` is a number in YAML 1.2 and in JSON. PyYAML follows YAML 1.1, where it is a string."""
_MERGE_TAG = "tag:yaml.org,2002:merge"
_UNMEANT_COMMENT = re.compile(r"[ \t]+#[^\s]")
"""What looks like a value that begins with `#`. A comment has a space after it."""


def read_yaml(text: str) -> Any:
    """The value of a text, by PyYAML's safe loader. Raises yaml.YAMLError for any text that has none, that nests more
    than 50 levels, or that aliases make much longer than it is."""
    if len(text) > MOST_BYTES:
        raise yaml.YAMLError(f"it is larger than {MOST_BYTES >> 10} KiB")
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError:
        raise
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    except Exception as error:  # what PyYAML's constructors happen to raise for a text such as `!!int ""`
        raise yaml.YAMLError(f"a value can't be read: {type(error).__name__}: {error}") from error


def write_yaml(value: Any) -> str:
    """A text that `read_yaml` reads back; values keep their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


class _Loader(yaml.SafeLoader):
    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            self._chars = 0
            self._require_small(node, 1)
        return node

    def _require_small(self, node: yaml.Node, level: int) -> None:
        self._chars += 1
        if isinstance(node, yaml.ScalarNode):
            self._chars += len(node.value)
        if level > _MOST_LEVELS or self._chars > _MOST_CHARS:
            raise yaml.composer.ComposerError(None, None, "it is nested too deeply, or made too long by its aliases")
        if isinstance(node, yaml.ScalarNode):
            if node.tag.endswith(":int") and len(node.value) > _INT_CHARS:
                raise yaml.composer.ComposerError(None, None, f"a number of {len(node.value)} digits", node.start_mark)
            return
        children = node.value
        if isinstance(node, yaml.MappingNode):
            _require_what_was_meant(node)
            children = [child for pair in node.value for child in pair]
        for child in children:
            self._require_small(child, level + 1)


def _require_what_was_meant(mapping: yaml.MappingNode) -> None:
    """Raises yaml.YAMLError for what YAML takes without a word: a key that stands twice, of which one value would be
    lost; and a value that is a comment, as in `answer_pattern: ####`."""
    lines: dict[tuple[str, str], int] = {}
    for key, value in mapping.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE_TAG:
            continue
        name = (key.tag, key.value)
        line = key.start_mark.line + 1
        if name in lines:
            raise yaml.composer.ComposerError(
                None,
                None,
                f"the key {key.value!r} stands twice, in line {lines[name]} and in line {line}, and one of them would "
                "be lost; put them together",
            )
        lines[name] = line
        is_empty = isinstance(value, yaml.ScalarNode) and value.value == "" and value.style is None
        if is_empty and _UNMEANT_COMMENT.match(value.start_mark.buffer or "", value.start_mark.pointer):
            raise yaml.composer.ComposerError(
                None,
                None,
                f"nothing is left of the value of {key.value!r} in line {line}, because '#' begins a comment; put the "
                "value in quotes, or write null",
            )


class _Dumper(yaml.SafeDumper):
    """Quotes the strings that `_Loader` would take for numbers."""


for _yaml in (_Loader, _Dumper):
    _yaml.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))
