"""Requests pass a gate while it is open; new weights wait until none is under way, and shut it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Many may pass at a time, or one may hold it shut. Belongs to one event loop."""

    def __init__(self) -> None:
        self._change = asyncio.Condition()
        self._passing = 0
        self._shut = False

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        async with self._change:
            await self._change.wait_for(lambda: not self._shut)
            self._passing += 1
        try:
            yield
        finally:
            self._passing -= 1
            async with self._change:
                self._change.notify_all()

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Lets nobody in, waits until all are out, and opens again behind the block."""
        async with self._change:
            await self._change.wait_for(lambda: not self._shut)
            self._shut = True
        try:
            async with self._change:
                await self._change.wait_for(lambda: self._passing == 0)
            yield
        finally:
            self._shut = False
            async with self._change:
                self._change.notify_all()
