"""A run that is stored with the tests, in a folder to write in."""

import shutil
from pathlib import Path

import pytest

STORED = Path(__file__).parent / "stored"


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: the run `run`, the model that it began with, `sample.yaml`, and step 3 as it would come."""
    shutil.copytree(STORED, tmp_path / "stored")
    monkeypatch.chdir(tmp_path / "stored")
    return tmp_path / "stored"
