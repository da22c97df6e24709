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
from importlib import resources
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
"""A report holds trajectories of at most so many evaluations, and of at most so many steps of training."""
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
    first = api.targets[0].path
    if not total and run["notes"] and first.is_file():
        raise RunError(f"{first} holds no trajectory that can be read: {run['notes'][0]}")
    page, policy = _page()
    budget_bytes = None
    if most is None:
        budget_bytes = MOST_BYTES - len(page.encode()) - len(json.dumps(run))
    ids = chain.from_iterable(_steps_by_worth(api))
    chosen = _chosen(api, ids, budget_bytes, most)
    if len(chosen) < total:
        note = (
            f"This file holds {len(chosen):,} of the run's {total:,} trajectories: evaluations, the first and the last "
            "step, then steps from evenly over the run. `repl-rl view` shows all of them."
        )
        run["notes"] = [*run["notes"], note]
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
            files = step_files(api.targets[0])
            picked = []
            for split in SPLITS:
                steps = {file.step: file for file in files if file.split == split}
                picked += [steps[step] for step in evenly(sorted(steps))[:REPORT_STEPS]]
            fill(api.index, picked, REPORT_PER_STEP)
            # The first of each step, then the second of each: if they don't fit, each step has fewer.
            ids: list[str] = []
            for ids_of_rank in zip_longest(*_steps_by_worth(api)):
                ids += [id for id in ids_of_rank if id is not None]
            chosen = _chosen(api, ids, REPORT_BYTES, None)
            run = api.run()
            with opened(api.index) as connection:
                (cut_files,) = connection.execute("SELECT count(*) FROM file WHERE size < 0").fetchone()
        if cut_files or len(picked) < len(files) or len(chosen) < run["index"]["trajectories"]:
            note = (
                f"This report holds {len(chosen):,} trajectories, the first ones of {len(picked):,} of the run's "
                f"{len(files):,} files of rollouts. `repl-rl view` shows all of them."
            )
            run["notes"] = [*run["notes"], note]
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
    return Path(str(resources.files("repl_rl.view.viewer"))) / "page"


def plotly_path() -> Path:
    """Plotly's script, found without importing plotly. Raises DependencyError if the package lacks it."""
    spec = find_spec("plotly")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
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


def _chosen(api: RunApi, ids: Iterable[str], budget_bytes: int | None, most: int | None) -> list[_Chosen]:
    """As many of the ids as fit, in the order of the run."""
    chosen: list[_Chosen] = []
    left_bytes = budget_bytes
    for id in ids:
        if most is not None and len(chosen) >= most:
            break
        try:
            transcript = api.trajectory(id, 0, None)
            tokens = api.tokens(id)
        except queries.NotFound:  # training goes on and has changed the file
            continue
        row = transcript["row"]
        texts = [_in_script(json.dumps(value, allow_nan=False)) for value in (row, transcript, tokens)]
        if left_bytes is not None:
            left_bytes -= sum(map(len, texts)) + 60  # and the id, twice, with its punctuation
            if left_bytes < 0:
                break
        chosen.append(_Chosen((row["step"], row["split"], row["position"]), id, *texts))

    def place_in_run(trajectory: _Chosen) -> tuple[int, str, int]:
        return trajectory.order

    return sorted(chosen, key=place_in_run)


def _page() -> tuple[str, str]:
    """The page with everything in it but the data and its policy, and that policy."""
    hashes: list[str] = []

    def style(link: re.Match[str]) -> str:
        return f"<style>\n{_text(link[1])}</style>"

    def script(link: re.Match[str]) -> str:
        # HTML would take `</script` and `<!--` for markup; in JavaScript both occur only in strings.
        text = _CLOSES.sub(r"\\x3c", _text(link[1]))
        digest = hashlib.sha256(text.encode()).digest()
        hashes.append(f"'sha256-{base64.b64encode(digest).decode()}'")
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
        # Timelines are files beside it.
        "run": json.dumps(run | {"live": False, "timelines": [], "more_timelines": 0}, allow_nan=False),
        "rows": f"[{','.join(trajectory.row for trajectory in chosen)}]",
        "trajectories": _object({trajectory.id: trajectory.transcript for trajectory in chosen}),
        "tokens": _object({trajectory.id: trajectory.tokens for trajectory in chosen}),
    }
    data = _in_script(_object(parts))
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    head += f'<script type="application/json" id="run-data" data-curves="{curves}">{data}</script>\n'

    def with_head(opening: re.Match[str]) -> str:  # a function, since the data may hold backslashes
        return opening[0] + head

    return _HEAD.sub(with_head, page, count=1)


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
