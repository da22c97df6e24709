"""Fewer page-table entries to copy: a process about to be forked many times moves its memory to huge pages.

A fork copies one entry for each page that the process has of its own, and the end of the child clears as many: 15,000
after sympy and numpy are imported, and a third of what a session costs. A huge page is one entry for 512 of them, until
somebody writes into it; what is copied then is still a single small page.
"""

import ctypes

_MADV_COLLAPSE = 25  # Linux 6.1
_HUGE_BYTES = 1 << 21


def collapse():
    """Move what lies in whole huge pages, as far as the kernel does it here."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start in _huge_pages():
        madvise(start, _HUGE_BYTES, _MADV_COLLAPSE)  # where it can't, all stays as it is


def _huge_pages():
    """Addresses of the aligned stretches of private, anonymous, writable memory."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        lines = [line.split(maxsplit=5) for line in maps]
    for bounds, access, _, _, inode, *name in lines:
        if access == "rw-p" and inode == "0" and (not name or name[0].strip() == "[heap]"):
            low, high = (int(bound, 16) for bound in bounds.split("-"))
            yield from range(-(-low // _HUGE_BYTES) * _HUGE_BYTES, high - _HUGE_BYTES + 1, _HUGE_BYTES)
