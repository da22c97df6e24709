"""What rollouts need besides an engine: one frozen bundle, which can be sent to the process that makes the rollouts,
even if users supply functions of `__main__` or closures (`packed`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any

from repl_rl.config import (
    BranchConfig,
    BudgetConfig,
    Config,
    DialectConfig,
    KernelConfig,
    SamplingConfig,
    SubcallsConfig,
)
from repl_rl.dialect import AskingReader, Dialect, OfferedTool, dialect_class, make_dialect, require_dialect
from repl_rl.engine import Vocabulary, load_vocabulary
from repl_rl.errors import ConfigError
from repl_rl.kernel import KernelPool, KernelSource, Limits, Profile
from repl_rl.rollout.custom import Sampler, load_sampler
from repl_rl.rollout.guest import Guest
from repl_rl.tasks import environment_of as environment_of_families
from repl_rl.tasks import grade
from repl_rl.tools import Toolbox, as_tools
from repl_rl.tools.environments import EnvironmentFactory, environment_factory, pays_outcome
from repl_rl.tools.tool import Where
from repl_rl.tools.toolbox import culprit
from repl_rl.utils.import_path import imported
from repl_rl.utils.user_code import Seam, boundary, called

Grader = Callable[..., float | tuple[float, str]]
"""`(task, answer) -> float`, where `answer` is a tuple of texts, or None without a submission. A third parameter, named
`forms`, gets `Trajectory.answer_forms`. It may return a pair: the grade, and the reason for it, which is recorded with
the trajectory. Runs outside of the sandbox."""


@dataclass(frozen=True)
class Extensions:
    """What users supply. `environment` makes an environment per trajectory; `sampler` replaces our line loop."""

    toolbox: Toolbox = field(default_factory=Toolbox)
    environment: EnvironmentFactory | None = None
    sampler: Sampler | None = None
    grader: Grader = grade
    """Says what a session came to, where `branch.at` names a rule that looks at outcomes."""
    guests: tuple[type[Guest], ...] = ()
    """The user's classes of guests, in their order. Each session makes its own."""

    def __post_init__(self) -> None:
        if self.sampler is not None and (self.toolbox or self.environment is not None or self.guests):
            raise ConfigError(
                "rollout is a loop of your own, which tools, environment and guests would never reach; give them to "
                "that loop"
            )

    def require(self, dialect: DialectConfig, kernel: KernelConfig, branch: BranchConfig | None) -> None:
        """Raises ConfigError if tools or environment can't work with these: kernels that can't call host tools, a
        dialect without a session, and trees of sessions that ask a model."""
        names = [tool.name for tool in self.toolbox.tools if tool.where == "host"]
        if names and kernel.backend != "fork":
            raise ConfigError(
                f"tool {names[0]!r} runs on the host, where no call comes from kernel.backend {kernel.backend!r}; take "
                "kernel.backend fork, or where='sandbox'"
            )
        require_readable(dialect, kernel)
        name = getattr(self.environment, "__name__", "of the factory")
        if getattr(self.environment, "session_setup", ""):
            if kernel.backend != "fork":
                raise ConfigError(
                    f"environment {name} sets up its sessions with repl_tools, which kernel.backend "
                    f"{kernel.backend!r} does not have; take kernel.backend fork"
                )
            if not getattr(dialect_class(dialect), "needs_kernel", True):
                raise ConfigError(
                    f"environment {name} lives in a session, and dialect.name {dialect.name!r} has none; take python, "
                    "or another dialect that runs code"
                )
        if branch is not None:
            self.require_no_model()

    def require_no_model(self) -> None:
        """Raises ConfigError if the environment asks a model: what it answered can't be had twice."""
        if callable(getattr(self.environment, "use_model", None)):
            name = getattr(self.environment, "__name__", "of the factory")
            raise ConfigError(
                f"environment {name} asks a language model, so that its sessions can't be forked; leave branch out, or "
                "take another environment"
            )


