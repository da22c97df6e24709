"""How a session begins: at its prompt, or where another one was forked."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from repl_rl.kernel import KernelSession
from repl_rl.rollout.episode import Episode
from repl_rl.rollout.execute import TurnResult
from repl_rl.rollout.state import NOTHING, Prompt, Spent
from repl_rl.trajectory import Branch


class Typed(NamedTuple):
    """One turn of a session, as it was typed and as it ran."""

    text: bytes
    at_eos: bool
    ran: TurnResult


class Fork(NamedTuple):
    """A fork of a session's interpreter, and of what is around it."""

    episode: Episode
    kernel: KernelSession


class ReplayDiffersError(Exception):
    """The lines of a root showed something else when they were run again."""


@dataclass(slots=True)
class Start:
    """For a branch, what its root typed, and the fork, if the interpreter could be forked."""

    branch: Branch | None = None
    prompt: Prompt | None = None
    turns: tuple[Typed, ...] = ()
    spent: Spent = NOTHING
    fork: Fork | None = None
    held: AsyncExitStack = field(default_factory=AsyncExitStack)
    """Closes the fork and its environment. Closing it again does nothing."""
