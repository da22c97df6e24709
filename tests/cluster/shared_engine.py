"""A scripted engine with weights that are a number: for workers in other processes, as servers are."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from repl_rl.config import EngineConfig, ModelConfig
from repl_rl.engine import Vocabulary
from repl_rl.rollout.scripted import ScriptedPolicy, ScriptedSlot


class SharedScript(ScriptedPolicy):
    """Types the question of each task: what stands between its first and its last backtick."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, "")
        self.version = 0

    @asynccontextmanager
    async def slot(self, tokens: int, is_subcall: bool = False) -> AsyncIterator[ScriptedSlot]:
        yield ScriptedSlot(self.vocabulary, _typed)

    @property
    def weights(self) -> int:
        return self.version

    def adopt(self, weights: int) -> None:
        self.version = max(self.version, weights)

    def load_weights(self, named_weights: Iterable[tuple[str, Any]]) -> None:
        self.version += 1

    def require_weight_updates(self) -> None:
        """They can always be given."""


def _typed(prompt: str) -> tuple[str, bool]:
    _, script, _ = prompt.split("`")
    return "".join(f" {line}\n" for line in script.split(";;")), True


def make(path: str, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig, seed: int) -> SharedScript:
    """For `engine.backend`."""
    return SharedScript(vocabulary)
