"""A run as one HTML file with the page, its scripts and its data, to be sent around and opened without a server.

A run may be too large for one file, so trajectories are chosen, and a note in the page says what is left out. Two
files are written this way: an export on request, which indexes the whole run and holds as much of it as fits in 25 MB,
and `report.html` of each run, which holds a sample and costs about the same however long the run was.

The page's policy allows scripts only by their hash. The run's data is in a block of JSON that is not a script and
contains no `<`. All files of the page are in `page/`, except plotly's script, which is most of the file's size and
comes from its package. Nothing comes from the network. Not covered: without JavaScript the page shows nothing.
"""

import base64
import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

from repl_rl.errors import DependencyError, RunError
from repl_rl.files import replace_file
from repl_rl.utils.folders import cache_home, full_disk
from repl_rl.view.viewer import queries
from repl_rl.view.viewer.api import Answer, RunApi
from repl_rl.view.viewer.index import NAME, SPLITS, evenly, opened, step_files
from repl_rl.view.viewer.indexer import fill, update

PLOTLY = "plotly.js"
INDEX = "index.html"
MOST_BYTES = 25_000_000
"""The size of an exported file, if no number of trajectories is given."""
REPORT_STEPS = 12
"""From how many evaluations, and from how many steps of training, a report holds trajectories."""
REPORT_PER_STEP = 16
REPORT_BYTES = 4_000_000
"""The size of a report's trajectories. The page around them takes about 5 MB."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_STYLE = re.compile(r'<link\b[^>]*\bhref="/?assets/([\w.-]+)"[^>]*>')
_SCRIPT = re.compile(r'<script\b[^>]*\bsrc="/?assets/([\w.-]+)"[^>]*></script>')
_CLOSES = re.compile(r"<(?=/script|script|!--)", re.IGNORECASE)
_HEAD = re.compile(r"<head\b[^>]*>\s*(?:<meta charset[^>]*>)?")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"


def export(api: RunApi, path: Path, most: int | None = None) -> tuple[int, int]:
    """Write the run to `path`, with at most `most` trajectories, or as many as a file of 25 MB holds. Returns how many
    these are, and how many the run has.

    Evaluations come first: the last, the first, then those between; steps of training follow in the same order. An
    earlier file is replaced atomically. Raises RunError if it can't be written, or if the run is a file of which
    nothing can be read.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise RunError(f"{path} can't be written: give the name of a file, in a folder that exists")
    try:
        update(api.targets, api.index)
    except (OSError, sqlite3.Error) as error:
        raise RunError(full_disk(error, cache_home()) or f"the index {api.index} can't be made: {error}") from error
    run = api.run()
    total = run["index"]["trajectories"]
    if not total and run["notes"] and (first := api.targets[0].path).is_file():
        raise RunError(f"{first} holds no trajectory that can be read: {run['notes'][0]}")
    page, policy = _page()
    budget = MOST_BYTES - len(page.encode()) - len(json.dumps(run)) if most is None else None
    chosen = _chosen(api, chain.from_iterable(_steps_by_worth(api)), budget, most)
    if len(chosen) < total:
        run["notes"] = [
            *run["notes"],
            f"This file holds {len(chosen):,} of the run's {total:,} trajectories: evaluations, the first and the last "
            "step, then steps from evenly over the run. `repl-rl view` shows all of them.",
        ]
    _write_whole(path, _filled(page, policy, run, chosen))
    return len(chosen), total


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into the run folder and return its path; an earlier one is replaced atomically.

    It shows all curves, held-out rates before and after, and a sample of the trajectories: the first 16 from each of at
    most 12 evaluations and 12 steps (the last, the first, and others spread evenly over the run). So it holds the same
    problems before and after training, and whole groups. If these take more than 4 MB, each step has fewer of them.

    Only the sample is read, into a temporary index. Of a longer run only more metrics are read, so time and memory grow
    little. Raises RunError if the folder is not a run or can't be written to, DependencyError without plotly.
    """
    path = run_dir / "report.html"
    try:
        with TemporaryDirectory(prefix="repl_rl_report_") as temporary:
            api = RunApi(run_dir, index=Path(temporary) / NAME)
            by_step = {(file.split, file.step): file for file in step_files(api.targets[0])}
            steps = {split: [step for other, step in sorted(by_step) if other == split] for split in SPLITS}
            picked = [(split, step) for split in SPLITS for step in evenly(steps[split])[:REPORT_STEPS]]
            fill(api.index, [by_step[each] for each in picked], REPORT_PER_STEP)
            by_rank = chain.from_iterable(zip_longest(*_steps_by_worth(api)))
            chosen = _chosen(api, (id for id in by_rank if id is not None), REPORT_BYTES, None)
            run = api.run()
            with opened(api.index) as connection:
                is_cut = connection.execute("SELECT count(*) FROM file WHERE size < 0").fetchone()[0] > 0
        if is_cut or len(picked) < len(by_step) or len(chosen) < run["index"]["trajectories"]:
            run["notes"] = [
                *run["notes"],
                f"This report holds {len(chosen):,} trajectories, the first ones of {len(picked):,} of the run's "
                f"{len(by_step):,} files of rollouts. `repl-rl view` shows all of them.",
            ]
        page, policy = _page()
        _write_whole(path, _filled(page, policy, run, chosen, curves="all"))
    except (OSError, sqlite3.Error) as error:
        raise RunError(full_disk(error, run_dir) or f"{path} can't be written: {error}") from error
    return path


def asset(name: str) -> Path | None:
    """The file that the page calls `name`, or None. Paths are not names and give None."""
    if name == PLOTLY:
        return plotly_path()
    path = page_folder() / name
    return path if _NAME.fullmatch(name) and path.is_file() else None


def page_folder() -> Path:
    return Path(str(files("repl_rl.view.viewer"))) / "page"


def plotly_path() -> Path:
    """Plotly's script, found without importing plotly. Raises DependencyError if the package lacks it."""
    spec = find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    raise DependencyError("the script that draws the charts is missing; bring it with: pip install -I plotly")


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A trajectory in the file: where it comes in the run, its id, and three JSON texts for the page."""

    order: tuple[int, str, int]
    id: str
    row: str
    transcript: str
    tokens: str


def _steps_by_worth(api: RunApi) -> Iterator[list[str]]:
    """Ids of the trajectories of each step: evaluations first, each split in the order of `evenly`."""
    with opened(api.index) as connection:
        for split in SPLITS:
            for step in evenly(queries.steps(connection, split)):
                yield queries.ids_of_step(connection, split, step)


def _chosen(api: RunApi, ids: Iterable[str], budget: int | None, most: int | None) -> list[_Chosen]:
    """As many of the ids as fit, in the order of the run."""
    found: list[_Chosen] = []
    for id in ids:
        if most is not None and len(found) >= most:
            break
        try:
            shown, spelled = api.trajectory(id, 0, None), api.tokens(id)
        except queries.NotFound:  # training goes on and has changed the file
            continue
        row = shown["row"]
        texts = [_in_script(json.dumps(value, allow_nan=False)) for value in (row, shown, spelled)]
        if budget is not None and (budget := budget - sum(map(len, texts)) - 60) < 0:
            break
        found.append(_Chosen((row["step"], row["split"], row["position"]), id, *texts))
    return sorted(found, key=lambda one: one.order)


def _page() -> tuple[str, str]:
    """The page with everything in it but the data and its policy, and that policy."""
    hashes: list[str] = []

    def style(found: re.Match[str]) -> str:
        return f"<style>\n{_text(found[1])}</style>"

    def script(found: re.Match[str]) -> str:
        # HTML would take `</script` and `<!--` for markup; in JavaScript both occur only in strings.
        text = _CLOSES.sub(lambda closing: "\\x3c", _text(found[1]))
        hashes.append(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
        return f"<script>{text}</script>"

    page = _text(INDEX)
    if "assets/" in _SCRIPT.sub("", _STYLE.sub("", page)):
        raise RunError(f"{page_folder() / INDEX} asks for a file in a way that an export does not know")
    page = _SCRIPT.sub(script, _STYLE.sub(style, page))
    return page, f"{_POLICY}; script-src {' '.join(hashes)}"


def _text(name: str) -> str:
    path = asset(name)
    if path is None:
        raise RunError(f"the page asks for {name}, and {page_folder()} has no such file; reinstall the package")
    return path.read_text(encoding="utf-8")


def _filled(page: str, policy: str, run: Answer, chosen: Sequence[_Chosen], curves: str = "some") -> str:
    """The page with its policy and its data. `curves` says which curves it shows at first: "some" or "all"."""
    parts = {
        "run": json.dumps(run | {"live": False}, allow_nan=False),
        "rows": f"[{','.join(one.row for one in chosen)}]",
        "trajectories": _object({one.id: one.transcript for one in chosen}),
        "tokens": _object({one.id: one.tokens for one in chosen}),
    }
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    head += (
        f'<script type="application/json" id="run-data" data-curves="{curves}">{_in_script(_object(parts))}</script>\n'
    )
    return _HEAD.sub(lambda found: found[0] + head, page, count=1)


def _object(members: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in members.items()) + "}"


def _in_script(text: str) -> str:
    """JSON (in ASCII, so without line separators) in which an HTML parser can't find the end of its block."""
    return text.replace("<", "\\u003c")


def _write_whole(path: Path, page: str) -> None:
    """Replace a file or a link atomically: on failure the earlier one stays. Raises RunError if it can't be written."""
    try:
        replace_file(path, page)
    except OSError as error:
        raise RunError(f"{path} can't be written: {error.strerror}") from error
