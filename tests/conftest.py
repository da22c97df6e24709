"""What the CPU engine needs, set before torch is imported anywhere, and which tests share a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from repl_rl.engine.environment import prepare_environment

prepare_environment()
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    # Read by OpenMP as torch is imported. With a thread for each core in each worker, all wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

# A busy machine is no fault of the code; pytest's own time limit catches what hangs.
settings.register_profile("repl_rl", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=150)
settings.load_profile("repl_rl")

TESTS = Path(__file__).parent
GROUPS = {
    "vocabulary": ("engine/test_vocabulary.py", "rollout/test_three_views.py"),
    "engine": ("engine/", "rollout/test_exact_tokens.py"),
    "kernel": ("kernel/",),
}
"""Tests of one group run in one process and share its engines and pools. Each other file is a group of its own."""
LONG = ("trainer/", "run/", "rollout/", "integrations/", "tools/", "dialect/", "view/")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first: a process that comes to it last would leave the other one idle."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_place)


def _group(item: pytest.Item) -> str:
    path = item.path.relative_to(TESTS).as_posix()
    return next((name for name, starts in GROUPS.items() if path.startswith(starts)), path)


def _place(item: pytest.Item) -> int:
    order = [*GROUPS, *LONG]
    return next((place for place, start in enumerate(order) if _group(item).startswith(start)), len(order))
