"""The pages that people read: README and docs/, with the blocks and commands in them."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCED = re.compile(r"^( *)(`{3,})(\w*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<'(\w+)'\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:\A|^\n)((?:^ {4}.*\n)+)", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


def says(page: str, words: str) -> bool:
    """Whether a page of docs/ has these words, wherever its lines end."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return " ".join(words.split()) in " ".join(text.split())


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return [body for _, _, name, body in _FENCED.findall(text) if name == language]


def languages(text: str) -> set[str]:
    """The languages of the fenced blocks; "" where none is named."""
    return {name for _, _, name, _ in _FENCED.findall(text)}


def indented(text: str) -> list[str]:
    """The blocks that are indented by four spaces, without these."""
    return [textwrap.dedent(block) for block in _INDENTED.findall(_FENCED.sub("", text))]


def configs(text: str) -> list[str]:
    """Everything on a page that is a YAML file or a section of one. An indented block with several files is split."""
    short = [block for block in indented(text) if re.match(r"\w+:\s", block)]
    return [
        *blocks(text, "yaml"),
        *heredocs(text),
        *[part for block in short for part in re.split(r"^(?=\w)", block, flags=re.MULTILINE) if part],
    ]


def heredocs(text: str) -> list[str]:
    """Files that a page's shell blocks write."""
    return [body for _, body in _HEREDOC.findall(text)]


def commands(text: str) -> Iterator[str]:
    """Calls of our program in a page's shell and indented blocks: lines joined, comments and heredocs removed."""
    fenced = [_HEREDOC.sub("", body) for body in [*blocks(text, "bash"), *blocks(text, "sh")]]
    indented = re.findall(r"^ {4}(\S.*(?:\\\n.*)*)$", _FENCED.sub("", text), re.MULTILINE)
    for line in [line for body in [*fenced, *indented] for line in body.replace("\\\n", " ").splitlines()]:
        if "repl-rl " in line or "repl_rl.cli " in line:
            yield shlex.join(shlex.split(line, comments=True))


def inline_commands(text: str) -> Iterator[str]:
    """`repl-rl ...` within sentences, placeholders and all."""
    for code in _CODE.findall(_FENCED.sub("", text)):
        if code.startswith(("repl-rl ", ".venv/bin/repl-rl ")):
            yield " ".join(code.split())
