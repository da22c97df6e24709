"""Take GPU code that a Hopper card never loads out of a shared library, so that the file compresses well.

    python3 slim_fatbin.py IN OUT [ARCH]        # ARCH: 90

A library's `.nv_fatbin` holds containers (magic 0xBA55ED50), and these hold one entry per architecture: a header and a
payload. A driver takes the machine code for the card if there is any, else it compiles PTX. What stays of a container:
machine code for ARCH; without such code, PTX; without either, the library's smallest piece of code for another card, so
that none is empty. What stays moves to the front, the container's size says so, and the rest of its place becomes
zeros: no address in the file changes, and each container is one as a compiler makes it. Prints what it did.
"""

import collections
import struct
import sys
from pathlib import Path

MAGIC = 0xBA55ED50
PTX, ELF = 1, 2


def section(data: bytes, wanted: str) -> tuple[int, int]:
    """Offset and size of a section of a 64-bit little-endian ELF file; (0, 0) if there is none of that name."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * number) for number in range(count)]
    strings = headers[names][4]
    for name, _, _, _, offset, length in headers:
        start = strings + name
        if data[start : data.index(b"\0", start)] == wanted.encode():
            return offset, length
    return 0, 0


def containers(data: bytes) -> list[tuple[int, int, list[tuple[int, int, bytes]]]]:
    """Where each container's entries begin and end, and the entries: kind, architecture and bytes."""
    start, length = section(data, ".nv_fatbin")
    found, at, end = [], start, start + length
    while at + 16 <= end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != MAGIC:
            at += 8  # padding between containers
            continue
        entry, last = at + header, at + header + size
        entries = []
        while entry < last:
            kind, _, head, payload = struct.unpack_from("<HHIQ", data, entry)
            (sm,) = struct.unpack_from("<I", data, entry + 28)
            if kind not in (PTX, ELF) or head < 32 or (head + payload) % 8 or entry + head + payload > last:
                raise ValueError(f"an entry at {entry:#x} that this program does not know: kind {kind}, header {head}")
            entries.append((kind, sm, data[entry : entry + head + payload]))
            entry += head + payload
        found.append((at + header, last, entries))
        at = last
    return found


def slim(data: bytearray, arch: int, keeps_ptx: bool = True) -> dict[str, int]:
    """Slim in place; returns bytes by what was done with them. Without `keeps_ptx`, PTX goes like foreign code."""
    done: collections.Counter[str] = collections.Counter()
    found = containers(bytes(data))
    foreign = [each[2] for _, _, entries in found for each in entries if each[0] == ELF and each[1] != arch]
    for start, last, entries in found:
        kept = [each for each in entries if each[:2] == (ELF, arch)]
        kept = kept or [each for each in entries if each[0] == PTX and keeps_ptx]
        body = b"".join(each[2] for each in kept) or (min(foreign, key=len) if entries and foreign else b"")
        data[start:last] = body + bytes(last - start - len(body))
        struct.pack_into("<Q", data, start - 8, len(body))  # the last field of the container's header
        for each in entries:
            what = "kept" if each in kept else "dropped"
            done[f"{what} {'ptx' if each[0] == PTX else 'code'} sm_{each[1]}"] += len(each[2])
    return dict(done)


if __name__ == "__main__":
    content = bytearray(Path(sys.argv[1]).read_bytes())
    report = slim(content, int(sys.argv[3]) if len(sys.argv) > 3 else 90)
    Path(sys.argv[2]).write_bytes(content)
    for what, count in sorted(report.items()):
        print(f"{what:16} {count / 2**20:8.1f} MiB")
