"""What the CPU engine needs, set before torch is imported anywhere, and which tests share a process."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from repl_rl.engine.environment import prepare_environment

prepare_environment()
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    # Read by OpenMP as torch is imported. With a thread for each core in each worker, all wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

# A busy machine is no fault of the code; pytest's own time limit catches what hangs.
settings.register_profile("repl_rl", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=150)
settings.load_profile("repl_rl")

GROUPS = {
    "vocabulary": ("tests/engine/test_vocabulary.py", "tests/rollout/test_three_views.py"),
    "engine": ("tests/engine/", "tests/rollout/test_exact_tokens.py"),
    "kernel": ("tests/kernel/",),
}
"""Tests of one group run in one process and share its engines and pools. Each other file is a group of its own."""
ROOMS = ("trainer", "run", "rollout", "integrations", "tools", "dialect", "view")
"""Those that take long."""


class GroupScheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """For `--dist loadgroup`: groups follow from paths. xdist looks for marks, which pytest 9.2 hides from it."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first: a process that comes to it last would leave the other one idle."""
    order = [*GROUPS, *(f"tests/{room}/" for room in ROOMS)]

    def place(item: pytest.Item) -> int:
        return next((place for place, start in enumerate(order) if group_of(item.nodeid).startswith(start)), len(order))

    items.sort(key=place)


def group_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return next((name for name, starts in GROUPS.items() if file.startswith(starts)), file)
