"""Images in records: base64 in a record by itself, and in a file of records the names of PNG files beside it.

`rollouts.jsonl` has its images in the folder `rollouts.images`, each named after its content.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_DIGEST_CHARS = 32
_FILE = re.compile(r"[^/\0]+\.images/([0-9a-f]{32})\.png")
_LARGEST_BYTES = 4 << 20
_LARGEST_OF_RECORD_BYTES = 64 << 20
_PARTS_WITH_IMAGES = ("lines", "cells", "subcalls", "trajectory")
"""The keys on the way to a cell."""

ReadFile = Callable[[str, int], bytes]
"""The content of a file of this name, which has so many bytes at most. Raises OSError or ValueError."""


def write_images(record: Mapping[str, Any], folder: Path) -> None:
    """Make files of a record's images in `folder`, and have the record name them."""
    cells = [cell for line in record["lines"] for cell in line["cells"]]
    for cell in cells:
        if not cell["images"]:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        names = []
        for encoded in cell["images"]:
            image = base64.b64decode(encoded)
            name = f"{folder.name}/{_digest(image)}.png"
            (folder.parent / name).write_bytes(image)
            names.append(name)
        cell["images"] = names


def read_images(part: Any, read_file: ReadFile | None = None, room: list[int] | None = None) -> Any:
    """A record, or a part of one, with images in place of the names of files beside the record's own.

    Files that `read_file` can't read, or that are not what their name says, are left out, as is what goes beyond the
    bytes in `room` (64 MiB for a record); without `read_file`, all of them are.
    """
    if room is None:
        room = [_LARGEST_OF_RECORD_BYTES]  # a list, so that all parts of the record take from the same bytes
    if isinstance(part, list | tuple):
        return [read_images(item, read_file, room) for item in part]
    if not isinstance(part, Mapping):
        return part
    changes = {name: read_images(part[name], read_file, room) for name in _PARTS_WITH_IMAGES if name in part}
    entries = part.get("images")
    if isinstance(entries, list | tuple):
        images = [_read(entry, read_file, room) for entry in entries]
        changes["images"] = [image for image in images if image is not None]
    return {**part, **changes}


def _read(entry: Any, read_file: ReadFile | None, room: list[int]) -> Any:
    """The content of the file that an entry of `images` names, or None if it can't be used; else the entry itself."""
    name = _FILE.fullmatch(entry) if isinstance(entry, str) else None
    if name is None:
        return entry
    if read_file is None:
        return None
    try:
        image = read_file(entry, min(room[0], _LARGEST_BYTES))
    except (OSError, ValueError):
        return None
    room[0] -= len(image)
    return image if _digest(image) == name[1] else None


def _digest(image: bytes) -> str:
    return hashlib.sha256(image).hexdigest()[:_DIGEST_CHARS]
