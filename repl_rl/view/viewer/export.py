"""A run as one HTML file: the page, its scripts and its data in it, to be sent around and opened without a server.

A run is larger than what a file may be, so trajectories are chosen: the last and the first evaluation and the others,
the last and the first step of training, then steps from evenly over the run, until the file is full. A note in the page
says what is left out. Scripts run by their hash alone; what a run holds stands in a block of JSON that is no script and
holds no `<`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repl_rl.errors import RunError
from repl_rl.view.report import write_whole
from repl_rl.view.viewer import queries
from repl_rl.view.viewer.assets import INDEX, asset, page_folder
from repl_rl.view.viewer.database import SPLITS, opened
from repl_rl.view.viewer.indexer import update
from repl_rl.view.viewer.source import Answer, NotFound, Source

MOST_BYTES = 25_000_000
"""Of the whole file, where no number of trajectories is asked for."""
_STYLE = re.compile(r'<link\b[^>]*\bhref="/?assets/([\w.-]+)"[^>]*>')
_SCRIPT = re.compile(r'<script\b[^>]*\bsrc="/?assets/([\w.-]+)"[^>]*></script>')
_CLOSES = re.compile(r"<(?=/script|script|!--)", re.IGNORECASE)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: `shown` of `total` trajectories."""

    path: Path
    shown: int
    total: int


def export(source: Source, path: Path, most: int | None = None) -> Exported:
    """Write the run to `path`, with at most `most` trajectories, or as many as a file of 25 MB holds.

    An earlier file is replaced whole. Raises RunError if it can't be written, or if the source is a file in which
    nothing can be read.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise RunError(f"{path} can't be written: give the name of a file, in a folder that exists")
    update(source.target, source.index)
    run = source.run()
    if source.target.is_file() and not run["index"]["trajectories"] and run["notes"]:
        raise RunError(f"{source.target} holds no trajectory that can be read: {run['notes'][0]}")
    page, policy = _page()
    budget = MOST_BYTES - len(page.encode()) - len(json.dumps(run)) if most is None else None
    rows, trajectories, tokens = _chosen(source, budget, most)
    total = run["index"]["trajectories"]
    run |= {"live": False, "notes": [*run["notes"], *_left_out(len(rows), total)]}
    data = _in_script(_array(run, rows, trajectories, tokens))
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    head += f'<script type="application/json" id="run-data">{data}</script>\n'
    write_whole(
        path, re.sub(r"(<head\b[^>]*>\s*(?:<meta charset[^>]*>)?)", lambda found: found[1] + head, page, count=1)
    )
    return Exported(path, len(rows), total)


def evenly(items: Sequence[int]) -> list[int]:
    """The last, the first, the middle one, those in the middle between these, and so on."""
    order = [len(items) - 1, 0] if len(items) > 1 else list(range(len(items)))
    spans = [(0, len(items) - 1)]
    for first, last in spans:
        middle = (first + last) // 2
        if first < middle < last:
            order.append(middle)
            spans += [(first, middle), (middle, last)]
    return [items[index] for index in order]


def _chosen(source: Source, budget: int | None, most: int | None) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Rows, transcripts and tokens as JSON texts, in the order of the run."""
    rows: dict[str, tuple[Any, str]] = {}
    trajectories: dict[str, str] = {}
    tokens: dict[str, str] = {}
    for id in _by_worth(source):
        if most is not None and len(rows) >= most:
            break
        try:
            shown, spelled = source.trajectory(id, 0, None), source.tokens(id)
        except NotFound:  # of a training that goes on beside us
            continue
        row = shown["row"]
        texts = [_in_script(json.dumps(value, allow_nan=False)) for value in (row, shown, spelled)]
        if budget is not None and (budget := budget - sum(map(len, texts)) - 60) < 0:
            break
        rows[id] = ((row["step"], row["split"], row["position"]), texts[0])
        trajectories[id], tokens[id] = texts[1:]
    return [text for _, text in sorted(rows.values())], trajectories, tokens


def _by_worth(source: Source) -> Iterator[str]:
    """Ids: evaluations first."""
    with opened(source.index) as connection:
        for split in SPLITS:
            for step in evenly(queries.steps(connection, split)):
                yield from queries.places_of_step(connection, split, step)


def _left_out(shown: int, total: int) -> list[str]:
    if shown == total:
        return []
    return [
        f"This file holds {shown:,} of the run's {total:,} trajectories: evaluations, the first and the last step, "
        "then steps from evenly over the run. `repl-rl view` shows all of them."
    ]


def _array(run: Answer, rows: Sequence[str], trajectories: dict[str, str], tokens: dict[str, str]) -> str:
    parts = {
        "run": json.dumps(run, allow_nan=False),
        "rows": f"[{','.join(rows)}]",
        "trajectories": _object(trajectories),
        "tokens": _object(tokens),
    }
    return _object(parts)


def _object(members: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in members.items()) + "}"


def _in_script(text: str) -> str:
    """JSON (in ASCII, so without line separators) that no parser of HTML takes for the end of its block."""
    return text.replace("<", "\\u003c")


def _page() -> tuple[str, str]:
    """The page with everything in it but the data, and its policy."""
    hashes: list[str] = []
    page = _text(INDEX)
    if "assets/" in _SCRIPT.sub("", _STYLE.sub("", page)):
        raise RunError(f"{page_folder() / INDEX} asks for a file in a way that an export does not know")
    page = _STYLE.sub(lambda found: f"<style>\n{_text(found[1])}</style>", page)
    page = _SCRIPT.sub(lambda found: _script(found[1], hashes), page)
    return page, f"{_POLICY}; script-src {' '.join(hashes)}"


def _script(name: str, hashes: list[str]) -> str:
    # `</script` and `<!--` would end or open something for HTML; in JavaScript both stand in strings only.
    text = _CLOSES.sub(lambda found: "\\x3c", _text(name))
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    hashes.append(f"'sha256-{digest}'")
    return f"<script>{text}</script>"


def _text(name: str) -> str:
    path = asset(name)
    if path is None:
        raise RunError(f"the page asks for {name}, and {page_folder()} has no such file; reinstall the package")
    return path.read_text(encoding="utf-8")
