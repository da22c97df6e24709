"""What a `Rollout` is made of, as data: it can be sent to the process that makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from repl_rl.config import BudgetConfig, DialectConfig, KernelConfig, SamplingConfig
from repl_rl.engine import Engine, Vocabulary
from repl_rl.kernel import KernelPool, KernelSource, Limits, Profile
from repl_rl.rollout.episode import Extensions
from repl_rl.rollout.loop import Rollout
from repl_rl.rollout.prompts import dialect_for, speaks_chat


@dataclass(frozen=True, slots=True)
class RolloutSetup:
    """Everything but the engine. `kernels` may put something of its own between the rollouts and the pool."""

    vocabulary: Vocabulary
    kernel: KernelConfig
    dialect: DialectConfig
    budget: BudgetConfig
    sampling: SamplingConfig
    context_tokens: int
    chat: bool | None = None
    """Use the chat template; None: if the tokenizer has one."""
    kernels: Callable[[KernelPool], KernelSource] | None = None
    one_by_one: bool = False
    """One trajectory at a time (`engine.deterministic`)."""
    extensions: Extensions = field(default_factory=Extensions)

    def make(self, engine: Engine, pool: KernelPool) -> Rollout:
        """The rollout of `engine` on kernels of `pool`."""
        vocabulary = self.vocabulary
        dialect_with = partial(dialect_for, vocabulary, self.dialect)
        dialect = dialect_with(self.extensions.toolbox.tools)
        return Rollout(
            engine,
            pool if self.kernels is None else self.kernels(pool),
            dialect,
            vocabulary,
            budget=self.budget,
            sampling=self.sampling,
            context_tokens=self.context_tokens,
            chat=speaks_chat(vocabulary, dialect, self.chat),
            at_once=1 if self.one_by_one else self.kernel.size,
            extensions=self.extensions,
            dialect_with=dialect_with,
        )


def limits_of(config: KernelConfig) -> Limits:
    """The profile's, and over them what the config names."""
    named = {name: getattr(config, name) for name in ("line_s", "grace_s", "session_s", "memory_mb")}
    return replace(
        Profile.load(config.profile).limits, **{name: value for name, value in named.items() if value is not None}
    )


def make_pool(config: KernelConfig) -> KernelPool:
    """The pool that a config describes."""
    return KernelPool(
        size=config.size,
        limits=limits_of(config),
        backend=config.backend,
        sandbox=config.sandbox,
        profile=config.profile,
        memory_mb=config.budget_mb,
    )
