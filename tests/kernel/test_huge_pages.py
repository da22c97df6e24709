"""Memory that is moved to huge pages is the memory it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "kernels" / "python"
PROGRAM = Path(__file__).with_name("huge_pages.txt").read_text()


def test_what_lies_there_stays_as_it_is() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], cwd=FOLDER, capture_output=True, check=True, timeout=600)
    (digest, huge_kb), (moved_digest, moved_huge_kb), last_digest = json.loads(found.stdout)
    assert digest == moved_digest == last_digest
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 1):
        pytest.skip("this Linux has no MADV_COLLAPSE")
    assert moved_huge_kb > huge_kb + 8 * 1024
