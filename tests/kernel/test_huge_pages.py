"""Memory that is moved to huge pages is the memory it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "kernels" / "python"
PROGRAM = """
import hashlib, json, os, re
import huge_pages

def huge_kb():
    return int(re.search(r"AnonHugePages: +([0-9]+)", open("/proc/self/smaps_rollup").read())[1])

data = bytearray(os.urandom(16 << 20))
before = hashlib.sha256(data).hexdigest(), huge_kb()
huge_pages.collapse()
after = hashlib.sha256(data).hexdigest(), huge_kb()
pid = os.fork()
data[5 << 20] ^= 1
os._exit(0) if pid == 0 else os.waitpid(pid, 0)
data[5 << 20] ^= 1
print(json.dumps([before, after, hashlib.sha256(data).hexdigest()]))
"""


def test_what_lies_there_stays_as_it_is() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], cwd=FOLDER, capture_output=True, check=True, timeout=600)
    (digest, huge_kb), (moved_digest, moved_huge_kb), last_digest = json.loads(found.stdout)
    assert digest == moved_digest == last_digest
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 1):
        pytest.skip("this Linux has no MADV_COLLAPSE")
    assert moved_huge_kb > huge_kb + 8 * 1024
