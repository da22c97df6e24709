"""The files of a run that hold trajectories, as the folder shows them now."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
_STEP_FILE = re.compile(r"step_([0-9]{1,9})\.jsonl")
_FOLDERS = {"train": "rollouts", "eval": "eval"}


@dataclass(frozen=True, slots=True)
class StepFile:
    """A file of rollouts as the folder shows it now."""

    split: str
    step: int
    path: Path
    size: int
    mtime_ns: int
    inode: int


def step_files(target: Path) -> list[StepFile]:
    """The files of a run folder, or the one file that `target` is, in the order in which they are worth reading."""
    if not target.is_dir():
        return [found for found in [_single(target)] if found is not None]
    files = [file for split, folder in _FOLDERS.items() for file in _in_folder(split, target / folder)]
    # `step_7.jsonl` beside `step_00007.jsonl` is somebody's copy: the later name counts.
    by_step = {(file.step, file.split): file for file in sorted(files, key=lambda file: file.path.name, reverse=True)}
    return ends_first([by_step[place] for place in sorted(by_step)])


def ends_first(items: Sequence[Item]) -> list[Item]:
    """Last, first, last but one, second, and so on."""
    half = len(items) // 2
    pairs = zip(reversed(items), items, strict=True)
    return [item for pair in list(pairs)[:half] for item in pair] + list(items[half : len(items) - half])


def _in_folder(split: str, folder: Path) -> Iterator[StepFile]:
    try:
        entries = [entry for entry in os.scandir(folder) if _STEP_FILE.fullmatch(entry.name)]
    except OSError:
        return
    for entry in entries:
        digits = entry.name[5:-6]
        if (found := _stated(split, int(digits), Path(entry.path))) is not None:
            yield found


def _single(path: Path) -> StepFile | None:
    named = _STEP_FILE.fullmatch(path.name)
    return _stated("eval" if path.parent.name == "eval" else "train", int(named[1]) if named else 0, path)


def _stated(split: str, step: int, path: Path) -> StepFile | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return StepFile(split, step, path, stat.st_size, stat.st_mtime_ns, stat.st_ino)
