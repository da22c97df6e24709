"""Slots in one process at an engine in another one, over a socket: ids there, sampled lines back.

`RemoteEngine` is the slots' side. On the engine's side, `EnginePort` is read and written by the thread that steps the
engine, and `EngineHost` serves any `Engine` on an event loop.
"""

from repl_rl.engine.remote.client import RemoteEngine
from repl_rl.engine.remote.host import EngineHost

__all__ = ["EngineHost", "RemoteEngine"]