def require_readable(dialect: DialectConfig, kernel: KernelConfig) -> None:
    """Raises ConfigError if the dialect reads Python and the kernelspec is of another language, or there is none."""
    kind = dialect_class(dialect)
    if kernel.backend == "fork" or not getattr(kind, "needs_kernel", True):
        return
    from repl_rl.kernel.jupyter.backend import find_spec

    language = find_spec(kernel.backend).language
    if language.lower() in ("python", ""):
        return
    with boundary(Seam.DIALECT, kind, "reader"):
        reader = kind(dialect, ()).reader()
    if isinstance(reader, AskingReader):
        return
    raise ConfigError(
        f"dialect.name {dialect.name!r} reads Python, and kernel.backend {kernel.backend!r} runs {language}; take "
        "python or ipython, which ask the kernel where a cell ends"
    )


def environment_of(config: Config) -> str | None:
    """The environment that a config names, or the one that its families of problems are solved in.

    Raises ConfigError if they need different ones.
    """
    if config.environment is not None or not config.tasks.is_generated:
        return config.environment
    return environment_of_families(config.tasks.families)


def environment_pays(config: Config) -> bool:
    """Whether a config's environment says what a session is worth, so that reference answers need not be readable.

    Raises ConfigError if the environment can't be imported.
    """
    environment = environment_of(config)
    return environment is not None and pays_outcome(environment_factory(environment))


def load_extensions(config: Config) -> Extensions:
    """The extensions that a config names by import path, and the tools of its MCP servers.

    Raises ConfigError if one can't be imported, and if a server does not answer.
    """
    tools: list[Any] = [*config.tools.functions]
    if config.tools.mcp:
        from repl_rl.tools.mcp import mcp_tools

        tools += mcp_tools(config.tools.mcp)
    where = config.tools.where
    return make_extensions(tools, where, environment_of(config), config.rollout, guests=config.guests)


def make_extensions(
    tools: Iterable[Any] = (),
    where: Where = "sandbox",
    environment: Any = None,
    sampler: Any = None,
    grader: Grader = grade,
    guests: Iterable[Any] = (),
) -> Extensions:
    """Make extensions from functions, classes and import paths. Raises ConfigError naming the one at fault."""
    toolbox = Toolbox(as_tools(tools, where))
    toolbox.setup_source()  # raises ConfigError if something can't be packed
    return Extensions(
        toolbox,
        None if environment is None else environment_factory(environment),
        None if sampler is None else load_sampler(sampler),
        grader,
        tuple(map(_guest, guests)),
    )


def _guest(source: Any) -> type[Guest]:
    """The class of a guest, or the one at an import path. Raises ConfigError."""
    guest = imported(source, "guests:", "package.module:Class") if isinstance(source, str) else source
    if not (isinstance(guest, type) and issubclass(guest, Guest)):
        raise ConfigError(f"guests: {source!r} is not a subclass of repl_rl.rollout.Guest")
    return guest


