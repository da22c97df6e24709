"""A folder where the code and the files of a page lie as a reader would put them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from vocabularies import nano

from repl_rl.kernel import KernelPool, Limits


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder; its modules can be imported, for the time of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(f"{tmp_path}/"):
            del sys.modules[name]
    sys.modules.pop("my_package", None)


@pytest.fixture
def pool(kernel_pools) -> KernelPool:  # type: ignore[no-untyped-def]
    """Real sessions, which the tests of the guides share."""
    nano()
    return kernel_pools(Limits(line_s=60), size=2)
