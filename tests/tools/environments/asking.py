"""Calls of tools as a session makes them."""

from __future__ import annotations

from typing import Any

from repl_rl.kernel.results import HostCall, HostReply
from repl_rl.tools import Toolbox


async def ask(box: Toolbox, name: str, *args: Any) -> HostReply:
    answer = box.host_calls()
    assert answer is not None
    return await answer(HostCall(name, args, {}))