@dataclass(frozen=True, slots=True)
class RolloutSetup:
    """All that rollouts need besides an engine. `context_tokens` limits prompt and completion together."""

    vocabulary: Vocabulary
    dialect: DialectConfig | Dialect = field(default_factory=DialectConfig)
    """A `Dialect` is used as it is, regardless of the tools."""
    _: KW_ONLY
    context_tokens: int
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    subcalls: SubcallsConfig = field(default_factory=SubcallsConfig)
    chat: bool | None = None
    """Whether to use the chat template. None: if the tokenizer has one. A dialect that needs one always uses it."""
    at_once: int | None = None
    """How many trajectories of a batch run at a time. None leaves that to engine and kernels."""
    kernel: KernelConfig = field(default_factory=KernelConfig)
    """The pool that is opened for rollouts that are not given kernels."""
    wrap_kernels: Callable[[KernelPool], KernelSource] | None = None
    """Wraps that pool; the rollouts take their kernels from the result."""
    extensions: Extensions = field(default_factory=Extensions)

    def __post_init__(self) -> None:
        dialect: Any = self.dialect
        name = type(dialect).__name__
        if isinstance(dialect, DialectConfig):
            name = dialect.name
            dialect = dialect_class(dialect)
        if self.budget.compact_at is not None and not callable(getattr(dialect, "summary", None)):
            raise ConfigError(
                f"budget.compact_at {self.budget.compact_at}: dialect {name!r} has no form for the summary of a "
                "transcript; take dialect.name python, or leave compact_at out"
            )

    @classmethod
    def for_model(
        cls,
        config: Config | Any,
        path: str,
        extensions: Extensions | None = None,
        wrap_kernels: Callable[[KernelPool], KernelSource] | None = None,
        tokenizer: Any = None,
    ) -> RolloutSetup:
        """The setup that a config describes, or a trainer's arguments with its sections, for the model at `path`.
        Without `extensions`, those that the config names are loaded.

        Without `tokenizer`, loads the model's. Raises ModelError, and ConfigError if the model can't speak the dialect.
        """
        named = config.model if isinstance(config, Config) else config
        sections = {name: getattr(config, name) for name in Config.sections_in(cls)}
        at_once = config.kernel.size
        if config.engine.deterministic:
            sections["subcalls"] = config.subcalls.one_by_one
            at_once = 1
        setup = cls(
            load_vocabulary(
                path, require_dialect(config.dialect).stops, named.chat_template_kwargs, tokenizer=tokenizer
            ),
            context_tokens=config.engine.context_tokens,
            chat=named.chat,
            at_once=at_once,
            wrap_kernels=wrap_kernels,
            extensions=load_extensions(config) if extensions is None else extensions,
            **sections,
        )
        setup.dialect_with(setup.extensions.toolbox.tools)
        return setup

    def in_chat(self, dialect: Dialect) -> bool:
        """Whether prompts come in the model's chat template."""
        return dialect.needs_chat or (self.vocabulary.has_chat_template if self.chat is None else self.chat)

    def dialect_with(self, tools: Sequence[OfferedTool]) -> Dialect:
        """The dialect, offering `tools`. Raises ConfigError if the model can't speak it."""
        config = self.dialect
        if not isinstance(config, DialectConfig):
            return config
        may_be_chat = self.chat is not False or getattr(dialect_class(config), "needs_chat", False)
        template = None
        if self.vocabulary.has_chat_template and may_be_chat:
            template = self.vocabulary.render_chat
        return make_dialect(config, tools, template)

    def kernels(self, pool: KernelPool) -> KernelSource:
        """The source from which the rollouts take their kernels."""
        if self.wrap_kernels is None:
            return pool
        return called(Seam.KERNELS, self.wrap_kernels, pool)


def packed(thing: object, setup: RolloutSetup) -> bytes:
    """`thing`, which may be the setup, for a process that can import the same modules: functions of `__main__` and
    closures go by value. Raises ConfigError, which names the extension that can't be pickled."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(thing)
        return data
    except Exception as error:  # an object's own __reduce__ may raise anything
        extensions = setup.extensions
        parts = {tool.name: tool for tool in extensions.toolbox.tools}
        parts |= {extension.name: getattr(extensions, extension.name) for extension in fields(extensions)}
        why = culprit(parts, cloudpickle.dumps, "it holds something that can't be pickled; leave that out")
        raise ConfigError(
            f"{type(thing).__name__} can't be sent to the process that runs the rollouts: {why} ({error}); or run the "
            "rollouts in this process with apart=False"
        ) from error


def limits_of(config: KernelConfig) -> Limits:
    """The limits of the config's profile, overridden by those that the config sets."""
    changes = {}
    for name in ("line_s", "line_wall_s", "grace_s", "session_s", "memory_mb"):
        value = getattr(config, name)
        if value is not None:
            changes[name] = value
    return replace(Profile.load(config.profile).limits, **changes)


def make_pool(config: KernelConfig, *, warm: int | None = None) -> KernelPool:
    """The pool that a config describes. `warm` kernels are started ahead of need; None: as many as the pool holds."""
    return KernelPool(
        size=config.size,
        limits=limits_of(config),
        backend=config.backend,
        sandbox=config.sandbox,
        profile=config.profile,
        warm=warm,
        memory_mb=config.budget_mb,
    )
