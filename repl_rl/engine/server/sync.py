"""Which weights the servers have to hold, and how all of them come to new ones: together or not at all.

A server that can't be reached meanwhile is left out until it has them. One that refuses them stops the update, and all
go back to the weights from before.
"""

from __future__ import annotations

import asyncio

from repl_rl.engine.server.client import ServerClient, ServerUnreachable
from repl_rl.engine.server.fleet import Fleet, Server
from repl_rl.engine.server.gate import Gate
from repl_rl.engine.server.weights import Weights, WeightsFolder, bring_to
from repl_rl.errors import EngineError, ReplRLError


class WeightSync:
    """Belongs to one event loop. `current` is what every answer has to be sampled with."""

    def __init__(self, folder: WeightsFolder) -> None:
        self.current = Weights()
        self.gate = Gate()
        self._folder = folder

    async def catch_up(self, client: ServerClient, label: str | None) -> None:
        """Bring a server that holds other weights to the current ones. `label` None: it doesn't say what it holds."""
        if label not in (None, self.current.label):
            await bring_to(client, self.current)

    async def give_all(self, fleet: Fleet, weights: Weights) -> None:
        """Raises EngineError, with all servers at the weights from before, if a server refuses or if none is left."""
        async with self.gate.shut():
            up = fleet.up
            results = await asyncio.gather(*(_give(fleet, server, weights) for server in up), return_exceptions=True)
            failures = [error for error in results if isinstance(error, BaseException)]
            refusals = [error for error in failures if not isinstance(error, ServerUnreachable)]
            if refusals or len(failures) == len(up):
                await asyncio.gather(*(_give(fleet, server, self.current) for server in up), return_exceptions=True)
                self._folder.forget(weights)
                reason = refusals[0] if refusals else f"no server took new weights:\n{fleet.troubles()}"
                raise EngineError(str(reason)) from (failures[0] if failures else None)
            self._folder.forget(self.current)
            self.current = weights

    async def adopt(self, weights: Weights) -> None:
        """Go on with weights that another process has given the servers."""
        async with self.gate.shut():
            self.current = weights


async def _give(fleet: Fleet, server: Server, weights: Weights) -> None:
    async with server.mending:
        try:
            await bring_to(server.client, weights)
        except ReplRLError as error:
            await fleet.mark_down(server, str(error))
            raise
