"""Forks as siblings: the attacks once more, typed into forks of sessions, and what a session and its fork can reach."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kernel.again import assert_passes
from kernel.attacks.arena import FROM_FORKS, LIMITS, OK, TOOLS, WAYS, some
from kernel.attacks.conftest import Opened
from kernel.attacks.test_attack_network_and_siblings import SIBLINGS

from repl_rl.kernel import KernelPool
from repl_rl.kernel.pool import PooledKernel

LOOKS = WAYS["looks"]


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", ["test_attack_privileges.py", "."])
@pytest.mark.skipif(FROM_FORKS, reason="these attacks come from forks already")
def test_the_attacks_fail_from_forks_too(name: str) -> None:
    assert_passes(str(Path(__file__).parent / name), environment={**os.environ, "ATTACK_FROM_FORKS": "1"})


@pytest.fixture
def arena_pool(opened: Opened) -> KernelPool:
    return opened["bwrap", LIMITS].pool


@asynccontextmanager
async def pair(pool: KernelPool) -> AsyncIterator[tuple[PooledKernel, PooledKernel]]:
    """A session and its fork."""
    async with pool.session() as kernel:
        assert (await kernel.execute(TOOLS)).status is OK
        async with pool.fork(kernel) as fork:
            yield kernel, fork


@pytest.mark.parametrize("direction", [1, -1], ids=["session to fork", "fork to session"])
@pytest.mark.parametrize("name", some(SIBLINGS))
async def test_what_one_lays_down_the_other_does_not_find(arena_pool: KernelPool, name: str, direction: int) -> None:
    sibling = SIBLINGS[name]
    async with pair(arena_pool) as both:
        one, other = both[::direction]
        assert (await one.execute(sibling["lays"])).status is OK
        await other.execute("folder = '/tmp'")
        result = await other.execute(sibling["looks"])
    assert re.fullmatch(sibling["sees"], result.output.strip()), result.output


@pytest.mark.parametrize("name", some(LOOKS))
async def test_neither_reaches_the_other(arena_pool: KernelPool, name: str) -> None:
    look, evidence = LOOKS[name]
    async with pair(arena_pool) as both:
        for one, other in (both[::-1], both):
            result = await one.execute(look)
            told = await other.execute("'well'")
            assert (told.status, told.output) == (OK, "'well'\n"), told
            assert re.fullmatch(evidence, result.output.strip()), result.output
