"""Moves the memory of a process to huge pages, so that forking it many times copies fewer page-table entries.

A fork copies one entry for each page that the process has of its own, and the end of the child clears as many: 15,000
after sympy and numpy are imported, which is a third of the cost of a session. A huge page needs one entry in place of
512, until somebody writes to it; even then only a single small page is copied.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MADV_COLLAPSE = 25  # Linux 6.1
_HUGE_BYTES = 1 << 21


def collapse() -> None:
    """Move all memory that fills whole huge pages, if Linux can do it here."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start in _huge_pages():
        madvise(start, _HUGE_BYTES, _MADV_COLLAPSE)  # on failure, all stays as it is


def _huge_pages() -> Iterator[int]:
    """Addresses of the aligned stretches of private, anonymous, writable memory."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        lines = [line.split(maxsplit=5) for line in maps]
    for bounds, access, _, _, inode, *name in lines:
        if access == "rw-p" and inode == "0" and (not name or name[0].strip() == "[heap]"):
            low, high = (int(bound, 16) for bound in bounds.split("-"))
            first = -(-low // _HUGE_BYTES) * _HUGE_BYTES  # rounded up
            yield from range(first, high - _HUGE_BYTES + 1, _HUGE_BYTES)
