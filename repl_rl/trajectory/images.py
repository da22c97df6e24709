"""Images in records: base64 in a record by itself, and in a file of records the names of PNG files beside it.

`rollouts.jsonl` has its images in the folder `rollouts.images`, each named after its content.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repl_rl.files import read_file

_DIGEST_CHARS = 32
_FILE = re.compile(r"[^/\0]+\.images/([0-9a-f]{32})\.png")
_LARGEST_BYTES = 4 << 20
_LARGEST_OF_RECORD_BYTES = 64 << 20
_PARTS_WITH_IMAGES = ("lines", "cells", "subcalls", "trajectory")
"""The keys on the way to a cell."""


def write_images(record: Mapping[str, Any], folder: Path) -> None:
    """Make files of a record's images in `folder`, and have the record name them."""
    for cell in (cell for line in record["lines"] for cell in line["cells"] if cell["images"]):
        folder.mkdir(exist_ok=True)
        names = []
        for image in map(base64.b64decode, cell["images"]):
            names.append(f"{folder.name}/{hashlib.sha256(image).hexdigest()[:_DIGEST_CHARS]}.png")
            (folder.parent / names[-1]).write_bytes(image)
        cell["images"] = names


def read_images(part: Any, folder: Path | None = None, room: list[int] | None = None) -> Any:
    """A record, or a part of one, with images in place of the names of files in `folder`, where the record's file is.

    Files that are missing, too large, or not what their name says are left out, as is what goes beyond the bytes in
    `room` (64 MiB for a record); without a folder, all of them are.
    """
    room = [_LARGEST_OF_RECORD_BYTES] if room is None else room
    if isinstance(part, list | tuple):
        return [read_images(each, folder, room) for each in part]
    if not isinstance(part, Mapping):
        return part
    read = {name: read_images(part[name], folder, room) for name in _PARTS_WITH_IMAGES if name in part}
    if isinstance(images := part.get("images"), list | tuple):
        found = [(stored, _FILE.fullmatch(stored) if isinstance(stored, str) else None) for stored in images]
        read["images"] = [image for stored, named in found if (image := _read(stored, named, folder, room)) is not None]
    return {**part, **read}


def _read(stored: Any, named: re.Match[str] | None, folder: Path | None, room: list[int]) -> Any:
    """What is stored, or what is in the file that it names; None for a file that can't be used."""
    if named is None:
        return stored
    if folder is None:
        return None
    try:
        image = read_file(folder / stored, folder, min(room[0], _LARGEST_BYTES))
    except (OSError, ValueError):
        return None
    room[0] -= len(image)
    return image if hashlib.sha256(image).hexdigest()[:_DIGEST_CHARS] == named[1] else None
